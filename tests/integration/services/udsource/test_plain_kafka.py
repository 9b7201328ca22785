"""Plain source.v1 reads against a real server and a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from google.protobuf.empty_pb2 import Empty
from structlog.testing import capture_logs

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_udsource.server import serve
from tests.integration.services.udsource.client import SourceClient, offset_of, produce
from tests.integration.services.udsource.conftest import MakeSettings, StartSource
from tests.raw_headers import produce_raw

pytestmark = pytest.mark.kafka
MakeTopic = Callable[[int], str]


def committed(kafka: str, topic: str, partitions: int = 1) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": f"group-{topic}"})
    try:
        parts = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], timeout=10)
        return {p.partition: p.offset for p in parts if p.offset >= 0}
    finally:
        consumer.close()


async def test_order_of_numaflows_calls(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource, socket: Path
) -> None:
    """Over the unix socket: info file, IsReady, both handshakes, then read, ack, read, ack; each ack one batch."""
    topic = kafka_topic(2)
    produce(kafka, topic, [(i % 2, b"%d" % i) for i in range(1000)], headers=[("a", b"1")])
    async with start_source(topic, socket=socket, unix=True) as source:
        info = (socket.parent / "sourcer-server-info").read_bytes()
        assert info.endswith(b"U+005C__END__")
        while not (await source.stub.IsReady(Empty())).ready:
            pass
        reader, acker = await source.read(), await source.ack()
        payloads: list[bytes] = []
        while len(payloads) < 1000:
            records, status = await reader.batch(300, 1000)
            assert len(records) <= 300 and status.code == pb.ReadResponse.Status.SUCCESS
            if records:
                await acker.ack(*(offset_of(r) for r in records))
            payloads += [r.result.payload for r in records]
            partitions = (await source.stub.PartitionsFn(Empty())).result
        assert sorted(payloads, key=int) == [b"%d" % i for i in range(1000)]
        assert (list(partitions.partitions), partitions.total_partitions) == ([0, 1], 2)
        assert (await source.pending())[0] == 0
    assert not (socket.parent / "sourcer-server-info").exists()
    assert committed(kafka, topic, 2) == {0: 500, 1: 500}


async def test_batch_without_records_is_empty(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    async with start_source(kafka_topic(1)) as source:
        reader = await source.read()
        for timeout_ms in (0, 100):
            records, status = await reader.batch(10, timeout_ms)
            assert records == [] and status.code == pb.ReadResponse.Status.SUCCESS
        assert (await reader.batch(0))[0] == []


async def test_header_with_a_name_that_is_not_utf8_costs_a_record_its_headers(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    for headers in [(b"a", b"1")], [(b"a", b"1"), (b"n\xff", b"secret")], [(b"b", b"2")]:
        produce_raw(kafka, topic, [b"x"] * 50, headers)
    with capture_logs() as logged:
        async with start_source(topic) as source:
            first, again = await (await source.read()).collect(150), await (await source.read()).collect(150)
            for records in first, again, await source.replay(0, 0, 150):
                assert [offset_of(r)[1] for r in records] == list(range(150))
                found = [dict(r.result.headers) for r in records]
                assert found == [{"a": "1"}] * 50 + [{}] * 50 + [{"b": "2"}] * 50
    warned = [(line["topic"], line["partition"], line["offset"]) for line in logged if "UTF-8" in line["event"]]
    assert warned == [(topic, 0, offset) for offset in range(50, 100)]
    assert "secret" not in str(logged)


async def test_unacked_records_are_redelivered_after_the_next_handshake_only(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % i) for i in range(10)])
    async with start_source(topic) as source:
        reader, acker = await source.read(), await source.ack()
        assert len(await reader.collect(10)) == 10
        assert (await reader.batch(10, 300))[0] == []  # the first copies may still be acked
        await acker.ack((0, 1), (0, 4))  # out of order: holds nothing up, commits nothing
        assert (await source.pending())[0] == 8
        second = await source.read()
        again = await second.collect(8)
        assert [offset_of(r)[1] for r in again] == [0, 2, 3, 5, 6, 7, 8, 9]
        assert (await second.batch(10, 300))[0] == []
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await reader.batch(1, 100)
        assert failed.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        await acker.ack((0, 0), (0, 2))
    assert committed(kafka, topic) == {0: 3}


async def test_nacked_records_are_redelivered_on_the_same_stream(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(2)
    produce(kafka, topic, [(i % 2, b"%d" % i) for i in range(20)])
    async with start_source(topic) as source:
        reader, acker = await source.read(), await source.ack()
        await reader.collect(20)
        await source.nack((0, 2), (1, 5))
        await source.nack((0, 2))  # no longer in flight: nothing to give back
        assert sorted(offset_of(r) for r in await reader.collect(2)) == [(0, 2), (1, 5)]
        assert (await reader.batch(10, 300))[0] == []
        await acker.ack(*((p, o) for p in (0, 1) for o in range(10)))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await source.nack((0, 10))  # beyond the log
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert committed(kafka, topic, 2) == {0: 10, 1: 10}


async def test_restart_continues_at_the_first_unacked_record(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % i) for i in range(30)])
    async with start_source(topic, drain_seconds=0.2) as source:
        reader, acker = await source.read(), await source.ack()
        await reader.collect(20)
        await acker.ack(*((0, o) for o in range(10)), (0, 15))
    async with start_source(topic) as source:
        reader, acker = await source.read(), await source.ack()
        assert [offset_of(r)[1] for r in await reader.collect(20)] == list(range(10, 30))
        await acker.ack((0, 3))  # below the commit
        await acker.ack(*((0, o) for o in range(10, 30)))
    assert committed(kafka, topic) == {0: 30}


async def test_ack_of_an_offset_beyond_the_log_is_refused(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        reader = await source.read()
        await reader.collect(5)
        for bad in ((0, 10), (3, 0)):
            acker = await source.ack()
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await acker.ack((0, 0), bad)
            assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (await source.pending())[0] == 10
    assert committed(kafka, topic) == {0: 0}


async def test_replays_do_not_change_the_group(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        await source.replay(0, 0, 10)
        assert list((await source.stub.PartitionsFn(Empty())).result.partitions) == []
        replayed = await source.stub.PartitionsFn(Empty(), metadata=(("x-replay", "1"),))
        assert list(replayed.result.partitions) == [0]
        assert (await source.pending())[0] == 10


async def test_acks_still_count_while_draining(kafka: str, kafka_topic: MakeTopic, make_settings: MakeSettings) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    block = serve(make_settings(topic, drain_seconds=30))
    source = SourceClient((await block.__aenter__()).address)
    async with source.channel:
        reader, acker = await source.read(), await source.ack()
        await reader.collect(6)
        stopping = asyncio.create_task(block.__aexit__(None, None, None))
        while (await source.stub.IsReady(Empty())).ready:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await reader.batch(10, 50))[0] == []
        await acker.ack(*((0, o) for o in range(6)))
        await stopping
    assert committed(kafka, topic) == {0: 6}
