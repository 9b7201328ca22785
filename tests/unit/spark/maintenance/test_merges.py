"""Merges of small files by the driver's thread; without Spark."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import claim_rows, collect_claims, read_coverage, write_claims
from dexorder_common.lake.commit import CommitLost, commit_files
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.lake.coverage import decode_coverage
from dexorder_common.lake.tables import COVERAGE, TICKS
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import TRADES_PERIOD
from dexorder_common.model.time_range import merge
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.runner import MaintenanceRunner
from dexorder_spark.runtime.locks import WriterLocks
from tests.fakes.pages import TICKER, dispatch_id, span


def claim_minutes(tables: Catalog, first: int, count: int) -> None:
    """Claim and collect minutes of trades, one at a time."""
    for minute in range(first, first + count):
        ticks = tables.load_table(TICKS.name)
        series = Series(TICKER, TRADES_PERIOD)
        page = PageResult(dispatch_id(1), series, span(minute, 1), (), None, 5_000, 7)
        path = write_claims(ticks, claim_rows([page], now_ns=9_000))
        commit_files(ticks, properties=CommitState(claims=path).encode())
        assert collect_claims(tables, now_ns=span(minute + 1, 1).start_ns) == 1


def make_runner(catalog: CatalogSettings, registry: CollectorRegistry, **settings: float) -> MaintenanceRunner:
    made = MaintenanceSettings(**settings)  # type: ignore[arg-type]
    return MaintenanceRunner(catalog, made, WriterLocks(), MaintenanceMetrics(registry))


def rows_of_coverage(tables: Catalog) -> int:
    return tables.load_table(COVERAGE.name).scan().to_arrow().num_rows


def test_a_row_a_minute_becomes_one_and_later_ones_join_it(catalog: CatalogSettings) -> None:
    tables, registry = catalog.load(), CollectorRegistry()
    runner = make_runner(catalog, registry)
    claim_minutes(tables, 0, 5)
    before = tables.load_table(COVERAGE.name).metadata.current_snapshot_id
    runner.merge()
    assert rows_of_coverage(tables) == 1
    runner.merge()  # nothing is left to merge
    claim_minutes(tables, 5, 5)
    runner.merge()
    assert rows_of_coverage(tables) == 1
    found = [decode_coverage(row) for rows in read_coverage(tables) for row in COVERAGE.rows(rows)]
    assert (merge(row.span for row in found), sum(row.rows for row in found)) == ([span(0, 10)], 70)
    assert tables.load_table(COVERAGE.name).scan(snapshot_id=before).to_arrow().num_rows == 5
    labels = {"table": COVERAGE.name, "what": "merged"}
    assert registry.get_sample_value("dexorder_spark_maintenance_files_total", labels) == 9


@pytest.mark.parametrize("error", [CommitLost("another process"), OSError("disk full")])
def test_a_merge_that_fails_is_made_again(
    catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tables, registry = catalog.load(), CollectorRegistry()
    runner = make_runner(catalog, registry)
    claim_minutes(tables, 0, 3)

    def fail(*given: object, **named: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("dexorder_spark.maintenance.merge.commit_files", fail)
        runner.merge()
    labels = {"table": COVERAGE.name, "step": "merge"}
    failures = registry.get_sample_value("dexorder_spark_maintenance_failures_total", labels)
    assert (rows_of_coverage(tables), failures) == (3, None if isinstance(error, CommitLost) else 1)
    runner.merge()
    assert rows_of_coverage(tables) == 1


def test_the_thread_merges_until_it_is_stopped_and_never_if_it_is_turned_off(
    catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, merged = threading.Event(), list[str]()

    def merge_once(runner: MaintenanceRunner) -> None:
        merged.append("merged")
        stop.set()

    monkeypatch.setattr(MaintenanceRunner, "merge", merge_once)
    make_runner(catalog, CollectorRegistry(), merge_seconds=0.001).run_merges(stop)
    assert merged == ["merged"]
    make_runner(catalog, CollectorRegistry(), merge_seconds=0).run_merges(threading.Event())
    assert merged == ["merged"]
