"""Replays against a real server and a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.source.options import SourceOptions
from dexorder_udsource import topic_monitor
from dexorder_udsource.server import serve
from tests.integration.services.common.kafka.group_reader import create_again
from tests.integration.services.udsource.client import REPLAY, Metadata, offset_of, produce, range_of
from tests.integration.services.udsource.conftest import MakeSettings, StartSource
from tests.unit.spark.source.engine import Checkpoint, Engine, Row

pytestmark = pytest.mark.kafka
MakeTopic = Callable[[int], str]


async def test_ranges_are_the_same_each_time(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    topic = kafka_topic(3)
    produce(kafka, topic, [(i % 3, b"%d" % i) for i in range(600)], headers=[("h", b"1"), ("h", b"2")])
    async with start_source(topic) as source:
        ranges = [(0, 0, 200), (1, 17, 180), (2, 199, 200), (0, 0, 200), (1, 17, 180), (0, 5, 5)]
        first = await asyncio.gather(*(source.replay(*r, most=37) for r in ranges))
        again = await asyncio.gather(*(source.replay(*r, most=1000) for r in ranges))
    assert first == again
    for (partition, start, end), records in zip(ranges, first, strict=True):
        assert [offset_of(r) for r in records] == [(partition, o) for o in range(start, end)]
        assert [r.result.payload for r in records] == [b"%d" % (o * 3 + partition) for o in range(start, end)]
        assert all(list(r.result.keys) == ["k"] and dict(r.result.headers) == {"h": "2"} for r in records)


async def test_adjacent_ranges_follow_one_another(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    topic = kafka_topic(1)
    async with start_source(topic) as source:
        for start in range(0, 500, 50):
            produce(kafka, topic, [(0, b"%d" % i) for i in range(start, start + 50)])
            records = await source.replay(0, start, start + 50, most=20)
            assert [int(r.result.payload) for r in records] == list(range(start, start + 50))


async def test_pending_reports_ends_and_commits(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    topic = kafka_topic(2)
    async with start_source(topic) as source:
        assert await source.pending(REPLAY) == (0, {"x-starts": "0:0,1:0", "x-ends": "0:0,1:0", "x-committed": ""})
        produce(kafka, topic, [(0, b"x")] * 17 + [(1, b"x")] * 20)
        await asyncio.sleep(0.06)  # longer than an answer is remembered
        assert await source.pending(REPLAY) == (37, {"x-starts": "0:0,1:0", "x-ends": "0:17,1:20", "x-committed": ""})
        acker = await source.ack(REPLAY)
        await acker.ack((0, 9), (1, 4))
        await acker.ack((0, 3))  # below the commit: nothing moves back
    async with start_source(topic) as source:
        count, told = await source.pending(REPLAY)
        assert (count, told["x-committed"]) == (22, "0:10,1:5")
        assert (await source.pending())[0] == 37  # the plain group has acked nothing


async def test_replays_of_further_topics_have_offsets_and_commits_of_their_own(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource
) -> None:
    main, ticks, other = kafka_topic(2), kafka_topic(1), kafka_topic(1)
    produce(kafka, main, [(0, b"candle")] * 3)
    produce(kafka, ticks, [(0, b"tick %d" % n) for n in range(5)])
    of_ticks: Metadata = (("x-topic", ticks),)
    async with start_source(main, replay_topics=f" {ticks} ,{ticks}-none") as source:
        told = {"x-starts": "0:0", "x-ends": "0:5", "x-committed": "", "x-topic": ticks}
        assert await source.pending((*REPLAY, *of_ticks)) == (5, told)
        assert (await source.pending(REPLAY))[0] == 3
        reader = await source.read((*range_of(0, 1, 4), *of_ticks))
        assert [r.result.payload for r in await reader.collect(3)] == [b"tick 1", b"tick 2", b"tick 3"]
        acker = await source.ack((*REPLAY, *of_ticks))
        await acker.ack((0, 2))
        for metadata, code in (
            ((*REPLAY, ("x-topic", other)), grpc.StatusCode.INVALID_ARGUMENT),
            ((*REPLAY, ("x-topic", f"{ticks}-none")), grpc.StatusCode.UNAVAILABLE),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await source.pending(metadata)
            assert refused.value.code() is code
        assert (await source.pending(REPLAY))[0] == 3, "the health of one topic is not that of another"
    async with start_source(main, replay_topics=ticks) as source:
        assert (await source.pending((*REPLAY, *of_ticks)))[1]["x-committed"] == "0:3"
        assert (await source.pending(REPLAY))[1]["x-committed"] == ""


@pytest.mark.parametrize("call", ["read", "ack"])
async def test_only_replays_can_name_a_topic(kafka_topic: MakeTopic, start_source: StartSource, call: str) -> None:
    async with start_source(kafka_topic(1)) as source:
        with pytest.raises((grpc.aio.AioRpcError, AssertionError), match="only replays can name a topic"):
            stream = await getattr(source, call)((("x-topic", "dexorder.ticks"),))
            await stream.call.read()
            raise AssertionError(await stream.call.details())


async def test_every_replay_group_has_its_own_commits(
    kafka: str, kafka_topic: MakeTopic, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_monitor, "MAX_REPLAY_GROUPS", 2)  # connections come and go
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)

    def group(name: str) -> Metadata:
        return (*REPLAY, ("x-group", name))

    async with start_source(topic) as source:
        for name, offset in (("a", 1), ("b", 3), ("c", 5)):
            await (await source.ack(group(name))).ack((0, offset))
        for name, count in (("a", 8), ("b", 6), ("c", 4), ("d", 10)):
            assert (await source.pending(group(name)))[0] == count
        assert (await source.pending(REPLAY))[0] == (await source.pending())[0] == 10
        with pytest.raises(grpc.aio.AioRpcError, match="x-group 'a b' is not"):
            await source.pending(group("a b"))


@pytest.mark.parametrize(
    ("metadata", "code", "text"),
    [
        (range_of(0, 0, 11), grpc.StatusCode.INVALID_ARGUMENT, "x-end 11 is beyond the end 10 of partition 0"),
        (range_of(7, 0, 1), grpc.StatusCode.INVALID_ARGUMENT, "x-partition 7"),
        (range_of(0, 5, 4), grpc.StatusCode.INVALID_ARGUMENT, "x-end 4 is before x-start 5"),
        ((("x-partition", "0"),), grpc.StatusCode.INVALID_ARGUMENT, "x-start is missing"),
        ((*range_of(0, 0, 1)[:2], ("x-end", "-1")), grpc.StatusCode.INVALID_ARGUMENT, "x-end '-1'"),
    ],
)
async def test_bad_ranges_are_refused(
    kafka: str,
    kafka_topic: MakeTopic,
    start_source: StartSource,
    metadata: tuple[tuple[str, str], ...],
    code: grpc.StatusCode,
    text: str,
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        call = source.stub.ReadFn(metadata=metadata)
        await call.write(pb.ReadRequest(handshake=pb.Handshake(sot=True)))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() == code
        assert text in str(failed.value.details())


async def test_ack_beyond_the_log_is_refused(kafka: str, kafka_topic: MakeTopic, start_source: StartSource) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    async with start_source(topic) as source:
        acker = await source.ack(REPLAY)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await acker.ack((0, 4), (0, 10))
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (await source.pending(REPLAY))[1]["x-committed"] == ""


@pytest.mark.parametrize("count", [4, 20], ids=["shorter", "longer"])
async def test_topic_created_again_fails_a_query_of_spark_or_is_read_from_its_beginning(
    kafka: str, kafka_topic: MakeTopic, make_settings: MakeSettings, count: int
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"x")] * 10)
    rows: list[Row] = []
    checkpoint = Checkpoint()

    def polled(address: str, **options: bool) -> None:
        Engine(SourceOptions(address, retry_seconds=30, **options), checkpoint, rows.extend).run_to_idle()  # type: ignore[arg-type]

    async with serve(make_settings(topic)) as running:
        await asyncio.to_thread(polled, running.address)
        await asyncio.to_thread(create_again, kafka, topic, 1)
        produce(kafka, topic, [(0, b"x")] * count)
        with pytest.raises(SourceBroken, match=r"its topic has id .* instead of .*failOnDataLoss=false"):
            while True:  # the broker may still know the old topic
                await asyncio.to_thread(polled, running.address)
        rows.clear()
        await asyncio.to_thread(polled, running.address, fail_on_data_loss=False)
        assert [row["offset"] for row in rows] == list(range(count))
