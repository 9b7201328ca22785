"""What a record that Kafka did not take means to its caller."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from services.common.model.errors import Exhausted, InvalidRequest, NotAllowed, SuiteError, Unavailable
from services.gateway.kafkapixy.produce_errors import produce_error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, InvalidRequest),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, InvalidRequest),
        (KafkaError._UNKNOWN_TOPIC, InvalidRequest),
        (KafkaError.TOPIC_EXCEPTION, InvalidRequest),
        (KafkaError.INVALID_RECORD, InvalidRequest),
        (KafkaError._QUEUE_FULL, Exhausted),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAllowed),
        (KafkaError._MSG_TIMED_OUT, Unavailable),
        (KafkaError._PURGE_INFLIGHT, Unavailable),
        (KafkaError._FATAL, Unavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, Unavailable),
        (KafkaError.UNKNOWN, SuiteError),
    ],
)
def test_failed_produce_has_a_status(code: int, error: type[SuiteError]) -> None:
    assert type(produce_error(KafkaError(code), "t", 7)) is error
