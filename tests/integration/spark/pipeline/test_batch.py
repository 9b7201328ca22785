"""The whole way from a source.v1 server to Iceberg, in one warm Spark session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.commit_state import state_of
from dexorder_common.lake.tables import DEAD_LETTERS, OHLC
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.page import PageHeaders
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_spark.config import SparkSettings
from dexorder_spark.metrics import Metrics
from dexorder_spark.pipeline import presence
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.pipeline.page_source import page_source
from dexorder_spark.records.reporter import FinalReport
from dexorder_spark.runtime import java_commits
from dexorder_spark.source.client import SourceClient
from dexorder_spark.table_driver import QueryFailed, QueryRules, TableDriver, start_query
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from tests.fakes.pages import DAY, MINUTE_NS, control, dispatch_id, final, page, span
from tests.fakes.pipeline import Oracle, Recorder, frame, ns, wait_until
from tests.fakes.source_server import FakeSource, RunningSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]  # a cold first batch on a busy machine


@pytest.fixture
def source() -> Iterator[RunningSource]:
    running = RunningSource(FakeSource(partitions=2))
    yield running
    running.stop()


@dataclass
class Rig:
    """A warm session, a catalog with the tables, and a source."""

    spark: SparkSession
    trading: CatalogSettings
    source: RunningSource

    def settings(self, **changes: Any) -> SparkSettings:
        return SparkSettings(listen="127.0.0.1:0", source=self.source.address, **changes)

    def pipeline(self, recorder: Recorder) -> Pipeline:
        return Pipeline(CANDLES, self.trading, self.source.address, recorder)

    def run(self, pipeline: Pipeline, **changes: Any) -> StreamingQuery:
        """Start a query where the table ends."""
        self.spark.dataSource.register(page_source(CANDLES, self.trading))
        start = pipeline.resume(SourceClient(self.source.address).state())

        def process(frame: DataFrame) -> None:
            pipeline.process(frame)

        return start_query(self.spark, CANDLES, QueryRules.of(CANDLES, self.settings(**changes)), process, start)

    @contextmanager
    def driving(self, recorder: Recorder, **given: Any) -> Iterator[None]:
        """Run a driver meanwhile."""
        stop = threading.Event()
        thread = threading.Thread(target=self.driver(stop, **given).drive, args=(self.spark, recorder))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(240)

    def driver(
        self,
        stop: threading.Event,
        table: PageTable = CANDLES,
        registry: CollectorRegistry | None = None,
        on_ready: Callable[[bool], None] = lambda now: None,
        **changes: Any,
    ) -> TableDriver:
        metrics = Metrics(registry or CollectorRegistry()).of(table.name)
        return TableDriver(self.settings(**changes), self.trading, table, stop=stop, on_ready=on_ready, metrics=metrics)


@pytest.fixture
def rig(spark: SparkSession, trading: CatalogSettings, source: RunningSource) -> Rig:
    return Rig(spark, trading, source)


def test_a_stream_of_pages_becomes_exactly_the_rows_of_the_oracle(rig: Rig) -> None:
    oracle, recorder = Oracle(rig.source.fake), Recorder()
    oracle.send_history()
    pipeline = rig.pipeline(recorder)
    query = rig.run(pipeline, max_records_per_batch=3)
    query.processAllAvailable()
    oracle.send(control(80, 10, page=4))
    query.processAllAvailable()
    query.stop()
    oracle.check(rig.trading)
    assert recorder.calls == 4, "three capped batches and the late page"
    assert sorted(p.rows for p in recorder.pages) == sorted([20] * 5 + [30, 0, 5, 5, 10])
    newest = rig.trading.load().load_table(OHLC.name).current_snapshot()
    assert newest and recorder.snapshots[-1] == newest.snapshot_id
    through_spark = rig.spark.sql(f"SELECT count(*), sum(open) FROM {rig.trading.name}.{OHLC.name}").collect()[0]
    assert tuple(through_spark) == (len(oracle.rows), sum(price for *_, price in oracle.rows.values()))
    files = [path.name for path in Path(str(rig.trading.warehouse).removeprefix("file://")).rglob("*")]
    assert any(name.endswith(".parquet") for name in files)
    assert not [name for name in files if name.endswith(".crc")], "each would cost a process"


def test_a_repeated_batch_changes_nothing_and_is_reported_again(spark: SparkSession, trading: CatalogSettings) -> None:
    oracle, recorder = Oracle(FakeSource()), Recorder()
    oracle.send_history()
    records = [(r.payload, r.headers) for log in oracle.source.logs.values() for r in log]
    records.append(final(control(0, 80), 80))
    pipeline = Pipeline(CANDLES, trading, "test", recorder)
    first = pipeline.process(frame(spark, records))
    oracle.check(trading)
    snapshots = trading.load().load_table(OHLC.name).metadata.snapshots
    second = pipeline.process(frame(spark, records))
    oracle.check(trading)
    assert trading.load().load_table(OHLC.name).metadata.snapshots == snapshots, "nor is a claim written again"
    assert (first.path, second.path) == ("rewrite", "none"), "some of its pages share keys"
    assert recorder.pages[: len(recorder.pages) // 2] == recorder.pages[len(recorder.pages) // 2 :]
    assert recorder.finals == [FinalReport(dispatch_id(1), ingest_pb2.DataResponse.OK, None, 80)] * 2


def test_new_pages_are_appended_present_ones_unchanged_and_newer_ones_merged(
    spark: SparkSession, trading: CatalogSettings
) -> None:
    def go(job: int, price: float, *spans: tuple[int, int]) -> tuple[str, dict[int, float]]:
        heads = [
            control(first, count, job=job, page=n, fetched_s=1_000 - job) for n, (first, count) in enumerate(spans)
        ]
        path = pipeline.process(frame(spark, [page(head, price) for head in heads])).path
        found = trading.load().load_table(OHLC.name).scan().to_arrow()
        rows = {(ns(row["open_time"]) - DAY) // MINUTE_NS: row["open"] for row in found.to_pylist()}
        assert len(rows) == found.num_rows
        return path, rows

    pipeline = Pipeline(CANDLES, trading, "test", Recorder())
    old = dict.fromkeys(range(40), 100.0)
    assert go(10, 100.0, (0, 20), (20, 20)) == ("append", old)
    assert go(10, 100.0, (0, 20), (20, 20)) == ("none", old)
    assert go(9, 90.0, (10, 5)) == ("none", old)
    assert go(11, 110.0, (35, 10)) == ("rewrite", old | dict.fromkeys(range(35, 45), 110.0))
    assert go(11, 120.0, (100, 5), (45, 5))[0] == "append"
    snapshots = len(trading.load().load_table(OHLC.name).metadata.snapshots)
    assert snapshots == 3, "a batch that is there already commits nothing"
    files = Path(str(trading.warehouse).removeprefix("file://"), *OHLC.name.split("."), "data").rglob("*.parquet")
    known = trading.load().load_table(OHLC.name).inspect.all_files().column("file_path").to_pylist()
    assert {str(path) for path in files} == {unquote(urlsplit(path).path) for path in known}, "the others are removed"


def named(trading: CatalogSettings) -> tuple[int | None, set[str]]:
    """Return the table's snapshot, and all files that its snapshots need."""
    table = trading.load().load_table(OHLC.name)
    names = {each.manifest_list for each in table.metadata.snapshots}
    for listed, column in ((table.inspect.all_manifests(), "path"), (table.inspect.all_files(), "file_path")):
        names |= set(map(str, listed.column(column).to_pylist()))
    return table.metadata.current_snapshot_id, {unquote(urlsplit(each).path) for each in names}


def test_a_large_overlap_is_merged_by_spark_with_its_state(
    spark: SparkSession, trading: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pipeline(CANDLES, trading, "other", Recorder()).process(frame(spark, [page(control(0, 40, job=1))]))
    pipeline = Pipeline(CANDLES, trading, "test", Recorder())
    monkeypatch.setattr(presence, "MAX_READ_BYTES", 0)
    synced: dict[str, int | None] = {}
    monkeypatch.setattr(java_commits, "sync_file", lambda path: synced.update({str(path): named(trading)[0]}))
    records = [page(control(20, 30, job=2), 200.0), page(control(30, 5, job=3), 300.0)]
    ends = {0: 2}
    for _ in range(2):
        synced.clear()
        before, known = named(trading)
        assert pipeline.process(frame(spark, records)).path == "merge"
        after, names = named(trading)
        assert {*names - known} == synced.keys(), "files of Java are on disk"
        assert {*synced.values()} <= {before} and (not synced or after != before), "before the catalog names them"
        found = trading.load().load_table(OHLC.name)
        rows = found.scan().to_arrow().to_pylist()
        assert sorted((row["dispatch"], row["open"]) for row in rows) == (
            [(1, 100.0)] * 20 + [(2, 200.0)] * 25 + [(3, 300.0)] * 5
        )
        assert state_of(found.metadata).offsets["test"] == ends
        claims = [row["rows"] for part in read_coverage(trading.load()) for row in part.to_pylist()]
        assert sorted(claims) == [5, 30, 40]


def test_a_refused_record_is_kept_and_reported_and_stops_nothing(spark: SparkSession, trading: CatalogSettings) -> None:
    recorder = Recorder()
    good, bad = control(0, 3), control(3, 3, page=1)
    records = [page(good), (b"<html>", bad.encode()), (b"?", {}), final(good, 6)]
    pipeline = Pipeline(CANDLES, trading, "test", recorder)
    for _ in range(2):
        assert pipeline.process(frame(spark, records)).refused == 2
    tables = trading.load()
    letters = tables.load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
    assert sorted((r["offset"], r["payload"]) for r in letters) == [(1, b"<html>"), (2, b"?")]
    assert tables.load_table(OHLC.name).scan().count() == 3
    assert sum(part.num_rows for part in read_coverage(tables)) == 1, "a refused page covers nothing"
    refused = [p for p in recorder.pages if p.refused]
    assert {(p.span.start_ns, p.rows) for p in refused} == {(DAY + 3 * MINUTE_NS, 0)}
    assert recorder.snapshots[0] is not None


def test_the_claim_of_a_batch_without_candles_is_committed(spark: SparkSession, trading: CatalogSettings) -> None:
    recorder = Recorder()
    pipeline = Pipeline(CANDLES, trading, "test", recorder)
    assert pipeline.process(frame(spark, [page(control(0, 3, empty=(span(0, 3),)))])).path == "none"
    tables = trading.load()
    newest = tables.load_table(OHLC.name).metadata
    assert recorder.snapshots == [newest.current_snapshot_id]
    assert state_of(newest).offsets == {"test": {0: 1}}
    assert [row["rows"] for part in read_coverage(tables) for row in part.to_pylist()] == [0]


@pytest.mark.smoke
def test_a_batch_that_is_committed_but_not_reported_is_repeated_by_whoever_continues(rig: Rig) -> None:
    oracle, first, second = Oracle(rig.source.fake), Recorder(fail_calls={2}), Recorder()
    oracle.send_history()
    pipeline = rig.pipeline(first)
    query = rig.run(pipeline, max_records_per_batch=4)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(240)
    assert first.calls == 2
    rig.source.fake.committed.clear()  # the group's offsets are lost; the table has its own
    query = rig.run(rig.pipeline(second))
    query.processAllAvailable()
    query.stop()
    oracle.check(rig.trading)
    assert not {*first.pages} & {*second.pages}, "a page that was reported is not read again"
    assert len(first.pages) + len(second.pages) == oracle.sent


def test_a_new_table_starts_at_the_acked_offset(rig: Rig) -> None:
    oracle, recorder = Oracle(rig.source.fake), Recorder()
    for n in range(4):
        oracle.send(control(n * 10, 10, page=n))
    rig.source.fake.committed = {0: 2, 1: 1}
    query = rig.run(rig.pipeline(recorder))
    query.processAllAvailable()
    query.stop()
    assert [p.span for p in recorder.pages] == [span(30, 10)]


@pytest.mark.parametrize(
    ("topic_id", "more"),
    [
        pytest.param("", 0, id="shorter"),
        pytest.param("b", 8, id="longer", marks=pytest.mark.nightly),
        pytest.param("a", 8, id="the same topic"),
    ],
)
def test_a_log_that_begins_anew_is_read_from_its_start(rig: Rig, topic_id: str, more: int) -> None:
    oracle, recorder = Oracle(rig.source.fake), Recorder()
    rig.source.fake.topic_id = topic_id and "a"
    rig.source.fake.epochs = {0: 1, 1: 1} if topic_id == "a" else {}
    for n in range(4):
        oracle.send(control(n * 10, 10, page=n))
    pipeline = rig.pipeline(recorder)
    query = rig.run(pipeline)
    query.processAllAvailable()
    query.stop()
    for partition in rig.source.fake.epochs:
        rig.source.fake.elect(partition, 0)  # another leader, which has none of the records
    again = Oracle(FakeSource(partitions=2))
    again.rows, again.claims = oracle.rows, oracle.claims
    rig.source.fake.logs, rig.source.fake.ends, rig.source.fake.committed = again.source.logs, again.source.ends, {}
    rig.source.fake.topic_id = topic_id
    again.send(control(50, 10, job=2))
    for n in range(more):
        again.send(control(100 + n * 10, 10, job=3, page=n))
    query = rig.run(pipeline)
    query.processAllAvailable()
    again.send(control(60, 10, job=2, page=1))
    query.processAllAvailable()
    query.stop()
    again.check(rig.trading)
    state = state_of(rig.trading.load().load_table(OHLC.name).metadata)
    assert sum(state.offsets[rig.source.address].values()) == 2 + more


def test_the_source_can_be_read_as_a_batch(spark: SparkSession, source: RunningSource) -> None:
    for n in range(5):
        source.fake.add(n % 2, b"%d" % n, headers={"n": str(n)})
    reader = spark.read.format("udsource").option("address", source.address).option("endingOffsets", '{"0": 2, "1": 2}')
    rows = reader.load().collect()
    assert sorted((r.partition, r.offset, bytes(r.payload), r.headers["n"], r.key) for r in rows) == [
        (0, 0, b"0", "0", None),
        (0, 1, b"2", "2", None),
        (1, 0, b"1", "1", None),
        (1, 1, b"3", "3", None),
    ]


@pytest.mark.smoke
def test_the_driver_waits_for_the_source_outlives_failures_and_acks_the_last_batch(rig: Rig) -> None:
    oracle, recorder = Oracle(rig.source.fake), Recorder(fail_calls={1})
    rig.source.stop()
    oracle.send_history()
    early: list[tuple[int, int]] = []
    rig.source.fake.on_ack = lambda acks: early.extend(
        a for a in acks if sum(o + 1 for _, o in acks) > len(recorder.pages)
    )
    ready = threading.Event()
    with rig.driving(recorder, on_ready=lambda now: ready.set() if now else ready.clear(), max_records_per_batch=4):
        rig.source.start()
        assert ready.wait(240)
        wait_until(lambda: rig.source.fake.committed == rig.source.fake.ends)
    assert not ready.is_set()
    assert not early, "acked before it was reported"
    oracle.check(rig.trading)


@pytest.mark.smoke
def test_the_driver_gives_up_after_too_many_failures(rig: Rig) -> None:
    Oracle(rig.source.fake).send_history()
    recorder = Recorder(fail_calls=set(range(1, 100)))
    driver = rig.driver(threading.Event(), restarts=1)
    with pytest.raises(QueryFailed, match="2 times in a row"):
        driver.drive(rig.spark, recorder)


@pytest.mark.smoke
def test_a_batch_is_decoded_while_the_one_before_is_committed(rig: Rig) -> None:
    class Waiting(Recorder):
        """A relay that answers the first report after it was asked for the dispatches of the second batch."""

        decoded = threading.Semaphore(0)

        def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
            self.decoded.release()
            return super().describe(dispatch_ids)

        def report(self, *report: Any) -> None:
            if not self.calls:
                assert self.decoded.acquire(timeout=240)
                assert self.decoded.acquire(timeout=240)
            super().report(*report)

    oracle, recorder = Oracle(rig.source.fake), Waiting()
    oracle.send_history()
    with rig.driving(recorder, max_records_per_batch=4):
        wait_until(lambda: rig.source.fake.committed == rig.source.fake.ends)
    oracle.check(rig.trading)
    assert recorder.calls == 3


def crash_at_one_price(headers: PageHeaders, payload: bytes) -> pa.RecordBatch:
    """Decode a page, except that one with a price of 666 ends the process."""
    rows = CANDLES.decode(headers, payload)
    if rows.num_rows and rows.column("open")[0].as_py() == 666:
        os._exit(1)
    return rows


@pytest.mark.smoke
def test_a_record_that_ends_the_worker_becomes_a_dead_letter_and_the_rest_is_committed(rig: Rig) -> None:
    oracle, recorder = Oracle(rig.source.fake), Recorder()
    oracle.send_history()
    crash, headers = page(control(200, 5, job=9), 666)
    offset = rig.source.fake.add(0, crash, "k", headers)
    oracle.send(control(300, 10, job=7))
    registry = CollectorRegistry()
    fragile = replace(CANDLES, decode=crash_at_one_price)
    with rig.driving(recorder, table=fragile, registry=registry):
        wait_until(lambda: rig.source.fake.committed == rig.source.fake.ends)
    oracle.check(rig.trading)
    (letter,) = rig.trading.load().load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
    assert (letter["partition"], letter["offset"], letter["payload"]) == (0, offset, crash)
    assert registry.get_sample_value("dexorder_spark_quarantined_records_total", {"table": OHLC.name}) == 1
