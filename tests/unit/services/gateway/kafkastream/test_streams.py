"""Windows, credit, and the order and limits of streams, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from services.common.model.errors import Conflict
from services.gateway.kafkapixy.batches import Batch
from services.gateway.kafkapixy.cluster_config import ClusterConfig
from services.gateway.kafkapixy.pending_runs import Amount
from services.gateway.kafkapixy.types import Demand, RefusedAck, Span
from services.gateway.kafkastream.consume_stream import (
    BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_REFUSED_ACKS,
    ConsumeStream,
)
from services.gateway.kafkastream.produce_stream import NumberedBatch, ProduceStream
from services.gateway.kafkastream.service import KafkaService
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def numbered(batch_id: int, records: int, size: int) -> NumberedBatch:
    return NumberedBatch(batch_id, Batch("t", [(None, b"", None, 0)] * records), size)


@pytest.mark.parametrize(
    ("taken", "batch", "fits"),
    [
        ([], (11, 101), True),  # the first always does
        ([(4, 40)], (6, 60), True),
        ([(4, 40)], (7, 60), False),
        ([(4, 40)], (6, 61), False),
        ([(11, 101)], (0, 0), False),
        ([(10, 100)], (0, 0), True),
    ],
)
async def test_room_of_a_produce_stream(taken: list[tuple[int, int]], batch: tuple[int, int], fits: bool) -> None:
    stream = ProduceStream(10, 100)
    batches = [numbered(0, records, size) for records, size in [*taken, batch]]
    for each in batches:
        each.batch.done.set_result(None)
    for each in batches[:-1]:
        await stream.add(each)
    adding = asyncio.create_task(stream.add(batches[-1]))
    await settle()
    assert adding.done() == fits
    answers = stream.answers()
    for each in batches:
        assert await anext(answers) is each
    following = asyncio.ensure_future(anext(answers))  # the last one is answered as well
    await settle()
    await asyncio.wait_for(stream.add(numbered(1, 4, 40)), 1)
    whole = asyncio.create_task(stream.add(numbered(2, 6, 60)))
    await settle()
    assert whole.done()
    following.cancel()


@pytest.mark.parametrize(
    ("batch_records", "credit", "records"),
    [(0, 3, 3), (0, 5_000, MAX_BATCH_RECORDS), (9_999, 5_000, MAX_BATCH_RECORDS), (7, 5_000, 7), (7, 2, 2)],
)
async def test_credit_is_taken_in_batches(batch_records: int, credit: int, records: int) -> None:
    refuses: Any = RefusingSubscription()
    stream = ConsumeStream(refuses, batch_records, Amount(5, 50), auto_ack=False)
    await stream.request(credit, [], [])
    assert stream.demand() == Demand(1, records, BATCH_BYTES, Amount(5, 50))


async def test_batches_are_added_only_as_far_as_the_window_allows() -> None:
    stream = ProduceStream(10, 1_000)
    batches = [numbered(n, 4, 4) for n in range(4)]
    added: list[int] = []

    async def add() -> None:
        for each in batches:
            await stream.add(each)
            added.append(each.batch_id)
        stream.end()

    adding = asyncio.create_task(add())
    await settle()
    assert added == [0, 1]
    answers = stream.answers()
    batches[1].batch.done.set_result(None)
    taken = asyncio.ensure_future(anext(answers))
    await settle()
    assert not taken.done()  # in order
    batches[0].batch.done.set_result(None)
    assert (await taken).batch_id == 0
    await settle()
    assert added == [0, 1]  # yielded, but the next was not requested yet
    assert (await anext(answers)).batch_id == 1
    await settle()
    assert added == [0, 1, 2]
    for each in batches[2:]:
        each.batch.done.set_result(None)
    assert [each.batch_id async for each in answers] == [2, 3]
    await adding


async def test_failure_follows_the_answers() -> None:
    stream = ProduceStream(10, 1_000)
    batch = numbered(7, 1, 1)
    await stream.add(batch)
    stream.end(ValueError("bad"))
    batch.batch.done.set_result(None)
    seen = []
    with pytest.raises(ValueError, match="bad"):
        async for each in stream.answers():
            seen.append(each.batch_id)
    assert seen == [7]


class RefusingSubscription:
    """Subscription that refuses every ack."""

    def attach(self, _: object) -> int:
        return 1

    def ack_spans(self, _: int, spans: Sequence[Span]) -> list[RefusedAck]:
        return [RefusedAck(span, Conflict("")) for span in spans]


async def test_caller_that_takes_no_refused_acks_is_not_read() -> None:
    refuses: Any = RefusingSubscription()
    stream = ConsumeStream(refuses, 0, Amount(), auto_ack=False)
    acks = [Span(0, 0, 0)] * (MAX_REFUSED_ACKS - 1)
    await stream.request(0, acks, [])
    second = asyncio.create_task(stream.request(0, acks, []))
    await settle()
    assert not second.done()
    answer = await stream.next()
    assert answer is not None
    assert len(answer.refused) == 2 * len(acks)
    await second


class BrokenCluster:
    """Clusters of which each raises an unexpected error."""

    config = ClusterConfig("default", "k:1")

    @property
    def default(self) -> BrokenCluster:
        return self

    def named(self, name: str) -> BrokenCluster:
        return self

    async def has_topic(self, name: str) -> bool:
        raise ZeroDivisionError


async def test_unexpected_error_ends_the_stream() -> None:
    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        yield pb.ProduceRequest(topic="t", records=pb.Records(values=[b"v"]))
        await asyncio.Event().wait()

    clusters: Any = BrokenCluster()
    context: Any = None
    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError):
            await anext(KafkaService(clusters).Produce(requests(), context))
