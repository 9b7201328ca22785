"""Care of real tables in the warm session, alone and beside a stream."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dexorder_common.clock import ManualClock
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import claim_rows, write_claims
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.lake.tables import COVERAGE, DEAD_LETTERS, OHLC
from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.errors import Conflict, InvalidRequest, Unavailable
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_relay.reading.table_reader import TableReader
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_spark.maintenance import procedures
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.policy import PartitionState, TableState
from dexorder_spark.maintenance.procedures import StepResult
from dexorder_spark.maintenance.runner import MaintenanceRunner, StepFailed
from dexorder_spark.pipeline import presence
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.pipeline.page_source import page_source
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.table_driver import QueryRules, start_query
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import append_coverage, control, page
from tests.fakes.pipeline import Oracle, Recorder, frame
from tests.fakes.source_server import FakeSource, RunningSource
from tests.fakes.staged import files_of_pages

pytestmark = [pytest.mark.timeout(300)]
HOUR_NS = 3_600 * 1_000_000_000
DAY_NS = 24 * HOUR_NS


@dataclass
class Parts:
    """A runner and its parts."""

    catalog: CatalogSettings
    settings: MaintenanceSettings = field(default_factory=lambda: MaintenanceSettings(small_files=4, delete_files=2))
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    locks: WriterLocks = field(default_factory=WriterLocks)
    clock: ManualClock = field(default_factory=lambda: ManualClock(time.time_ns()))
    named: dict[int, int] = field(default_factory=dict)
    relay_is_away: bool = False

    def __post_init__(self) -> None:
        metrics = MaintenanceMetrics(self.registry)
        self.runner = MaintenanceRunner(
            self.catalog, self.settings, self.locks, metrics, named=self.ask, clock=self.clock
        )

    def ask(self, since_ns: int) -> dict[int, int]:
        if self.relay_is_away:
            raise ConnectionError("no relay")
        return self.named

    def snapshots(self, name: str) -> list[int]:
        return [s.snapshot_id for s in self.catalog.load().load_table(name).metadata.snapshots]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"dexorder_spark_{name}", labels) or 0.0


def append(catalog: CatalogSettings, oracle: Oracle, pages: int) -> None:
    """One small file a page, as small batches leave them, and its coverage; without Spark, which takes longer."""
    tables = catalog.load()
    for n in range(pages):
        head = control(n * 10, 10, page=n)
        oracle.send(head)
        record = oracle.source.logs[(oracle.sent - 1) % 2][-1]
        candles: list[pa.RecordBatch] = []
        decode_record(CANDLES, {"headers": list(record.headers.items()), "payload": record.payload}, candles.append)
        table = tables.load_table(OHLC.name)
        table.append(pa.Table.from_batches(candles).cast(table.schema().as_arrow()))
        good = PageResult(head.dispatch_id, Series(head.ticker, 60), head.span, fetched_ns=head.fetched_ns, rows=10)
        append_coverage(tables, [good], now_ns=head.fetched_ns)


@pytest.mark.nightly
@pytest.mark.spark
def test_many_files_deletes_manifests_and_snapshots_are_reduced_and_the_rows_remain(
    spark: SparkSession, trading: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "MAX_READ_BYTES", 0)  # so that the batch is merged, which leaves delete files
    parts, oracle = Parts(trading), Oracle(FakeSource())
    append(trading, oracle, 6)  # 30 minutes of January and 30 of February: two partitions
    newer = control(0, 40, job=2)
    oracle.send(newer, price=200.0)
    Pipeline(CANDLES, trading, "test", Recorder()).process(frame(spark, [page(newer, 200.0)]))
    covered = sorted((c.span, c.empty) for c in TableReader(trading.load()).coverage())
    parts.runner.attach(spark)
    parts.clock.advance(8 * DAY_NS)
    before = [parts.snapshots(name) for name in (OHLC.name, COVERAGE.name)]

    said = list(parts.runner.maintain(dry_run=True))
    assert [parts.snapshots(name) for name in (OHLC.name, COVERAGE.name)] == before, "a dry run changes nothing"
    done = list(parts.runner.maintain())
    oracle.check(trading)
    assert sorted((c.span, c.empty) for c in TableReader(trading.load()).coverage()) == covered

    assert len(done) == len(DATASETS) + 2
    ohlc, *_, coverage, dead = done
    assert (ohlc.data_files_before >= 8, ohlc.data_files_after) == (True, 2), "one a partition"
    assert (ohlc.delete_files_before > 0, ohlc.delete_files_after) == (True, 0)
    assert (said[0].data_files_after, said[0].delete_files_after) == (2, 0)
    assert (coverage.data_files_before, coverage.data_files_after) == (7, 1)
    assert (dead.data_files_before, dead.expired_snapshots) == (0, 0)
    assert ohlc.expired_snapshots == len(before[0]) - 1, "all before the one with the pipeline's state"
    assert said[0].expired_snapshots == ohlc.expired_snapshots
    assert ohlc.removed_files >= 6
    assert parts.metric("maintenance_files_total", table=OHLC.name, what="rewritten") >= ohlc.data_files_before
    assert parts.metric("table_data_files", table=OHLC.name) == 2


@pytest.mark.smoke
@pytest.mark.spark
def test_many_batches_leave_few_files_and_what_a_notification_names_stays_readable(
    spark: SparkSession, trading: CatalogSettings
) -> None:
    parts, tables = Parts(trading), trading.load()
    for n in range(120):
        table, head = tables.load_table(OHLC.name), control(n * 10, 10, page=n)
        result = PageResult(head.dispatch_id, Series(head.ticker, 60), head.span, fetched_ns=head.fetched_ns, rows=10)
        state = CommitState({"source": {0: n + 1}}, 1, write_claims(table, claim_rows([result], now_ns=1)))
        snapshot_id = commit_files(table, added=files_of_pages(table, [head]), properties=state.encode())
        if n in (0, 50, 70):
            parts.named[snapshot_id] = parts.clock.wall_ns()
    parts.clock.advance(2 * HOUR_NS)
    parts.runner.attach(spark)
    parts.runner.run_due()

    def rows() -> list[int]:
        return [tables.load_table(OHLC.name).scan(snapshot_id=each).to_arrow().num_rows for each in parts.named]

    assert rows() == [10, 510, 710]
    assert len(parts.snapshots(OHLC.name)) <= 6, "three with names, the one with the state, and two compactions"
    assert files_of(tables)["metadata.json"] <= 51, "as many as the table's property says, and the current one"
    assert files_of(tables)["claims"] == 0
    parts.clock.advance(8 * DAY_NS)
    list(parts.runner.maintain())
    left = files_of(tables)
    assert left.pop("metadata.json") <= 51
    assert left["parquet"] <= 6 and left["avro"] <= 18, "120 batches have left 120 and 300"
    assert tables.load_table(OHLC.name).scan().count() == 1_200
    assert set(tables.load_table(OHLC.name).metadata.refs) == {"main"}


def files_of(tables: Catalog) -> Counter[str]:
    """Count the files of the candles by kind."""
    location = Path(urlsplit(tables.load_table(OHLC.name).location()).path)
    names = [path.name for path in location.rglob("*") if path.is_file()]
    return Counter("claims" if name.startswith("claims") else name.split(".", 1)[1] for name in names)


@pytest.mark.spark
def test_snapshots_stay_while_the_relay_does_not_say_which_it_has_named(
    spark: SparkSession, trading: CatalogSettings
) -> None:
    parts = Parts(trading, relay_is_away=True)
    append(trading, Oracle(FakeSource()), 3)
    parts.runner.attach(spark)
    parts.clock.advance(DAY_NS)
    coverage, ohlc = parts.runner.maintain([COVERAGE.name, OHLC.name], dry_run=True)
    assert (coverage.expired_snapshots, ohlc.expired_snapshots) == (2, 0)


@pytest.mark.spark
def test_only_due_steps_run_automatically(spark: SparkSession, trading: CatalogSettings) -> None:
    parts, oracle = Parts(trading), Oracle(FakeSource())
    append(trading, oracle, 3)
    parts.runner.attach(spark)
    before = parts.snapshots(OHLC.name)
    parts.runner.run_due()
    assert parts.snapshots(OHLC.name) == before
    oracle.sent = 0
    append(trading, Oracle(FakeSource()), 1)
    parts.runner.run_due()
    assert len(parts.snapshots(OHLC.name)) == len(before) + 2, "the append and one compaction"
    assert parts.metric("table_data_files", table=OHLC.name) == 1
    again = parts.snapshots(OHLC.name)
    parts.runner.run_due()
    assert parts.snapshots(OHLC.name) == again


@pytest.mark.spark
def test_only_old_files_that_nothing_refers_to_are_removed(spark: SparkSession, trading: CatalogSettings) -> None:
    parts, oracle = Parts(trading), Oracle(FakeSource())
    append(trading, oracle, 1)
    location = Path(urlsplit(trading.load().load_table(OHLC.name).location()).path)
    old, young = location / "data" / "left-behind.parquet", location / "data" / "being-written.parquet"
    neighbour = location.parent / f"{location.name}_elsewhere" / "data.parquet"
    neighbour.parent.mkdir()
    for path in (old, young, neighbour):
        path.write_bytes(b"x")
    for path in (p for p in (*location.rglob("*"), neighbour) if p.is_file() and p != young):
        os.utime(path, (time.time() - 4 * 86_400,) * 2)
    parts.runner.attach(spark)
    parts.runner.run_due()
    assert old.exists(), "not before the driver has run for a while"
    parts.clock.advance(2 * 3_600 * 1_000_000_000)
    parts.runner.run_due()
    assert (old.exists(), young.exists(), neighbour.exists()) == (False, True, True)
    assert parts.metric("maintenance_files_total", table=OHLC.name, what="orphan") == 1
    oracle.check(trading)


@pytest.mark.smoke
@pytest.mark.spark
def test_a_batch_replayed_after_compaction_and_expiry_of_everything_doubles_nothing(
    spark: SparkSession, trading: CatalogSettings, tmp_path: Path
) -> None:
    """The worst case, which the rules exclude: every snapshot of the batch has expired when it is replayed."""
    source = RunningSource(FakeSource(partitions=2))
    try:
        parts, oracle, recorder = Parts(trading), Oracle(source.fake), Recorder(fail_calls={2})
        oracle.send_history()
        settings = SparkSettings(
            listen="127.0.0.1:0",
            source=source.address,
            max_records_per_batch=6,
        )
        rules = QueryRules.of(CANDLES, settings)
        pipeline = Pipeline(CANDLES, trading, source.address, recorder)
        spark.dataSource.register(page_source(CANDLES, trading))
        query = start_query(spark, CANDLES, rules, lambda raw: void(pipeline.process(raw)), {0: 0, 1: 0})
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(240)
        parts.runner.attach(spark)
        parts.clock.advance(30 * DAY_NS)
        assert sum(care.expired_snapshots for care in parts.runner.maintain()) > 0
        query = start_query(spark, CANDLES, rules, lambda raw: void(pipeline.process(raw)), {0: 0, 1: 0})
        query.processAllAvailable()
        query.stop()
        oracle.check(trading)
        assert recorder.calls > 2
    finally:
        source.stop()


# ---- without Spark -------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Tables with something to do, whose steps a test answers."""
    append(catalog, Oracle(FakeSource()), 2)
    made = Parts(catalog)
    made.runner.attach(Session())  # type: ignore[arg-type]
    state = TableState("trading.ohlc", (PartitionState((), 9, 9, 9, 9, 0),), 1)
    monkeypatch.setattr(procedures, "inspect", lambda *_: state)
    return made


class Session:
    """A session whose only use is to be there."""

    cancelled = False

    @property
    def sparkContext(self) -> Any:
        return self

    def addJobTag(self, tag: str) -> None:
        assert tag == "dexorder-maintenance"

    def removeJobTag(self, tag: str) -> None:
        assert tag == "dexorder-maintenance"

    def cancelJobsWithTag(self, tag: str) -> None:
        assert tag == "dexorder-maintenance"
        self.cancelled = True


def answer(monkeypatch: pytest.MonkeyPatch, do: Callable[[], StepResult]) -> None:
    monkeypatch.setattr(procedures, "run", lambda *_: do())


def test_without_a_session_maintenance_is_unavailable(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, lambda: pytest.fail("no step may run"))
    parts.runner.detach()
    with pytest.raises(Unavailable, match="starts or stops"):
        list(parts.runner.maintain())
    parts.runner.run_due()


def test_a_second_call_is_refused_while_the_first_works_and_not_afterwards(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second() -> StepResult:
        with pytest.raises(Conflict, match="another call"):
            list(parts.runner.maintain())
        return StepResult(0)

    answer(monkeypatch, second)
    for _ in range(2):
        assert [care.table for care in parts.runner.maintain([COVERAGE.name, OHLC.name])] == [
            COVERAGE.name,
            OHLC.name,
        ]


def test_a_table_that_is_not_ours_is_refused(parts: Parts) -> None:
    with pytest.raises(InvalidRequest, match=r"'trading\.other'"):
        list(parts.runner.maintain(["trading.other"]))


def test_a_failed_step_is_reported_and_counted_and_releases_the_lock(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> StepResult:
        raise OSError("No space left on device")

    answer(monkeypatch, fail)
    with pytest.raises(StepFailed, match=r"trading.ohlc: compact failed: No space left"):
        list(parts.runner.maintain())
    parts.runner.run_due()  # attempts all tables
    assert parts.metric("maintenance_failures_total", table=OHLC.name, step="compact") == 2
    assert parts.metric("maintenance_failures_total", table=DEAD_LETTERS.name, step="compact") == 1
    with parts.locks.of(OHLC.name).batch():
        pass


def test_the_end_of_the_query_ends_the_step_in_hand(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    parts.runner.attach(session)  # type: ignore[arg-type]

    def interrupted() -> StepResult:
        parts.runner.detach()
        raise RuntimeError("Job 7 cancelled")

    answer(monkeypatch, interrupted)
    with pytest.raises(Unavailable):
        list(parts.runner.maintain())
    assert session.cancelled


def test_the_thread_waits_for_a_quiet_moment_but_not_for_ever(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    worked, stop = threading.Event(), threading.Event()

    def work(session: object, catalog: object, name: str, *_: object) -> StepResult:
        if name == OHLC.name:
            worked.set()
        return StepResult(0)

    monkeypatch.setattr(procedures, "run", work)
    quick = MaintenanceSettings(small_files=4, interval_seconds=0.01, quiet_seconds=3_600, max_wait_seconds=0.05)
    for settings in (quick, quick.model_copy(update={"quiet_seconds": 0.0, "max_wait_seconds": 3_600.0})):
        worked.clear()
        impatient = Parts(parts.catalog, settings)
        impatient.runner.attach(Session())  # type: ignore[arg-type]
        thread = threading.Thread(target=impatient.runner.run, args=(stop,))
        thread.start()
        came = worked.wait(120)
        stop.set()
        thread.join(60)
        assert came
        assert not thread.is_alive()
        stop.clear()


def void(_: object) -> None:
    """foreachBatch wants nothing back."""
