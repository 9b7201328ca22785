"""Holes, retention, rebalances, outages and stops against a real Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from google.protobuf.empty_pb2 import Empty
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc import lifecycle
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.server import serve
from dexorder_udsource.topic_monitor import TopicMonitor
from tests.integration.services.udsource.client import REPLAY, SourceClient, offset_of, produce, range_of
from tests.integration.services.udsource.conftest import MakeSettings, StartSource
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import free_ports

pytestmark = pytest.mark.kafka
MakeTopic = Callable[[int], str]


def transact(kafka: str, topic: str, values: list[bytes], *, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


async def drop_below(kafka: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        await asyncio.wrap_future(future)


async def health_of(source: SourceClient) -> int:
    stub: Any = health_pb2_grpc.HealthStub(source.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest())).status)


async def test_offsets_without_records_delay_nothing(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    """Transaction markers and aborted records use offsets: within a range, at its end and at the log's end."""
    topic = kafka_topic(1)
    transact(kafka, topic, [b"a", b"b"])  # 0, 1, marker 2
    transact(kafka, topic, [b"no", b"no"], commit=False)  # 3, 4, marker 5
    produce(kafka, topic, [(0, b"c")])  # 6
    transact(kafka, topic, [b"d"])  # 7, marker 8
    async with start_source(topic) as source:
        assert (await source.pending(REPLAY))[1]["x-ends"] == "0:9"
        for start, end, offsets in ((0, 9, [0, 1, 6, 7]), (0, 3, [0, 1]), (2, 6, []), (3, 7, [6]), (8, 9, [])):
            for most in (9, 1):
                records = await source.replay(0, start, end, most=most)
                assert [offset_of(r)[1] for r in records] == offsets


async def test_offsets_dropped_by_retention_are_named(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        await source.pending(REPLAY)  # the starts are remembered from here
        await drop_below(kafka, topic, 4)
        assert len(await source.replay(0, 4, 10)) == 6
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            reader = await source.read(range_of(0, 2, 10))
            await reader.batch(10)
        assert failed.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "offset 2 of partition 0 is gone" in str(failed.value.details())


async def test_unacked_records_dropped_by_retention_are_skipped(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        first = await source.read()
        await first.collect(10)
        await drop_below(kafka, topic, 4)
        second, acker = await source.read(), await source.ack()
        assert [offset_of(r)[1] for r in await second.collect(6)] == [4, 5, 6, 7, 8, 9]
        await acker.ack(*((0, o) for o in range(4, 10)))
        await asyncio.sleep(0.06)  # longer than an answer is remembered
        assert (await source.pending())[0] == 0


@pytest.mark.smoke
async def test_two_replicas_share_the_partitions(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    """The second joins while records of the first are in flight; each record is acked and none is lost."""
    topic = kafka_topic(4)
    produce(kafka, topic, [(i % 4, b"%d" % i) for i in range(400)])
    seen: set[tuple[int, int]] = set()

    async def drain(source: SourceClient, reader: object = None) -> None:
        reader, acker = reader or await source.read(), await source.ack()
        while len(seen) < 800:
            records, _ = await reader.batch(50, 100)  # type: ignore[attr-defined]
            if records:
                await acker.ack(*map(offset_of, records))
                seen.update(map(offset_of, records))

    async with start_source(topic) as one, start_source(topic) as two:
        reader = await one.read()
        await reader.collect(100)  # never acked
        both = asyncio.gather(drain(one), drain(two))
        while not (await two.stub.PartitionsFn(Empty())).result.partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        produce(kafka, topic, [(i % 4, b"%d" % i) for i in range(400, 800)])
        await both
        parts = [list((await s.stub.PartitionsFn(Empty())).result.partitions) for s in (one, two)]
        assert sorted(parts[0] + parts[1]) == [0, 1, 2, 3] and all(parts)
    assert seen == {(p, o) for p in range(4) for o in range(200)}


@pytest.mark.nightly
async def test_outage_is_reported_and_ends(kafka_jars: Path, tmp_path: Path, make_settings: MakeSettings) -> None:
    broker = RunningKafka(tmp_path)
    try:
        topic = create_topic(broker.bootstrap, 1)
        produce(broker.bootstrap, topic, [(0, b"x")] * 5)
        settings = make_settings(topic, kafka=broker.bootstrap, poll_seconds=0.1, drain_seconds=0.0)
        async with serve(settings) as running:
            source = SourceClient(running.address)
            async with source.channel:
                reader, acker = await source.read(), await source.ack()
                await reader.collect(5)
                await acker.ack((0, 0))
                while await health_of(source) != 1:  # noqa: ASYNC110  # the monitor asks for more than a read needs
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(broker.stop, signal.SIGKILL)
                while await health_of(source) == 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                records, status = await reader.batch(10, 200)
                assert records == []
                assert (status.code, status.error) == (status.FAILURE, status.OTHER) and "Kafka" in status.msg
                assert not (await source.stub.IsReady(Empty())).ready
                assert list((await source.stub.PartitionsFn(Empty())).result.partitions) == [0]
                assert await source.pending() == (-1, {})
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await source.pending(REPLAY)
                assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
                await acker.ack((0, 1))  # remembered; committed once Kafka is back
    finally:
        if broker.process.poll() is None:
            broker.stop(signal.SIGKILL)


async def test_missing_topic_is_not_serving(kafka: str, make_settings: MakeSettings) -> None:
    async with serve(make_settings("no-such-topic")) as running:
        source = SourceClient(running.address)
        async with source.channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await source.pending(REPLAY)
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
            assert await health_of(source) == 2


async def test_client_that_stops_reading_does_not_delay_a_stop(
    kafka: str, kafka_topic: MakeTopic, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream cannot take all records and none is acked: the drain takes its full time."""
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, bytes(100_000))] * 50)
    monkeypatch.setattr(lifecycle, "MIN_GRACE_SECONDS", 0.1)
    graces: list[float | None] = []
    async with serve(make_settings(topic, drain_seconds=0.5)) as running:
        stop = running.server.stop

        async def noted(grace: float | None) -> None:
            graces.append(grace)
            await stop(grace)

        monkeypatch.setattr(running.server, "stop", noted)
        source = SourceClient(running.address)
        reader, _ = await source.read(), await source.ack()
        request = pb.ReadRequest.Request(num_records=50, timeout_in_ms=5_000)
        for _ in range(50):
            await reader.call.write(pb.ReadRequest(request=request))
        assert (await reader.call.read()).HasField("result")
    assert graces == [0.1]
    async with source.channel:
        with pytest.raises(grpc.aio.AioRpcError):  # it was cut
            while await reader.call.read() is not grpc.aio.EOF:
                pass


async def test_question_about_a_missing_topic_does_not_create_it(kafka_jars: Path, tmp_path: Path) -> None:
    # the topic would get the broker's number of partitions instead of those of DEXORDER_GATEWAY_TOPICS
    broker = RunningKafka(tmp_path, properties=lambda *_: "auto.create.topics.enable=true\n")
    try:
        settings = UdsourceSettings(kafka=broker.bootstrap, topic="later", socket=None)
        monitor = TopicMonitor(settings)
        with pytest.raises(Unavailable, match="topic later: Broker: Unknown topic or partition"):
            await monitor.fresh(0)
        await monitor.close()
        assert "later" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    finally:
        broker.stop()


def environment(settings: UdsourceSettings, **more: str) -> Mapping[str, str]:
    names = ("kafka", "topic", "group")
    given = {f"DEXORDER_UDSOURCE_{name.upper()}": getattr(settings, name) for name in names}
    return {**os.environ, **given, "DEXORDER_UDSOURCE_METRICS_LISTEN": "", **more}


async def test_process_starts_by_environment_and_stops_by_sigterm(
    kafka: str, kafka_topic: MakeTopic, make_settings: MakeSettings, socket: Path
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    env = environment(make_settings(topic), DEXORDER_UDSOURCE_LISTEN=address, DEXORDER_UDSOURCE_SOCKET=str(socket))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dexorder_udsource", env=env)
    try:
        while not socket.with_name("sourcer-server-info").exists():
            assert process.returncode is None
            await asyncio.sleep(0.05)
        for target in (address, f"unix:{socket}"):
            source = SourceClient(target)
            async with source.channel:
                assert len(await source.replay(0, 0, 10)) == 10
        source = SourceClient(f"unix:{socket}")
        async with source.channel:
            reader, acker = await source.read(), await source.ack()
            await reader.collect(10)
            process.send_signal(signal.SIGTERM)
            await acker.ack(*((0, o) for o in range(10)))
            assert await reader.call.read() is grpc.aio.EOF
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
