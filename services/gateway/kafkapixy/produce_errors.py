"""What a record that Kafka did not take means to its caller. Pure."""

from __future__ import annotations

from confluent_kafka import KafkaError

from services.common.model.errors import Exhausted, InvalidRequest, NotAllowed, SuiteError, Unavailable

_BAD_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
}
_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_TRY_AGAIN = {
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


def produce_error(error: KafkaError, topic: str, size: int) -> SuiteError:
    """What a failed Produce means to its caller."""
    code, text = error.code(), error.str()
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return InvalidRequest(f"message of {size} bytes is larger than topic {topic!r} takes")
    if code in _BAD_TOPIC:
        return InvalidRequest(f"topic {topic!r}: {text}")
    if code in (KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG):
        return InvalidRequest(f"topic {topic!r} refuses the record: {text}")
    if code == KafkaError._QUEUE_FULL:
        return Exhausted("too many records wait for Kafka")
    if code in _FORBIDDEN:
        return NotAllowed(f"the gateway may not write topic {topic!r}: {text}")
    if code in _TRY_AGAIN or error.retriable():
        return Unavailable(f"no acknowledgement for topic {topic!r}, the record may have been written or not: {text}")
    return SuiteError(f"topic {topic!r}: {text}")
