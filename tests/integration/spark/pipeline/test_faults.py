"""One driver on real Spark and what goes wrong around it: a busy catalog, a full disk, a relay that does not answer."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import OHLC
from dexorder_spark.config import SparkSettings
from dexorder_spark.metrics import Metrics
from dexorder_spark.records.reporter import RelayReporter
from dexorder_spark.runtime.session import catalog_conf
from dexorder_spark.table_driver import TableDriver
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import ensure_tables
from tests.fakes.pages import control
from tests.fakes.pipeline import Oracle, wait_until
from tests.fakes.pipeline_relay import PipelineRelay, served
from tests.fakes.source_server import FakeSource, RunningSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DISK_BYTES = 16 * 1024 * 1024


@dataclass
class Bench:
    """A running driver, what it reads and whom it tells."""

    folder: Path
    source: RunningSource
    relay: PipelineRelay
    catalog: CatalogSettings
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    ready: threading.Event = field(default_factory=threading.Event)
    pages: int = 0

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.source.fake)

    def send(self) -> None:
        """Send one page of a new range."""
        self.oracle.send(control(self.pages * 5, 5, page=self.pages))
        self.pages += 1

    def check(self) -> None:
        """Everything sent is in the tables once, reported and acked, and the driver serves."""
        wait_until(lambda: self.source.fake.committed == {p: e for p, e in self.source.fake.ends.items() if e})
        self.oracle.check(self.catalog)
        told = {(page.start_ns, page.end_ns) for report in self.relay.reports for page in report.pages}
        assert told == {(claimed.start_ns, claimed.end_ns) for _, claimed, _ in self.oracle.claims}
        assert self.ready.wait(240)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"dexorder_spark_{name}", {"table": CANDLES.name} | labels) or 0.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a small separate disk if one can be mounted, else any folder."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def bench(spark: SparkSession, disk: Path) -> Iterator[Bench]:
    catalog = CatalogSettings.local(disk, name="faults")
    ensure_tables(catalog.load())
    for key, value in catalog_conf(catalog).items():
        spark.conf.set(key, value)
    source, relay, stop = RunningSource(FakeSource(partitions=2)), PipelineRelay(), threading.Event()
    with served(relay) as address:
        made = Bench(disk, source, relay, catalog)
        settings = SparkSettings(
            listen="127.0.0.1:0",
            source=source.address,
            relay=address,
            report_attempts=2,
        )
        driver = TableDriver(
            settings,
            catalog,
            CANDLES,
            stop=stop,
            on_ready=lambda now: made.ready.set() if now else made.ready.clear(),
            metrics=Metrics(made.registry).of(CANDLES.name),
        )
        reporter = RelayReporter(address, stop, driver.on_report_attempt)
        thread = threading.Thread(target=driver.drive, args=(spark, reporter))
        thread.start()
        try:
            yield made
        finally:
            stop.set()
            thread.join(240)
            reporter.close()
            source.stop()
        assert not thread.is_alive()


@pytest.mark.smoke
@pytest.mark.parametrize("refusal", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE])
def test_a_relay_that_does_not_take_a_report_shows_in_health_and_costs_nothing(
    bench: Bench, refusal: grpc.StatusCode
) -> None:
    bench.send()
    bench.check()
    bench.relay.refusal = refusal
    bench.send()
    wait_until(lambda: bench.metric("report_attempts") >= 3)
    wait_until(lambda: not bench.ready.is_set())
    assert bench.metric("report_failures_total", code=refusal.name) >= 3
    bench.relay.refusal = None
    bench.check()
    assert bench.metric("report_attempts") == 0


@pytest.mark.smoke
def test_a_catalog_that_another_process_keeps_locked_only_delays(bench: Bench) -> None:
    with sqlite3.connect(bench.folder / "catalog.db", isolation_level=None, timeout=60) as lock:
        lock.execute("BEGIN IMMEDIATE")
        files = len(list((bench.folder / "warehouse").rglob("*.parquet")))
        bench.send()
        wait_until(lambda: len(list((bench.folder / "warehouse").rglob("*.parquet"))) > files)
        threading.Event().wait(2)  # whether this is long enough to fail a try changes the way, not the result
        lock.execute("ROLLBACK")
    lock.close()
    bench.check()


def test_many_commits_to_another_table_of_the_catalog_only_delay(bench: Bench) -> None:
    tables = bench.catalog.load()
    # Old metadata is deleted, else the disk of this test is full of it before the third page.
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    busy = tables.create_table("trading.busy", tables.load_table(OHLC.name).schema(), properties=properties)
    stop, writer_lock = threading.Event(), itertools.count()

    def commit() -> None:
        while not stop.wait(0.01):
            with busy.transaction() as change:
                change.set_properties(turn=next(writer_lock))
            busy.refresh()

    other = threading.Thread(target=commit)
    other.start()
    try:
        for _ in range(3):
            bench.send()
        bench.check()
    finally:
        stop.set()
        other.join(60)
    assert next(writer_lock) > 20


@pytest.mark.smoke
def test_a_full_disk_shows_in_health_and_heals_without_a_new_process(bench: Bench) -> None:
    if not bench.folder.is_mount():
        pytest.skip("needs the right to mount a small disk")
    bench.send()
    bench.check()
    before = bench.metric("query_restarts_total")
    filler = bench.folder / "filler"
    fill(filler)
    bench.send()
    wait_until(lambda: bench.metric("query_restarts_total") > before)
    wait_until(lambda: not bench.ready.is_set())
    filler.unlink()
    bench.check()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
