"""Headers whose names are not UTF-8. librdkafka's mock of a broker serves them: the client and its records are real."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from structlog.testing import capture_logs

from dexorder_common.kafka.client_options import LIBRDKAFKA_LOG, headers_of
from tests.raw_headers import produce_raw

GOOD = [(b"a", b"1"), (b"a", b""), (b"b", b"\xff")]
BAD = [(b"a", b"1"), (b"n\xff", b"secret"), (b"b", b"2")]
READ = [("a", b"1"), ("a", b""), ("b", b"\xff")]
COUNT = 50
"""So many calls make a place in the code fast; there the client's error would come up somewhere else."""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    owner = Producer({"test.mock.num.brokers": 1, "logger": LIBRDKAFKA_LOG})
    (found,) = owner.list_topics(timeout=30).brokers.values()
    yield f"{found.host}:{found.port}"


def fetch(broker: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "unused", "logger": LIBRDKAFKA_LOG})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while len(found) < count:
            found += [message for message in consumer.consume(count - len(found), 10) if message.error() is None]
        return found
    finally:
        consumer.close()


def test_record_with_a_name_that_is_not_utf8_has_no_headers_and_its_place_is_logged_once(broker: str) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    for headers in GOOD, BAD, GOOD:
        produce_raw(broker, topic, [b"v"] * COUNT, headers)
    with capture_logs() as logged:
        for _ in range(2):  # as for a reader that comes back
            records = fetch(broker, topic, 3 * COUNT)
            for _ in range(2):  # as for one that is handed out again
                found = [headers_of(record) for record in records]
                assert found == [READ] * COUNT + [[]] * COUNT + [READ] * COUNT
    assert [(line["log_level"], line["topic"], line["partition"], line["offset"]) for line in logged] == [
        ("warning", topic, 0, offset) for offset in range(COUNT, 2 * COUNT)
    ]
    assert "secret" not in str(logged)


def test_record_without_headers_has_none(broker: str) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    produce_raw(broker, topic, [b"v"], [])
    assert [headers_of(record) for record in fetch(broker, topic, 1)] == [[]]


class Broken:
    """A record whose client can't decode a header."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error
        self._headers: Any = None
        self._topic = f"t-{uuid.uuid4().hex}"

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def headers(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._headers

    def set_headers(self, headers: Any) -> None:
        self._error = None
        self._headers = headers


@pytest.mark.parametrize("error", [SystemError("left over"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")])
def test_error_of_the_client_is_met_once(error: Exception) -> None:
    record = Broken(error)
    with capture_logs() as logged:
        assert [headers_of(record) for _ in range(2)] == [[], []]
    assert [(line["partition"], line["offset"]) for line in logged] == [(3, 7)]


def test_another_error_is_none_of_ours() -> None:
    with pytest.raises(ZeroDivisionError):
        headers_of(Broken(ZeroDivisionError()))
