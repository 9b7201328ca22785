"""Merge of rows in a real table, without Spark; the coverage that the relay reads must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.types import StringType

from services.common.clock import ManualClock
from services.common.lake.catalog import CatalogSettings
from services.common.lake.coverage import CoverageRow, Order, Retraction, decode_coverage, encode_retraction
from services.common.lake.tables import COVERAGE, RETRACTIONS
from services.common.model.history import PageResult
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import SECOND_NS
from services.relay.history.table_reader import TableReader
from spark.config import MaintenanceSettings
from spark.maintenance import procedures
from spark.maintenance.coverage_rows import merge_rows
from spark.maintenance.policy import MergeCoverage, PartitionState, TableState
from spark.maintenance.procedures import Merged, merge_coverage
from spark.maintenance.runner import MaintenanceFailed, MaintenanceRunner
from spark.metrics import MaintenanceMetrics
from spark.runtime.locks import WriterLock
from tests.fakes.pages import TICKER, append_coverage, dispatch_id, span

NOW_NS = 1_800_000_000 * SECOND_NS
STEP = MergeCoverage(NOW_NS, min_rows=1, max_rows=100_000, repeats=1)
OTHER = "ETH/USDT.BINANCE"
View = tuple[list[TimeRange], list[TimeRange]]


class Killed(BaseException):
    """Like SIGKILL: no handler of errors runs after it."""


def page(first: int, count: int, dispatch: int = 100, *, empty: Sequence[int] = (), ticker: str = TICKER) -> PageResult:
    holes = tuple(merge(span(n, 1) for n in empty))
    rows = count - len(empty)
    return PageResult(dispatch_id(dispatch), Series(ticker, 60), span(first, count), holes, fetched_ns=1_000, rows=rows)


def pages(count: int, **given: Any) -> list[PageResult]:
    return [page(n * 10, 10, 100 + n, **given) for n in range(count)]


@pytest.fixture
def tables(catalog: CatalogSettings) -> Catalog:
    return catalog.load()


def stored(tables: Catalog) -> list[CoverageRow]:
    found = COVERAGE.rows(tables.load_table(COVERAGE.name).scan().to_arrow())
    return sorted(decode_coverage(row) for row in found)


def relay_sees(tables: Catalog, ticker: str = TICKER) -> View:
    found = [c for c in TableReader(tables).coverage() if c.series.ticker == ticker]
    return merge(c.span for c in found), merge(part for c in found for part in c.empty)


def retract(tables: Catalog, *retractions: Retraction) -> None:
    rows = [encode_retraction(each, "rows lost") for each in retractions]
    RETRACTIONS.load_or_create(tables).append(pa.Table.from_pylist(rows, schema=RETRACTIONS.arrow))


def test_pages_become_one_row_in_one_file_and_the_relay_sees_the_same(tables: Catalog) -> None:
    for n, one in enumerate([*pages(6, empty=()), page(60, 10, empty=[60, 61, 69]), page(0, 30, ticker=OTHER)]):
        append_coverage(tables, [one], now_ns=NOW_NS - 100 + n * 1_000)
    before = [relay_sees(tables, ticker) for ticker in (TICKER, OTHER)]
    assert merge_coverage(tables, STEP) == Merged(before=8, after=8, left=1), "all but one are too young"
    later = MergeCoverage(NOW_NS + 10_000, 1, 100_000, 1)
    assert merge_coverage(tables, later) == Merged(before=8, after=2, left=2)
    assert [relay_sees(tables, ticker) for ticker in (TICKER, OTHER)] == before
    table = tables.load_table(COVERAGE.name)
    assert len(list(table.scan().plan_files())) == 1
    assert stored(tables)[0] == CoverageRow(
        Series(TICKER, 60),
        span(0, 70),
        dispatch=100,
        fetched_ns=1_000,
        committed_ns=NOW_NS + 5_000,
        rows=67,
        empty=(span(60, 2), span(69, 1)),
        evidence="merged 7 pages: page",
    )
    assert merge_coverage(tables, later) == Merged(before=2, after=2, left=2)
    assert tables.load_table(COVERAGE.name).current_snapshot() == table.current_snapshot(), "nothing was committed"


def test_young_pages_stay(tables: Catalog) -> None:
    old, young = pages(8)[:4], pages(8)[4:]
    append_coverage(tables, old, now_ns=NOW_NS - SECOND_NS)
    append_coverage(tables, young, now_ns=NOW_NS)
    assert merge_coverage(tables, STEP) == Merged(before=8, after=5, left=1)


def test_a_merge_that_removes_too_few_rows_is_not_committed(tables: Catalog) -> None:
    append_coverage(tables, pages(4), now_ns=NOW_NS - SECOND_NS)
    snapshot = tables.load_table(COVERAGE.name).current_snapshot()
    assert merge_coverage(tables, MergeCoverage(NOW_NS, 4, 100_000, 1)) == Merged(before=4, after=4, left=4)
    assert tables.load_table(COVERAGE.name).current_snapshot() == snapshot
    assert merge_coverage(tables, MergeCoverage(NOW_NS, 3, 100_000, 1)).after == 1


def test_replayed_pages_of_a_merged_row_add_nothing_and_are_merged_again(tables: Catalog) -> None:
    """As after a lost checkpoint: all pages again, in any order, with an older copy that a later one replaced."""
    everything = [page(0, 20, 100, empty=[3, 4]), page(0, 10, 600, empty=[4]), *pages(6)[2:]]
    append_coverage(tables, everything, now_ns=NOW_NS - SECOND_NS)
    merge_coverage(tables, STEP)
    (merged,) = stored(tables)
    assert (merged.span, merged.rows, merged.empty) == (span(0, 60), 59, (span(4, 1),)), "minute 3 has a candle"
    for _ in range(3):
        assert append_coverage(tables, [*reversed(everything), page(5, 10, 1)], now_ns=NOW_NS - 1_000) == 7
        assert relay_sees(tables)[0] == [span(0, 60)]
        merge_coverage(tables, STEP)
        (again,) = stored(tables)
        assert (again.span, again.rows, again.empty) == (merged.span, merged.rows, merged.empty)


def test_a_replay_does_not_restore_retracted_coverage(tables: Catalog) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    merge_coverage(tables, STEP)
    retract(
        tables,
        Retraction(Series(TICKER, 60), span(20, 10), Order(1_000, NOW_NS)),
        Retraction(Series(OTHER, 60), span(0, 60), Order(1_002, NOW_NS)),
    )
    append_coverage(tables, pages(6), now_ns=NOW_NS - 1_000)
    merge_coverage(tables, STEP)
    assert [one.span for one in stored(tables)] == [span(0, 20), span(30, 30)]
    again = page(20, 10, 1_001)
    append_coverage(tables, [again, *pages(6)], now_ns=NOW_NS - 1_000)
    merge_coverage(tables, STEP)
    found = stored(tables)
    assert [(one.span, one.rows) for one in found] == [(span(0, 20), 20), (span(20, 10), 10), (span(30, 30), 30)]
    assert found[1].dispatch == again.dispatch


def test_a_kill_before_the_catalog_is_updated_leaves_the_old_rows(
    tables: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    before = stored(tables)
    write = type(tables)._write_metadata  # type: ignore[attr-defined]

    def die(*given: Any, **named: Any) -> None:
        write(*given, **named)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(type(tables), "_write_metadata", die)
        merge_coverage(tables, STEP)
    assert stored(tables) == before
    assert merge_coverage(tables, STEP) == Merged(before=6, after=1, left=1)


def test_a_row_of_an_unexpected_writer_is_not_lost(tables: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)

    def meanwhile(*given: Any) -> list[CoverageRow]:
        """Between the read and the commit."""
        append_coverage(tables, [page(60, 10)], now_ns=NOW_NS - SECOND_NS)
        return merge_rows(*given)

    monkeypatch.setattr(procedures, "merge_rows", meanwhile)
    with pytest.raises(ValidationException):
        merge_coverage(tables, STEP)
    assert relay_sees(tables)[0] == [span(0, 70)]


def test_unknown_columns_and_malformed_rows_are_unchanged(tables: Catalog) -> None:
    table = tables.load_table(COVERAGE.name)
    with table.update_schema() as change:
        change.add_column("note", StringType())
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    append_coverage(tables, [page(0, 1, ticker=OTHER)], now_ns=NOW_NS)
    table = tables.load_table(COVERAGE.name)
    rows = table.scan().to_arrow()
    odd = next(row for row in rows.to_pylist() if row["ticker"] == TICKER)
    odd |= {"ticker": OTHER, "note": "kept", "start_time": odd["end_time"], "end_time": odd["start_time"]}
    table.append(pa.Table.from_pylist([odd], schema=rows.schema))
    assert merge_coverage(tables, STEP) == Merged(before=8, after=3, left=2), "a reversed range is not merged"
    assert sorted(tables.load_table(COVERAGE.name).scan().to_arrow().column("note").to_pylist(), key=str) == [
        None,
        None,
        "kept",
    ]


def test_a_step_compares_about_as_many_rows_as_its_limit(tables: Catalog) -> None:
    names = [f"T{n}/USDT.BINANCE" for n in range(4)]
    for n, name in enumerate(names):
        append_coverage(tables, pages(3 + n, ticker=name), now_ns=NOW_NS - SECOND_NS)
    step = MergeCoverage(NOW_NS, 1, max_rows=8, repeats=1)
    assert merge_coverage(tables, step) == Merged(before=18, after=9, left=9), "of 6 and 5 rows"
    assert merge_coverage(tables, step) == Merged(before=9, after=4, left=4)
    assert merge_coverage(tables, step).after == 4


# ---- by the runner -------------------------------------------------------------------------------------------------


class Session:
    """Placeholder of a session."""


@pytest.fixture
def runner(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MaintenanceRunner]:
    def inspect(session: object, settings: CatalogSettings, name: str, policy: object) -> TableState:
        return TableState(
            name, (PartitionState((), 1, 9, 1, 9, rows=settings.load().load_table(name).scan().count()),), 1, (1,)
        )

    def made(registry: CollectorRegistry, clock: ManualClock, **given: Any) -> MaintenanceRunner:
        found = MaintenanceRunner(
            catalog, MaintenanceSettings(**given), WriterLock(), MaintenanceMetrics(registry), clock=clock
        )
        found.attach(Session())  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(procedures, "inspect", inspect)
    return made


def test_the_runner_merges_settled_old_rows_and_counts_them(
    tables: Catalog, runner: Callable[..., MaintenanceRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, clock = CollectorRegistry(), ManualClock(NOW_NS)
    one = runner(registry, clock, coverage_rows=5, coverage_grace_seconds=600)
    append_coverage(tables, pages(8), now_ns=NOW_NS)
    one.settle(NOW_NS + SECOND_NS)
    one.run_due()
    assert len(stored(tables)) == 8, "within the grace time"
    clock.advance(601 * SECOND_NS)
    one.run_due()
    assert len(stored(tables)) == 8, "the table is unchanged; it is inspected again within the hour"
    (result,) = one.maintain([COVERAGE.name], dry_run=True)
    assert result.data_files_after == 1
    assert len(stored(tables)) == 8
    list(one.maintain([COVERAGE.name]))
    assert len(stored(tables)) == 1
    assert (
        registry.get_sample_value("dexorder_spark_maintenance_coverage_rows_merged_total", {"table": COVERAGE.name})
        == 7
    )
    assert registry.get_sample_value("dexorder_spark_table_rows", {"table": COVERAGE.name}) == 1

    append_coverage(tables, pages(12)[8:], now_ns=NOW_NS)
    with monkeypatch.context() as patched:
        patched.setattr(procedures, "run", lambda *_: pytest.fail("four more are too few"))
        one.run_due()
    append_coverage(tables, pages(13)[12:], now_ns=NOW_NS)
    one.run_due()
    assert len(stored(tables)) == 1


def test_a_batch_that_is_not_in_the_commit_log_finds_its_rows(
    tables: Catalog, runner: Callable[..., MaintenanceRunner]
) -> None:
    clock = ManualClock(NOW_NS + 3_600 * SECOND_NS)
    one = runner(CollectorRegistry(), clock, coverage_grace_seconds=0)
    append_coverage(tables, pages(4), now_ns=NOW_NS)
    one.settle(NOW_NS)
    list(one.maintain([COVERAGE.name]))
    assert len(stored(tables)) == 4
    one.settle(NOW_NS + 1_000)
    list(one.maintain([COVERAGE.name]))
    assert len(stored(tables)) == 1


def test_a_failed_commit_is_reported_and_leaves_the_rows(
    tables: Catalog, runner: Callable[..., MaintenanceRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    registry = CollectorRegistry()
    one = runner(registry, ManualClock(NOW_NS), coverage_grace_seconds=0)
    one.settle(NOW_NS)
    append_coverage(tables, pages(4), now_ns=NOW_NS - SECOND_NS)
    monkeypatch.setattr(type(tables), "_write_metadata", full)
    with pytest.raises(MaintenanceFailed, match=r"trading\.coverage: mergecoverage failed: No space left"):
        list(one.maintain([COVERAGE.name]))
    assert len(stored(tables)) == 4
