"""The reader of the topic of keys: order, errors that pass, and records without the log's time."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError

from dexorder_gateway.keys import topic
from dexorder_gateway.keys.ledger import Read
from dexorder_gateway.keys.topic import TopicReader


class Message:
    def __init__(self, value: bytes, kind: int = TIMESTAMP_LOG_APPEND_TIME, error: KafkaError | None = None) -> None:
        self.value = lambda: value
        self.key = lambda: b"k"
        self.timestamp = lambda: (kind, len(value))
        self.error = lambda: error


class Consumer:
    """Gives these messages, the first by ``poll`` and then up to two at once; raises what is no message."""

    left: ClassVar[list[Any]] = []

    def __init__(self, options: dict[str, Any]) -> None:
        assert not options["enable.auto.commit"]
        self.closed = False

    def assign(self, places: list[Any]) -> None:
        assert [(each.topic, each.partition) for each in places] == [("keys", 0)]

    def poll(self, seconds: float) -> Any:
        found = Consumer.left.pop(0) if Consumer.left else None
        if isinstance(found, Exception):
            raise found
        return found

    def consume(self, count: int, timeout: float) -> list[Any]:
        assert timeout == 0
        taken, Consumer.left = Consumer.left[:2], Consumer.left[2:]
        return taken

    def close(self) -> None: ...


async def read(monkeypatch: pytest.MonkeyPatch, *messages: Any) -> tuple[list[Read], str]:
    """Return what a reader passes on, and its failure once it has had all messages."""
    monkeypatch.setattr(topic, "Consumer", Consumer)
    Consumer.left = [*messages]
    passed: list[Read] = []
    reader = TopicReader("keys", {}, passed.extend)
    while Consumer.left:  # noqa: ASYNC110 - a thread empties it
        await asyncio.sleep(0.001)
    await reader.close()
    return passed, reader.failure


async def test_records_are_passed_on_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, failure = await read(monkeypatch, *(Message(b"x" * number) for number in range(7)))
    assert passed == [Read(b"k", b"x" * number, number) for number in range(7)] and not failure


async def test_an_error_passes_and_a_record_without_the_logs_time_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two gateways' clocks could differ by more than the time for which a key is known."""
    own, trouble = Message(b"x", TIMESTAMP_CREATE_TIME), Message(b"", error=KafkaError(KafkaError._TRANSPORT))
    assert await read(monkeypatch, own) == ([], "topic 'keys' needs message.timestamp.type=LogAppendTime")
    passed, failure = await read(monkeypatch, trouble, own, Message(b"xx"))
    assert [each.value for each in passed] == [b"xx"] and not failure
    assert (await read(monkeypatch, Message(b"xx"), trouble))[1]


async def test_a_reader_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read(monkeypatch, RuntimeError("no memory")) == ([], "no memory")
