"""``format("udsource")`` in a real Spark: both ways to read, every trigger, and a source made with pynumaflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dexorder_protos.source.v1 import source_pb2_grpc as rpc
from dexorder_spark.source.in_flight import RecordId
from dexorder_spark.source.offsets import from_json
from tests.fakes.pipeline import wait_until
from tests.fakes.source_server import FakeSource, RunningSource
from tests.peers.memory_source import memory_source
from tests.unit.spark.source.plain_source import PlainSource, RunningPlainSource, record, serving

pytestmark = [pytest.mark.smoke, pytest.mark.spark, pytest.mark.timeout(300)]  # a cold first batch on a busy machine


class Sink:
    """Collector of the batches' rows. ``die_at`` fails that batch once, after its write."""

    def __init__(self, die_at: int | None = None) -> None:
        self.batches: list[list[tuple[int, bytes, bytes]]] = []
        self._die_at = die_at

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset_bytes", "payload").collect()
        self.batches.append([(row.partition, bytes(row.offset_bytes), bytes(row.payload)) for row in rows])
        if batch_id == self._die_at:
            self._die_at = None
            raise RuntimeError("die")

    @property
    def ids(self) -> list[RecordId]:
        return [(partition, offset) for batch in self.batches for partition, offset, _ in batch]

    @property
    def numbers(self) -> list[int]:
        return [int(payload.rstrip(b".")) for batch in self.batches for _, _, payload in batch]


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    started: list[StreamingQuery] = []

    def start(address: str, sink: Sink, *, now: bool = False, **options: Any) -> StreamingQuery:
        stream = spark.readStream.format("udsource").options(address=address, readTimeoutMs="50", **options).load()
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        started.append(writer.start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


@pytest.fixture
def plain() -> Iterator[RunningPlainSource]:
    with serving(PlainSource()) as running:
        yield running


@pytest.fixture
def replayed() -> Iterator[RunningSource]:
    running = RunningSource(FakeSource(partitions=2))
    yield running
    running.stop()


def fill(source: PlainSource, first: int, last: int) -> None:
    source.add(*(record(number) for number in range(first, last)))


def test_a_plain_source_is_read_once_and_acked_while_idle_after_the_commit_log(
    start: Start, plain: RunningPlainSource, tmp_path: Path
) -> None:
    source, sink = plain.source, Sink()
    early: list[int] = []
    source.waits_for_acks = True  # the last batch's ack brings the next batch, so commit() alone would hang
    commits = tmp_path / "checkpoint" / "commits"

    def on_ack(ids: list[RecordId]) -> None:
        batches = [number for number, batch in enumerate(sink.batches) if {i[:2] for i in batch} & set(ids)]
        early.extend(number for number in batches if not (commits / str(number)).exists())

    source.on_ack = on_ack
    fill(source, 0, 25)
    query = start(plain.address, sink, maxRecordsPerBatch="10")
    wait_until(lambda: source.pending == 0 or not query.isActive)
    assert query.exception() is None
    fill(source, 25, 30)
    wait_until(lambda: source.pending == 0 or not query.isActive)
    assert sink.numbers == list(range(30))
    assert source.acked == sink.ids
    assert not early
    assert max(map(len, sink.batches)) == 10


def test_a_plain_source_sends_the_records_of_a_failed_batch_again(start: Start, plain: RunningPlainSource) -> None:
    source, sink = plain.source, Sink(die_at=1)
    fill(source, 0, 25)
    with pytest.raises(StreamingQueryException, match="die"):
        start(plain.address, sink, maxRecordsPerBatch="10").awaitTermination(240)
    assert source.pending == 15, "the first batch is acked, the second is not"
    query = start(plain.address, sink, maxRecordsPerBatch="10")
    wait_until(lambda: source.pending == 0 or not query.isActive)
    assert query.exception() is None
    assert sorted(sink.numbers) == sorted([*range(25), *range(10, 20)])
    assert source.streams == 2


def test_a_record_that_cannot_be_read_fails_the_query_by_name(start: Start, plain: RunningPlainSource) -> None:
    plain.source.raw = [b"\xff\xff"]
    query = start(plain.address, Sink())
    with pytest.raises(StreamingQueryException, match=f"source {plain.address}, record 1 of a read"):
        query.awaitTermination(240)


def test_a_missing_source_fails_the_query_by_its_address(start: Start, plain: RunningPlainSource) -> None:
    plain.stop()
    query = start(plain.address, Sink(), retrySeconds="1")
    with pytest.raises(StreamingQueryException, match=f"source {plain.address}: UNAVAILABLE"):
        query.awaitTermination(240)


def test_a_plain_source_is_read_as_a_batch_with_all_columns(spark: SparkSession, plain: RunningPlainSource) -> None:
    fill(plain.source, 0, 7)
    frame = spark.read.format("udsource").options(address=plain.address, readTimeoutMs="50").load()
    assert frame.columns == ["payload", "key", "headers", "event_time", "partition", "offset", "keys", "offset_bytes"]
    rows = frame.collect()
    assert [bytes(row.payload) for row in rows] == [b"%d" % number for number in range(7)]
    assert (rows[3].key, rows[3].keys, rows[3].headers) == ("k3", ["k3", "second"], {"n": "3"})
    assert (rows[3].partition, rows[3].offset, bytes(rows[3].offset_bytes)) == (1, None, b"o-3")
    assert rows[3].event_time.timestamp() == 1_700_000_000.003
    assert plain.source.acks == []
    with pytest.raises(Exception, match=f"startingOffsets needs a source that can replay; {plain.address}"):
        frame = spark.read.format("udsource").options(address=plain.address, startingOffsets="earliest").load()
        frame.collect()


def test_a_source_with_replay_is_acked_while_idle_after_the_commit_log(
    start: Start, replayed: RunningSource, tmp_path: Path
) -> None:
    for number in range(50):
        replayed.fake.add(number % 2, b"%d" % number)
    early: list[tuple[int, int]] = []
    folder = str(tmp_path / "checkpoint")
    replayed.fake.on_ack = lambda acks: early.extend(ack for ack in acks if ack not in settled(folder))
    sink = Sink()
    query = start(replayed.address, sink, maxRecordsPerBatch="20", ack="true")
    wait_until(lambda: replayed.fake.committed == replayed.fake.ends or not query.isActive)
    assert query.exception() is None
    assert sorted(sink.numbers) == list(range(50))
    assert not early


def test_available_now_reads_ten_times_the_cap_of_a_source_that_can_replay(
    start: Start, replayed: RunningSource
) -> None:
    sink = Sink()
    for first in (0, 100):
        for number in range(first, first + 100):
            replayed.fake.add(number % 2, b"%d" % number)
        query = start(replayed.address, sink, now=True, drain="true", maxRecordsPerBatch="10", ack="true")
        assert query.awaitTermination(240)
        assert sorted(sink.numbers) == list(range(first + 100))
        assert sum(replayed.fake.committed.values()) == first, "the next run acks the last batch"


def test_a_checkpoint_of_another_kind_is_refused(
    start: Start, plain: RunningPlainSource, replayed: RunningSource
) -> None:
    replayed.fake.add(0, b"0")
    assert start(replayed.address, Sink(), now=True, drain="true").awaitTermination(240)
    with pytest.raises(StreamingQueryException, match="the checkpoint was started with replay"):
        start(plain.address, Sink(), replay="never").awaitTermination(240)


def test_a_source_made_with_pynumaflow_is_read_and_acked_to_the_last_record(start: Start, tmp_path: Path) -> None:
    sink = Sink()
    with memory_source(folder_of(tmp_path), records=2_000, payload_bytes=100, partitions=3) as source:
        query = start(source.target, sink, maxRecordsPerBatch="300")
        wait_until(lambda: source.counts()["acked"] == 2_000 or not query.isActive)
        assert query.exception() is None
        assert sorted(sink.numbers) == list(range(2_000))
        assert source.counts() == {"acked": 2_000, "acks": len(sink.batches), "nacked": 0, "unknown": 0}
        assert pending(source.target) == 0
        query.stop()  # not before: a reader that vanishes in a read ends this source


def test_a_pynumaflow_source_sends_the_records_of_a_killed_query_again(start: Start, tmp_path: Path) -> None:
    sink = Sink(die_at=2)
    with memory_source(folder_of(tmp_path), records=2_000, partitions=2, redeliver=True) as source:
        with pytest.raises(StreamingQueryException, match="die"):
            start(source.target, sink, maxRecordsPerBatch="300").awaitTermination(240)
        assert 0 < pending(source.target) < 2_000
        query = start(source.target, sink, maxRecordsPerBatch="300")
        wait_until(lambda: source.counts()["acked"] == 2_000 or not query.isActive)
        assert query.exception() is None
        assert set(sink.numbers) == set(range(2_000))
        assert len(sink.numbers) == 2_000 + len(sink.batches[2]), "the batch that failed behind its write, and no other"
        assert source.counts()["unknown"] == 0
        assert pending(source.target) == 0
        query.stop()


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def pending(target: str) -> int:
    with grpc.insecure_channel(target) as channel:
        return int(rpc.SourceStub(channel).PendingFn(Empty(), timeout=30).result.count)


def settled(checkpoint: str) -> set[tuple[int, int]]:
    """Return partition and last offset of every batch in Spark's commit log."""
    found = set()
    for commit in (Path(checkpoint) / "commits").glob("[0-9]*"):
        ends = json.loads((Path(checkpoint) / "offsets" / commit.name).read_text().splitlines()[-1])
        found |= {(partition, end - 1) for partition, end in from_json(ends).items()}
    return found
