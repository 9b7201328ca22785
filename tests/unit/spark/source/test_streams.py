"""The plain form of source.v1 against a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_spark.source.client import SourceBroken, SourceRefuses
from dexorder_spark.source.streams import AckRefused, PlainStreams
from tests.unit.spark.source.plain_source import PlainSource, RunningPlainSource, id_of, record, serving


@pytest.fixture
def running() -> Iterator[RunningPlainSource]:
    with serving(PlainSource([record(n) for n in range(10)])) as running:
        yield running


@pytest.fixture
def streams(running: RunningPlainSource) -> Iterator[PlainStreams]:
    streams = PlainStreams(running.address)
    yield streams
    streams.close()


def numbers(results: list[pb.ReadResponse.Result]) -> list[int]:
    return [int(result.payload) for result in results]


def test_reads_share_one_stream_and_acks_another(running: RunningPlainSource, streams: PlainStreams) -> None:
    first, second, third = streams.read(4, 10), streams.read(100, 10), streams.read(5, 10)
    assert (numbers(first), numbers(second), numbers(third)) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9], [])
    streams.ack([id_of(r) for r in first])
    streams.ack([id_of(r) for r in second])
    assert running.source.acks == [[id_of(r) for r in results] for results in (first, second)]
    assert running.source.pending == 0
    assert running.source.streams == 1


def test_many_acks_go_in_several_requests(running: RunningPlainSource, streams: PlainStreams) -> None:
    ids = [(0, b"%d" % n) for n in range(45_000)]
    streams.ack(ids)
    assert [len(group) for group in running.source.acks] == [20_000, 20_000, 5_000]
    assert running.source.acked == ids


def test_a_cut_read_returns_the_received_records_and_the_next_opens_a_stream(
    running: RunningPlainSource, streams: PlainStreams
) -> None:
    running.source.cut_after = [3, 0]
    assert numbers(streams.read(5, 10)) == [0, 1, 2]
    with pytest.raises(Unavailable, match=f"{running.address}.*ended"):
        streams.read(5, 10)
    assert numbers(streams.read(100, 10)) == list(range(10)), "unacked, so they come again"
    assert running.source.streams == 3


def test_a_failed_read_keeps_its_stream(running: RunningPlainSource, streams: PlainStreams) -> None:
    running.source.failures = ["no broker", "no broker"]
    assert numbers(streams.read(10, 10)) == list(range(10)), "what came before the failure"
    with pytest.raises(Unavailable, match=f"{running.address}: the source failed: no broker"):
        streams.read(5, 10)
    assert streams.read(5, 10) == []
    assert running.source.streams == 1


def test_a_source_may_be_unavailable_for_a_time(running: RunningPlainSource, streams: PlainStreams) -> None:
    ids = [id_of(r) for r in streams.read(3, 10)]
    streams.ack(ids[:1])
    running.stop()
    with pytest.raises(Unavailable, match=running.address):
        streams.read(3, 10)
    with pytest.raises(Unavailable, match=r"ack of 2 records from partition 1, offset b'o-1' on"):
        streams.ack(ids[1:])
    running.start()
    for _ in range(200):  # the channel reconnects by itself
        try:
            assert numbers(streams.read(100, 10)) == list(range(1, 10))
            break
        except Unavailable:
            threading.Event().wait(0.05)
    streams.ack(ids[1:])
    assert running.source.acked == ids


def test_a_silent_source_is_given_up(running: RunningPlainSource) -> None:
    running.source.hang = threading.Event()
    streams = PlainStreams(running.address, answer_seconds=2)
    with pytest.raises(Unavailable, match=r"no answer within 2\.01 s"):
        streams.read(5, 10)
    running.source.hang.set()
    running.source.hang = None  # the read that hung gives nothing any more
    assert numbers(streams.read(5, 10)) == [0, 1, 2, 3, 4]
    streams.close()


def test_a_closing_reader_half_closes_its_calls(running: RunningPlainSource, streams: PlainStreams) -> None:
    streams.read(4, 10)
    streams.close()
    assert (running.source.streams, running.source.left) == (1, 1), "not cancelled: some sources stop at that"
    assert numbers(streams.read(4, 10)) == [0, 1, 2, 3]


def message(payload: bytes = b"", offset: bytes = b"") -> bytes:
    result = pb.ReadResponse.Result(payload=payload, offset=pb.Offset(offset=offset, partition_id=3))
    return pb.ReadResponse(result=result).SerializeToString()


GOOD = message(offset=b"a")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (lambda: [b"\xff\xff"], r"record 1 of a read: it is not a ReadResponse"),
        (lambda: [GOOD, GOOD[:-2]], r"record 2 of a read \(after partition 3, offset b'a'\): it is not a ReadResponse"),
        (lambda: [message(payload=b"x")], r"record 1 of a read: it lacks an offset"),
        (
            lambda: [GOOD, message(bytes(64 << 20), b"b")],
            r"record 2 of a read \(after partition 3, offset b'a'\): RESOURCE_EXHAUSTED: .*larger than max",
        ),
    ],
    ids=["garbage", "cut", "no offset", "too large"],
)
def test_a_record_that_cannot_be_read_is_named(
    running: RunningPlainSource, streams: PlainStreams, raw: Callable[[], list[bytes]], reason: str
) -> None:
    running.source.raw = raw()
    with pytest.raises(SourceBroken, match=f"source {running.address}, {reason}"):
        streams.read(100, 10)


def test_the_last_record_of_the_read_before_names_the_place(running: RunningPlainSource, streams: PlainStreams) -> None:
    streams.read(4, 10)
    running.source.raw = [b"\xff\xff"]
    with pytest.raises(SourceBroken, match=r"record 1 of a read \(after partition 1, offset b'o-3'\)"):
        streams.read(4, 10)


def test_a_server_of_something_else_is_refused_by_its_address() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    streams = PlainStreams(f"127.0.0.1:{port}")
    try:
        with pytest.raises(SourceRefuses, match=f"source 127.0.0.1:{port}.*UNIMPLEMENTED"):
            streams.read(1, 10)
        with pytest.raises(AckRefused, match=f"source 127.0.0.1:{port}.*UNIMPLEMENTED"):
            streams.ack([(0, b"1")])
    finally:
        streams.close()
        server.stop(None).wait()


def test_a_refused_ack_differs_from_a_lost_one(running: RunningPlainSource, streams: PlainStreams) -> None:
    ids = [id_of(r) for r in streams.read(2, 10)]
    running.source.refusals = 1
    with pytest.raises(AckRefused, match="never handed out"):
        streams.ack(ids)
    running.source.refusals = 0
    running.source.lost_acks = 1
    with pytest.raises(Unavailable, match="UNAVAILABLE: lost"):
        streams.ack(ids)
    streams.ack(ids)
    assert running.source.acks == [ids, ids]
