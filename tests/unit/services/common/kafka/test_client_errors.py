"""Errors of librdkafka: their status, and the reason why a cluster is unavailable."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from dexorder_common.kafka.client_errors import (
    ConnectionErrors,
    RecordRefused,
    admin_error,
    error_text,
    group_error,
    produce_error,
    topic_error,
)
from dexorder_common.model.errors import (
    Exhausted,
    InvalidRequest,
    NotAllowed,
    NotFound,
    SuiteError,
    Unavailable,
    Uncertain,
)

REFUSED = KafkaError(KafkaError._TRANSPORT, "b1: Connect failed: Connection refused (after 0ms in state CONNECT)")
REFUSED_BY_ANOTHER = KafkaError(
    KafkaError._TRANSPORT, "b2: refused (after 12ms in state CONNECT, 3 identical error(s) suppressed)"
)
LOGIN = KafkaError(KafkaError._AUTHENTICATION, "b2: SASL authentication error: no (after 31ms in state AUTH_REQ)")


def test_first_error_of_a_kind_is_kept_without_its_times() -> None:
    errors = ConnectionErrors()
    for each in (REFUSED, REFUSED_BY_ANOTHER, REFUSED):
        errors.note(each)
        assert errors.text == "b1: Connect failed: Connection refused"


def test_more_specific_error_replaces_it_and_is_kept() -> None:
    errors = ConnectionErrors()
    for each in (REFUSED_BY_ANOTHER, LOGIN, REFUSED):
        errors.note(each)
    assert errors.text == "b2: SASL authentication error: no"


def test_unspecific_error_is_ignored_and_an_answer_clears_all() -> None:
    errors = ConnectionErrors()
    errors.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.text == ""
    errors.note(LOGIN)
    errors.clear()
    assert errors.text == ""
    errors.note(REFUSED)
    assert "refused" in errors.text


def test_error_text() -> None:
    assert error_text(KafkaException(REFUSED_BY_ANOTHER)).startswith("b2: refused")
    assert error_text(ValueError("why")) == "why"
    assert error_text(KafkaException()) == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordRefused),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, InvalidRequest),
        (KafkaError._UNKNOWN_TOPIC, InvalidRequest),
        (KafkaError.TOPIC_EXCEPTION, InvalidRequest),
        (KafkaError.INVALID_RECORD, RecordRefused),
        (KafkaError._QUEUE_FULL, Exhausted),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError._MSG_TIMED_OUT, Uncertain),
        (KafkaError._PURGE_INFLIGHT, Uncertain),
        (KafkaError._FATAL, Uncertain),
        (KafkaError.NOT_ENOUGH_REPLICAS, Uncertain),
        (KafkaError.UNKNOWN, SuiteError),
    ],
)
def test_error_of_a_produce_has_a_status(code: int, error: type[SuiteError]) -> None:
    assert type(produce_error(KafkaError(code), "t", 7)) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, InvalidRequest),
        (KafkaError.TOPIC_EXCEPTION, InvalidRequest),
        (KafkaError.INVALID_GROUP_ID, InvalidRequest),
        (KafkaError._TIMED_OUT, Unavailable),
        (KafkaError._NOENT, Unavailable),
        (KafkaError.NOT_COORDINATOR, Unavailable),
    ],
)
def test_error_of_an_administrative_call_has_a_status(code: int, error: type[SuiteError]) -> None:
    assert type(admin_error(KafkaError(code), "topic 't'")) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None),
        (KafkaError.LEADER_NOT_AVAILABLE, None),
    ],
)
def test_error_of_a_topic_ends_its_reading_or_passes(code: int, error: type[SuiteError] | None) -> None:
    found = topic_error(KafkaError(code, "reason"), "t")
    assert (found is None) if error is None else type(found) is error


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), NotAllowed),
        (KafkaException(KafkaError(KafkaError.FENCED_INSTANCE_ID)), Unavailable),
        (KafkaException(KafkaError(KafkaError._INVALID_ARG)), Unavailable),
        (KafkaException(KafkaError(KafkaError._FATAL)), Unavailable),
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)), None),
        (KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID)), None),
        (NotAllowed("by a query"), NotAllowed),
        (ZeroDivisionError("a bug"), None),
    ],
)
def test_error_of_a_group_ends_the_membership_or_passes(raised: Exception, error: type[SuiteError] | None) -> None:
    found = group_error(raised, "g")
    assert (found is None) if error is None else type(found) is error
