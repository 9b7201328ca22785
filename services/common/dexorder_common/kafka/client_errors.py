"""Errors of librdkafka: which are worth a retry, our error for each, and the reason of a lost connection."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from dexorder_common.model.errors import (
    Exhausted,
    InvalidRequest,
    NotAllowed,
    NotFound,
    SuiteError,
    Unavailable,
    Uncertain,
)

COORDINATOR_CHANGING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._WAIT_COORD,
        KafkaError._IN_PROGRESS,
    }
)
"""The group's coordinator is being made, found or moved, for example just after a broker's start; try again."""
_NO_SUCH_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_PERMANENT = frozenset(
    {
        KafkaError._FATAL,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.INVALID_GROUP_ID,
        KafkaError._INVALID_ARG,
    }
)
_INVALID_TOPIC = _NO_SUCH_TOPIC | {KafkaError._UNKNOWN_PARTITION, KafkaError.TOPIC_EXCEPTION}
_INVALID_RECORD = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG})
_INVALID_ADMIN_REQUEST = frozenset(
    {KafkaError.OFFSET_METADATA_TOO_LARGE, KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_GROUP_ID}
)
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_NOT_ACKNOWLEDGED = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_CONNECTION = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._AUTHENTICATION)
"""Reasons of a call that only reports a timeout itself; later ones are more specific."""
_OCCURRENCE = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")


class RecordRefused(InvalidRequest):
    """Kafka refuses this record for its content; others of the topic may be written."""


def produce_error(error: KafkaError, topic: str, size: int) -> SuiteError:
    """Return the error of a record, with a value of ``size`` bytes, that was not written."""
    code, text = error.code(), error.str()
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordRefused(f"message of {size} bytes is larger than topic {topic!r} allows")
    if code in _INVALID_TOPIC:
        return InvalidRequest(f"topic {topic!r}: {text}")
    if code in _INVALID_RECORD:
        return RecordRefused(f"topic {topic!r} refuses the record: {text}")
    if code == KafkaError._QUEUE_FULL:
        return Exhausted("too many records wait for Kafka")
    if code in _FORBIDDEN:
        return NotAllowed(f"the gateway may not write topic {topic!r}: {text}")
    if code in _NOT_ACKNOWLEDGED or error.retriable():
        return Uncertain(f"no acknowledgement for topic {topic!r}, the record may have been written or not: {text}")
    return SuiteError(f"topic {topic!r}: {text}")


def topic_error(error: KafkaError, topic: str) -> SuiteError | None:
    """Return the error that ends reading a topic; None if librdkafka recovers by itself."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return NotAllowed(f"topic {topic!r}: {error.str()}")
    return None


def group_error(error: BaseException, group: str) -> SuiteError | None:
    """Return the error that ends a membership for good; None if joining again may help."""
    cause = error.args[0] if error.args else error
    if isinstance(error, SuiteError) or not isinstance(cause, KafkaError):
        return error if isinstance(error, SuiteError) else None
    text = f"group {group!r}: {cause.str()}"
    if cause.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return NotAllowed(text)
    return Unavailable(text) if cause.fatal() or cause.code() in _PERMANENT else None


def admin_error(error: KafkaError, what: str = "Kafka") -> SuiteError:
    """Return the error of an administrative call about ``what``."""
    code, text = error.code(), f"{what}: {error.str()}"
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return NotFound(f"{what} does not exist" if what != "Kafka" else text)
    if code in _FORBIDDEN:
        return NotAllowed(text)
    return InvalidRequest(text) if code in _INVALID_ADMIN_REQUEST else Unavailable(text)


def error_text(error: BaseException) -> str:
    """Return the text of an exception of librdkafka, or of another one."""
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)


class ConnectionErrors:
    """Reason why a cluster is unavailable, from librdkafka's error callback: the failing calls do not have it.

    Attributes:
        text: The first of the most specific errors since the cluster's last answer, so that it does not alternate
            between brokers; empty if there was none.
    """

    def __init__(self) -> None:
        self._rank = -1
        self.text = ""

    def note(self, error: KafkaError) -> None:
        """Take an error; for a client's ``error_cb``."""
        rank = _CONNECTION.index(error.code()) if error.code() in _CONNECTION else -1
        if rank > self._rank:
            self._rank = rank
            self.text = _OCCURRENCE.sub("", error.str())

    def clear(self) -> None:
        """Forget the errors: the cluster has answered."""
        self._rank = -1
        self.text = ""
