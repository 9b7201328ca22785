"""Many gateways with one log: whatever is delayed, lost or killed, a key has one record, and an answer is true."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from dexorder_common.model.errors import (
    AlreadyExists,
    Exhausted,
    InvalidRequest,
    SuiteError,
    Unavailable,
    Uncertain,
)
from dexorder_gateway.keys import ledger as ledger_module
from dexorder_gateway.keys.claims import RecordKey
from dexorder_gateway.keys.ledger import KeyLedger, Placing, Read, Reader, Take

HOUR_S = 3_600.0


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Kafka:
    """The log of keys, the records of the topic, and what is on its way to both."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.keys: list[Read] = []
        self.records: list[str] = []
        self.way: list[tuple[Gateway, Callable[[], object], Placing, SuiteError | None]] = []
        self.refuses: SuiteError | None = None

    def send(self, gateway: Gateway, write: Callable[[], object], error: SuiteError | None = None) -> Placing:
        done: Placing = asyncio.get_running_loop().create_future()
        self.way.append((gateway, write, done, error))
        return done

    def arrive(self) -> None:
        """Write the oldest of what some gateway has sent; a gateway's order stays."""
        gateway = self.random.choice(self.way)[0]
        index = next(index for index, each in enumerate(self.way) if each[0] is gateway)
        _, write, done, error = self.way.pop(index)
        if error is None or isinstance(error, Uncertain):  # an uncertain record is written after all
            write()
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result((0, len(self.records) - 1))

    def all_arrive(self) -> None:
        while self.way:
            self.arrive()


class Gateway:
    """The real ledger, which reads the log when it is told to."""

    def __init__(self, kafka: Kafka, wait_seconds: float = HOUR_S) -> None:
        self.kafka = kafka
        self.ledger = KeyLedger(self._prepare, self._follow, self._append, wait_seconds=wait_seconds)
        self.calls: list[asyncio.Task[tuple[int, int]]] = []
        self.prepared = 0
        self.alive = True
        self._at = 0

    async def _prepare(self) -> None:
        self.prepared += 1

    def _follow(self, take: Take) -> Reader:
        return Reader()

    def _append(self, key: bytes, value: bytes) -> Placing:
        if not self.alive:
            return asyncio.get_running_loop().create_future()
        return self.kafka.send(self, lambda: self.kafka.keys.append(Read(key, value, len(self.kafka.keys))))

    def read(self, count: int = 1 << 30) -> None:
        self.ledger.read(self.kafka.keys[self._at : self._at + count])
        self._at = min(self._at + count, len(self.kafka.keys))

    def call(self, text: str, contents: bytes = b"r", caller: str = "") -> asyncio.Task[tuple[int, int]]:
        error = self.kafka.refuses

        def produce() -> Placing:
            if isinstance(error, Exhausted):
                raise error
            return self.kafka.send(self, lambda: self.kafka.records.append(text), error)

        async def made() -> tuple[int, int]:
            return await (await self.ledger.once(RecordKey(caller, "t", text), contents, produce))

        self.calls.append(asyncio.create_task(made()))
        return self.calls[-1]

    def kill(self) -> None:
        """End it; what it has sent may arrive or not."""
        self.alive = False
        for call in self.calls:
            call.cancel()
        self.ledger.read = lambda records: None  # type: ignore[method-assign]
        for each in [each for each in self.kafka.way if each[0] is self]:
            if self.kafka.random.random() < 0.5:
                self.kafka.way.remove(each)


async def finish(kafka: Kafka, *gateways: Gateway) -> None:
    """Let everything arrive and be read."""
    while True:
        await settled()
        before = len(kafka.keys)
        kafka.all_arrive()
        for each in gateways:
            each.read()
        await settled()
        if not kafka.way and len(kafka.keys) == before:
            return


async def failure(call: asyncio.Task[Any]) -> BaseException | None:
    await settled()
    assert call.done()
    return call.exception()


async def test_a_repeated_call_at_another_gateway_gets_the_first_ones_place() -> None:
    kafka = Kafka()
    first, second = Gateway(kafka), Gateway(kafka)
    other, own = first.call("other"), first.call("k")
    await finish(kafka, first, second)
    repeated = second.call("k")
    await finish(kafka, first, second)
    assert own.result() == repeated.result() and own.result() != other.result()
    assert Counter(kafka.records) == {"other": 1, "k": 1}


async def test_a_key_of_another_record_is_refused_and_one_of_another_caller_is_free() -> None:
    kafka = Kafka()
    gateway = Gateway(kafka)
    gateway.call("k", b"one", "me")
    await finish(kafka, gateway)
    other, yours = gateway.call("k", b"two", "me"), gateway.call("k", b"two", "you")
    await finish(kafka, gateway)
    with pytest.raises(AlreadyExists, match="idempotency_key 'k' belongs to another record of topic 't'"):
        other.result()
    assert yours.done() and len(kafka.records) == 2


@pytest.mark.parametrize("error", [InvalidRequest("too large"), Exhausted("the queue is full")])
async def test_a_record_that_was_not_written_leaves_its_key_to_the_calls_that_wait(error: SuiteError) -> None:
    kafka = Kafka()
    first, second = Gateway(kafka), Gateway(kafka)
    kafka.refuses = error
    refused = first.call("k")
    await settled()
    kafka.refuses = None
    kafka.all_arrive()
    waiting = second.call("k")
    await finish(kafka, first, second)
    assert await failure(refused) is error
    assert waiting.result() == (0, 0) and kafka.records == ["k"]


async def test_an_uncertain_record_stays_uncertain_everywhere() -> None:
    kafka = Kafka()
    first, second = Gateway(kafka), Gateway(kafka)
    kafka.refuses = Uncertain("no acknowledgement")
    own = first.call("k")
    await finish(kafka, first, second)
    kafka.refuses = None
    repeated = second.call("k")
    await finish(kafka, first, second)
    assert isinstance(await failure(own), Uncertain) and isinstance(await failure(repeated), Uncertain)
    assert kafka.records == ["k"]


async def test_a_call_whose_gateway_was_killed_is_uncertain_and_never_written_again() -> None:
    kafka = Kafka()
    killed, other = Gateway(kafka), Gateway(kafka, wait_seconds=0.05)
    killed.call("k")
    await settled()
    kafka.all_arrive()
    killed.read()
    killed.kill()
    kafka.way.clear()
    repeated = other.call("k")
    await settled()
    kafka.all_arrive()
    other.read()
    await asyncio.wait([repeated])
    with pytest.raises(Uncertain, match=r"has not said within 0\.05 s whether it wrote the record"):
        repeated.result()
    assert kafka.records == []


async def test_a_caller_that_goes_away_keeps_the_place_from_nobody() -> None:
    kafka = Kafka()
    first, second = Gateway(kafka), Gateway(kafka)
    own = first.call("k")
    await settled()
    kafka.all_arrive()
    first.read()
    await settled()
    own.cancel()
    repeated = second.call("k")
    await finish(kafka, first, second)
    assert repeated.result() == (0, 0) and kafka.records == ["k"]


async def test_a_call_that_kafka_does_not_answer_writes_nothing_also_later() -> None:
    kafka = Kafka()
    late, other = Gateway(kafka, wait_seconds=0.0), Gateway(kafka)
    call = late.call("k")
    await asyncio.wait([call])
    with pytest.raises(Unavailable, match=r"no answer within 0 s; the record is not written"):
        call.result()
    repeated = other.call("k")
    await finish(kafka, late, other)
    assert repeated.result() == (0, 0) and kafka.records == ["k"]


async def test_a_call_of_a_gateway_that_was_frozen_for_longer_than_it_waits_writes_nothing() -> None:
    kafka = Kafka()
    frozen, other = Gateway(kafka, wait_seconds=0.05), Gateway(kafka)
    call = frozen.call("k")
    await settled()
    kafka.all_arrive()
    time.sleep(0.1)  # noqa: ASYNC251 - the whole process stops
    frozen.read()
    await asyncio.wait([call])
    with pytest.raises(Unavailable):
        call.result()
    repeated = other.call("k")
    await finish(kafka, frozen, other)
    assert repeated.result() == (0, 0) and kafka.records == ["k"]


@pytest.mark.parametrize("steps", range(6))
async def test_a_claim_that_arrives_though_its_write_failed_is_used_or_given_up(steps: int) -> None:
    kafka = Kafka()
    gateway, other = Gateway(kafka), Gateway(kafka)
    call = gateway.call("k")
    await settled()
    _, write, done, _ = kafka.way.pop()
    write()
    done.set_exception(Uncertain("no acknowledgement"))
    for _ in range(steps):
        await asyncio.sleep(0)
    gateway.read()
    await finish(kafka, gateway, other)
    error = await failure(call)
    assert isinstance(error, Unavailable) != (kafka.records == ["k"])
    repeated = other.call("k")
    await finish(kafka, gateway, other)
    assert repeated.result() == (0, 0) and kafka.records == ["k"]


async def test_a_topic_of_keys_that_was_deleted_is_made_again() -> None:
    kafka = Kafka()
    gateway = Gateway(kafka)
    call = gateway.call("k")
    await settled()
    kafka.way.pop()[2].set_exception(InvalidRequest("topic 'keys': unknown"))
    assert isinstance(await failure(call), Unavailable)
    again = gateway.call("k")
    await finish(kafka, gateway)
    assert again.result() == (0, 0) and gateway.prepared == 2


async def test_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_CALLS", 2)
    kafka = Kafka()
    gateway = Gateway(kafka)
    calls = [gateway.call("same") for _ in range(3)]
    assert isinstance(await failure(calls[2]), Exhausted)
    await finish(kafka, gateway)
    assert calls[0].result() == calls[1].result() == (0, 0)
    assert gateway.call("other") and not gateway.ledger._calls
    await finish(kafka, gateway)
    assert gateway.calls[-1].result() == (0, 1)


async def test_a_drain_ends_once_the_records_and_their_outcomes_are_written() -> None:
    kafka = Kafka()
    gateway, other = Gateway(kafka), Gateway(kafka)
    gateway.call("k")
    await settled()
    drained = asyncio.create_task(gateway.ledger.drain(HOUR_S))
    await settled()
    for _ in range(3):  # the claim, the record, its outcome
        assert not drained.done()
        kafka.all_arrive()
        gateway.read()
        await settled()
    assert drained.done() and len(kafka.keys) == 2
    repeated = other.call("k")
    await finish(kafka, other)
    assert repeated.result() == (0, 0)


@pytest.mark.parametrize("seed", [*range(60), 112])
async def test_whatever_happens_a_key_has_one_record_and_each_answer_is_its_place(seed: int) -> None:
    """Calls of few keys at gateways that read late, die, are replaced, whose callers go away and whose records fail."""
    kafka = Kafka(seed)
    random = kafka.random
    gateways = [Gateway(kafka) for _ in range(3)]
    calls: list[tuple[str, asyncio.Task[tuple[int, int]]]] = []
    doubtful: set[str] = set()
    for _ in range(300):
        await settled()
        gateway = random.choice(gateways)
        action = random.random()
        if action < 0.2:
            kafka.refuses = random.choice(
                [None] * 6 + [InvalidRequest("refused"), Exhausted("full"), Uncertain("late")]
            )
            text = f"k{random.randrange(8)}"
            if isinstance(kafka.refuses, Uncertain):
                doubtful.add(text)
            calls.append((text, gateway.call(text)))
        elif action < 0.6 and kafka.way:
            kafka.arrive()
        elif action < 0.9:
            gateway.read(random.randrange(1, 4))
        elif action < 0.95 and calls:
            random.choice(calls)[1].cancel()
        elif action < 0.97:
            gateway.kill()
            doubtful |= {text for text, call in calls if call in gateway.calls}
            gateways[gateways.index(gateway)] = Gateway(kafka)
    await finish(kafka, *gateways)
    assert max(Counter(kafka.records).values()) == 1
    for text, call in calls:
        if not call.done():
            assert text in doubtful, f"{text}: nothing can be waited for"
        elif not call.cancelled() and call.exception() is None:
            assert call.result() == (0, kafka.records.index(text))
        elif not call.cancelled():
            assert isinstance(call.exception(), InvalidRequest | Exhausted | Uncertain)
            assert not isinstance(call.exception(), Uncertain) or text in doubtful
        call.cancel()
