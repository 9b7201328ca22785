"""Keys of callers: which repeated calls write a record again, and what a caller can do to the keys of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dexorder_common.model.errors import AlreadyExists, InvalidRequest, Unavailable, Uncertain
from dexorder_gateway.kafkapixy import idempotency
from dexorder_gateway.kafkapixy.idempotency import KEY_SECONDS, MAX_KEYS, KnownRecords, RecordKey, refuse_repeated


class Kafka:
    """Counts the records that are queued; ``records`` has their futures."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.known = KnownRecords(lambda: self.now_s)
        self.records: list[asyncio.Future[tuple[int, int]]] = []

    def produce(self, key: str, *, caller: str = "", record: bytes = b"r") -> asyncio.Future[tuple[int, int]]:
        def begin() -> asyncio.Future[tuple[int, int]]:
            self.records.append(asyncio.get_running_loop().create_future())
            return self.records[-1]

        return self.known.once(caller, RecordKey("", "t", key), record, begin)


async def test_a_known_key_is_the_same_record_before_and_after_it_is_written() -> None:
    kafka = Kafka()
    first, second = kafka.produce("k"), kafka.produce("k")
    assert first is second and len(kafka.records) == 1
    first.set_result((2, 7))
    assert await kafka.produce("k") == (2, 7) and len(kafka.records) == 1


async def test_a_refused_record_is_written_by_the_next_call_and_an_uncertain_one_is_not() -> None:
    kafka = Kafka()
    kafka.produce("refused").set_exception(InvalidRequest("too large"))
    kafka.produce("uncertain").set_exception(Uncertain("no acknowledgement"))
    await asyncio.sleep(0)
    kafka.produce("refused")
    assert len(kafka.records) == 3
    with pytest.raises(Uncertain):
        await kafka.produce("uncertain")
    assert len(kafka.records) == 3


async def test_a_call_that_can_not_be_queued_leaves_its_key_free() -> None:
    kafka = Kafka()

    def full() -> Any:
        raise Unavailable("the queue is full")

    with pytest.raises(Unavailable):
        kafka.known.once("", RecordKey("", "t", "k"), b"r", full)
    kafka.produce("k")
    assert len(kafka.records) == 1


async def test_a_key_of_another_record_is_refused_and_one_of_another_caller_is_free() -> None:
    kafka = Kafka()
    kafka.produce("k", caller="me")
    with pytest.raises(AlreadyExists, match="idempotency_key 'k' belongs to another record"):
        kafka.produce("k", caller="me", record=b"other")
    kafka.produce("k", caller="you", record=b"other")
    assert len(kafka.records) == 2


async def test_a_key_is_forgotten_after_its_time() -> None:
    kafka = Kafka()
    kafka.produce("k")
    kafka.now_s = KEY_SECONDS - 1
    kafka.produce("k")
    assert len(kafka.records) == 1
    kafka.now_s = KEY_SECONDS
    kafka.produce("k")
    assert len(kafka.records) == 2


async def test_keys_may_be_missing_until_all_of_an_earlier_life_are_forgotten() -> None:
    kafka = Kafka()
    assert not kafka.known.has_all
    kafka.now_s = KEY_SECONDS - 1
    assert not kafka.known.has_all
    kafka.now_s = KEY_SECONDS
    assert kafka.known.has_all


async def test_a_caller_with_many_keys_forgets_its_own_and_none_of_another_caller() -> None:
    kafka = Kafka()
    kafka.produce("mine", caller="me")
    for number in range(MAX_KEYS + 1):
        kafka.produce(f"k{number}", caller="flood")
    kafka.produce("mine", caller="me")
    kafka.produce(f"k{MAX_KEYS}", caller="flood")
    assert len(kafka.records) == MAX_KEYS + 2
    assert sum(map(len, kafka.known._callers.values())) == MAX_KEYS + 1
    kafka.produce("k0", caller="flood")
    assert len(kafka.records) == MAX_KEYS + 3, "the oldest was forgotten"


async def test_a_long_key_is_refused_without_its_text() -> None:
    kafka = Kafka()
    kafka.produce("k" * idempotency.MAX_KEY_CHARACTERS)
    with pytest.raises(InvalidRequest, match=r"^idempotency_key 'k{32}'\.\.\. has 129 characters"):
        kafka.produce("k" * 129)


@pytest.mark.parametrize(
    ("metadata", "repeated"),
    [
        (None, False),
        ([("x-envoy-attempt-count", "1"), ("x-request-id", "5")], False),
        ([("x-envoy-attempt-count", "2")], True),
        ([("grpc-previous-rpc-attempts", "1")], True),
        ([("grpc-previous-rpc-attempts", "0")], False),
        ([("x-envoy-attempt-count", "-2"), ("grpc-previous-rpc-attempts", "many")], False),
    ],
)
def test_a_repeated_attempt_is_one_that_a_proxy_or_grpc_has_numbered(metadata: Any, repeated: bool) -> None:
    if not repeated:
        refuse_repeated(metadata, "give a key")
        return
    with pytest.raises(Uncertain, match="an earlier attempt of this call may have been carried out; give a key"):
        refuse_repeated(metadata, "give a key")
