from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_spark.source.client import SourceBroken, SourceClient, SourceRefuses
from dexorder_spark.source.offsets import OffsetRange, SourceState
from dexorder_spark.source.replay import ack_before
from tests.fakes.source_server import FakeRecord, FakeSource, RunningSource
from tests.unit.spark.source.plain_source import PlainSource, serving


@pytest.fixture
def source() -> Iterator[RunningSource]:
    fake = FakeSource(partitions=2)
    for n in range(10):
        fake.add(0, b"p%d" % n, key=f"k{n}", headers={"h": str(n)})
    running = RunningSource(fake)
    yield running
    running.stop()


def read(source: RunningSource, start: int, end: int, limit: int = 4, retry_seconds: float = 5.0) -> list[int]:
    client = SourceClient(source.address)
    parts = client.read(OffsetRange(0, start, end), limit=limit, retry_seconds=retry_seconds)
    return [int(r.offset.offset) for results in parts for r in results]


def test_state_comes_from_the_metadata(source: RunningSource) -> None:
    source.fake.committed[0] = 3
    assert SourceClient(source.address).state() == SourceState({0: 0, 1: 0}, {0: 10, 1: 0}, {0: 3})


def test_a_range_is_read_completely_and_identically_again(source: RunningSource) -> None:
    assert read(source, 2, 9) == read(source, 2, 9) == list(range(2, 9))


def test_holes_of_compaction_are_no_error_even_at_the_end(source: RunningSource) -> None:
    for offset in (3, 4, 8, 9):
        source.fake.drop(0, offset)
    assert read(source, 2, 10) == [2, 5, 6, 7]
    assert read(source, 8, 10) == []


def test_a_stream_cut_in_a_read_continues_after_the_last_record(source: RunningSource) -> None:
    source.fake.cut_after = [6, 1, 0]
    assert read(source, 0, 10) == list(range(10))
    assert source.fake.reads == [(0, 0, 10), (0, 4, 10), (0, 4, 10), (0, 4, 10)]


def test_a_source_that_ends_early_for_good_is_an_error_that_names_the_offset(source: RunningSource) -> None:
    source.fake.cut_after = [5] + [0] * 50
    with pytest.raises(Unavailable, match=r"partition 0 at offset 4 of \[0, 10\).*ended early"):
        read(source, 0, 10, retry_seconds=0.2)


def test_an_unrequested_offset_names_the_expected_one(source: RunningSource) -> None:
    source.fake.logs[0] = [FakeRecord(3, b"")] * 2
    with pytest.raises(
        SourceBroken, match=rf"source {source.address}, partition 0, at offset 4 .* received offset b'3'"
    ):
        read(source, 3, 5)


def test_a_source_without_replay_is_recognized(source: RunningSource) -> None:
    source.fake.can_replay = False
    with pytest.raises(NotImplementedError, match="x-ends"):
        SourceClient(source.address).state()


def test_a_source_without_its_kafka_is_unavailable_until_kafka_returns(source: RunningSource) -> None:
    source.fake.kafka_is_available = False
    with pytest.raises(Unavailable, match="does not know its offsets"):
        SourceClient(source.address).state()
    source.fake.kafka_is_available = True
    assert SourceClient(source.address).state().ends[0] == 10


def test_a_stopped_source_is_unavailable_until_it_returns(source: RunningSource) -> None:
    source.stop()
    client = SourceClient(source.address)
    with pytest.raises(Unavailable):
        client.state()
    with pytest.raises(Unavailable, match="partition 0 at offset 0"):
        read(source, 0, 5, retry_seconds=0.2)
    source.start()
    assert read(source, 0, 5) == [0, 1, 2, 3, 4]


def test_acks_cover_everything_before_the_end(source: RunningSource) -> None:
    client = SourceClient(source.address)
    ack_before(client, {0: 7, 1: 0})
    assert source.fake.committed == {0: 7}
    ack_before(client, {0: 7, 1: 0})
    assert source.fake.ack_calls == [[(0, 6)]], "nothing new, no call"


def test_an_ack_the_source_refuses_is_an_error(source: RunningSource) -> None:
    with pytest.raises(Unavailable, match="INVALID_ARGUMENT"):
        SourceClient(source.address).ack({0: 99})


def record(offset: int, payload: bytes = b"x") -> bytes:
    result = pb.ReadResponse.Result(payload=payload, offset=pb.Offset(offset=b"%d" % offset, partition_id=1))
    return pb.ReadResponse(result=result).SerializeToString()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ([b"\xff\xff"], r"at offset 2 or later: record 1 of a read is not a ReadResponse"),
        ([record(2), b"\xff\xff"], r"at offset 3 or later: record 2 of a read is not a ReadResponse"),
        ([record(2), None], r"at offset 3 or later: RESOURCE_EXHAUSTED: .*larger than max"),
    ],
    ids=["garbage", "garbage after a record", "too large"],
)
def test_a_record_that_cannot_be_read_is_named_at_once(raw: list[bytes | None], reason: str) -> None:
    large = record(3, bytes(64 << 20)) if None in raw else b""
    with serving(PlainSource()) as running:
        running.source.raw = [large if message is None else message for message in raw]
        parts = SourceClient(running.address).read(OffsetRange(1, 2, 9))
        with pytest.raises(SourceBroken, match=f"source {running.address}, partition 1, {reason}"):
            list(parts)


def test_a_server_of_something_else_is_refused_at_once() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = SourceClient(f"127.0.0.1:{port}")
    try:
        with pytest.raises(SourceRefuses, match=f"source 127.0.0.1:{port}: UNIMPLEMENTED"):
            client.state()
        with pytest.raises(SourceBroken, match="partition 3, at offset 7 or later: UNIMPLEMENTED"):
            list(client.read(OffsetRange(3, 7, 9)))
    finally:
        server.stop(None).wait()


def test_another_topic_is_named_in_the_metadata_of_every_call() -> None:
    ticks = FakeSource(partitions=1)
    running = RunningSource(FakeSource(partitions=1), topics={"dexorder.ticks": ticks})
    try:
        ticks.add(0, b"tick")
        running.fake.add(0, b"candle")
        running.fake.add(0, b"candle")
        other, main = SourceClient(f"{running.address}#dexorder.ticks"), SourceClient(running.address)
        assert (other.state().ends, main.state().ends) == ({0: 1}, {0: 2})
        assert [r.payload for part in other.read(OffsetRange(0, 0, 1)) for r in part] == [b"tick"]
        other.ack({0: 0})
        assert (ticks.committed, running.fake.committed) == ({0: 1}, {})
        ticks.has_topics = False
        with pytest.raises(NotImplementedError, match="has only one topic"):
            other.state()
    finally:
        running.stop()
