"""Lines merged in a real table, without Spark; what the relay reads of it must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.types import StringType

from services.common.clock import ManualClock
from services.common.lake.catalog import COVERAGE_TABLE, RETRACTION_TABLE, CatalogSettings
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import SECOND_NS
from services.relay.history.table_reader import TableReader
from spark.config import MaintenanceSettings
from spark.maintenance import coverage_merge, procedures
from spark.maintenance.coverage_merge import Merged, merge_coverage
from spark.maintenance.coverage_rows import CoverageRow, Retraction, merge_rows
from spark.maintenance.policy import MergeCoverage, PartitionState, TableState
from spark.maintenance.runner import MaintenanceFailed, MaintenanceRunner
from spark.metrics import MaintenanceMetrics
from spark.pipeline.columns import MICROS, schema
from spark.pipeline.coverage_table import GoodPage, append_coverage
from spark.runtime.writer_lock import WriterLock
from tests.fakes.pages import TICKER, span

NOW_NS = 1_800_000_000 * SECOND_NS
STEP = MergeCoverage(NOW_NS, min_rows=1, max_rows=100_000, repeats=1)
OTHER = "ETH/USDT.BINANCE"
View = tuple[list[TimeRange], list[TimeRange]]


class Killed(BaseException):
    """As SIGKILL: nothing behind it runs that catches errors."""


def page(
    first: int, count: int, fetched_s: int = 1_700_000_000, *, empty: Sequence[int] = (), ticker: str = TICKER
) -> GoodPage:
    holes = tuple(merge(span(n, 1) for n in empty))
    return GoodPage(ticker, 60, span(first, count), fetched_s * SECOND_NS, count - len(empty), holes)


def pages(count: int, **given: Any) -> list[GoodPage]:
    return [page(n * 10, 10, 1_700_000_000 + n, **given) for n in range(count)]


@pytest.fixture
def tables(catalog: CatalogSettings) -> Catalog:
    return catalog.load()


def lines(tables: Catalog) -> list[CoverageRow]:
    ledger = tables.load_table(COVERAGE_TABLE).scan().to_arrow()
    return sorted(line for _, line in coverage_merge._lines(ledger.append_column("row", pa.array(range(len(ledger))))))


def relay_sees(tables: Catalog, ticker: str = TICKER) -> View:
    found = [c for c in TableReader(tables).coverage() if c.series.ticker == ticker]
    return merge(c.span for c in found), merge(part for c in found for part in c.empty)


def retract(tables: Catalog, *retractions: Retraction) -> None:
    columns = schema(
        pa.field("ticker", pa.string()),
        pa.field("period_seconds", pa.int32()),
        pa.field("start_time", MICROS),
        pa.field("end_time", MICROS),
        pa.field("reason", pa.string()),
        pa.field("retracted_at", MICROS),
    )
    rows = [
        {
            "ticker": r.ticker,
            "period_seconds": r.period_seconds,
            "start_time": r.span.start_ns // 1_000,
            "end_time": r.span.end_ns // 1_000,
            "reason": "rows lost",
            "retracted_at": r.retracted_ns // 1_000,
        }
        for r in retractions
    ]
    table = tables.create_table_if_not_exists(RETRACTION_TABLE, columns)
    table.append(pa.Table.from_pylist(rows, schema=columns))


def test_pages_become_one_line_in_one_file_and_the_relay_sees_the_same(tables: Catalog) -> None:
    for n, one in enumerate([*pages(6, empty=()), page(60, 10, empty=[60, 61, 69]), page(0, 30, ticker=OTHER)]):
        append_coverage(tables, [one], now_ns=NOW_NS - 100 + n * 1_000)
    before = [relay_sees(tables, ticker) for ticker in (TICKER, OTHER)]
    assert merge_coverage(tables, STEP) == Merged(before=8, after=8, left=1), "but for one they are too young"
    later = MergeCoverage(NOW_NS + 10_000, 1, 100_000, 1)
    assert merge_coverage(tables, later) == Merged(before=8, after=2, left=2)
    assert [relay_sees(tables, ticker) for ticker in (TICKER, OTHER)] == before
    table = tables.load_table(COVERAGE_TABLE)
    assert len(list(table.scan().plan_files())) == 1
    assert lines(tables)[0] == CoverageRow(
        TICKER,
        60,
        span(0, 70),
        fetched_ns=1_700_000_000 * SECOND_NS,
        committed_ns=NOW_NS + 5_000,
        rows=67,
        empty=(span(60, 2), span(69, 1)),
        evidence="merged 7 pages: page",
    )
    assert merge_coverage(tables, later) == Merged(before=2, after=2, left=2)
    assert tables.load_table(COVERAGE_TABLE).current_snapshot() == table.current_snapshot(), "nothing was committed"


def test_young_pages_stay_and_a_replay_finds_them(tables: Catalog) -> None:
    old, young = pages(8)[:4], pages(8)[4:]
    append_coverage(tables, old, now_ns=NOW_NS - SECOND_NS)
    append_coverage(tables, young, now_ns=NOW_NS)
    assert merge_coverage(tables, STEP) == Merged(before=8, after=5, left=1)
    assert append_coverage(tables, young, now_ns=NOW_NS + SECOND_NS) == 0


def test_what_does_not_pay_is_not_committed(tables: Catalog) -> None:
    append_coverage(tables, pages(4), now_ns=NOW_NS - SECOND_NS)
    snapshot = tables.load_table(COVERAGE_TABLE).current_snapshot()
    assert merge_coverage(tables, MergeCoverage(NOW_NS, 4, 100_000, 1)) == Merged(before=4, after=4, left=4)
    assert tables.load_table(COVERAGE_TABLE).current_snapshot() == snapshot
    assert merge_coverage(tables, MergeCoverage(NOW_NS, 3, 100_000, 1)).after == 1


def test_merged_pages_that_are_replayed_say_nothing_new_and_go_into_the_line_again(tables: Catalog) -> None:
    """As by a lost checkpoint: everything comes again, in its order or not; an older copy was overruled in between."""
    everything = [page(0, 20, 1_700_000_000, empty=[3, 4]), page(0, 10, 1_700_000_500, empty=[4]), *pages(6)[2:]]
    append_coverage(tables, everything, now_ns=NOW_NS - SECOND_NS)
    merge_coverage(tables, STEP)
    (merged,) = lines(tables)
    assert (merged.span, merged.rows, merged.empty) == (span(0, 60), 59, (span(4, 1),)), "minute 3 has a row"
    for _ in range(3):
        assert append_coverage(tables, [*reversed(everything), page(5, 10, 1_600_000_000)], now_ns=NOW_NS - 1_000) == 7
        assert relay_sees(tables)[0] == [span(0, 60)]
        merge_coverage(tables, STEP)
        (again,) = lines(tables)
        assert (again.span, again.rows, again.empty) == (merged.span, merged.rows, merged.empty)


def test_a_replay_does_not_bring_back_what_was_taken_back(tables: Catalog) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    merge_coverage(tables, STEP)
    retract(
        tables,
        Retraction(TICKER, 60, span(20, 10), 1_750_000_000 * SECOND_NS),
        Retraction(OTHER, 60, span(0, 60), NOW_NS),
    )
    append_coverage(tables, pages(6), now_ns=NOW_NS - 1_000)
    merge_coverage(tables, STEP)
    assert [one.span for one in lines(tables)] == [span(0, 20), span(30, 30)]
    again = page(20, 10, 1_750_000_001)
    append_coverage(tables, [again, *pages(6)], now_ns=NOW_NS - 1_000)
    merge_coverage(tables, STEP)
    found = lines(tables)
    assert [(one.span, one.rows) for one in found] == [(span(0, 20), 20), (span(20, 10), 10), (span(30, 30), 30)]
    assert found[1].fetched_ns == again.fetched_ns


def test_a_kill_before_the_catalog_knows_leaves_the_old_lines(tables: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    before = lines(tables)
    write = SqlCatalog._write_metadata

    def die(*given: Any, **named: Any) -> None:
        write(*given, **named)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(SqlCatalog, "_write_metadata", staticmethod(die))
        merge_coverage(tables, STEP)
    assert lines(tables) == before
    assert append_coverage(tables, pages(6), now_ns=NOW_NS) == 0, "a replay finds each of them"
    assert merge_coverage(tables, STEP) == Merged(before=6, after=1, left=1)


def test_a_row_of_a_writer_that_should_not_be_there_is_not_lost(
    tables: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)

    def meanwhile(*given: Any) -> list[CoverageRow]:
        """Between the look and the commit."""
        append_coverage(tables, [page(60, 10)], now_ns=NOW_NS - SECOND_NS)
        return merge_rows(*given)

    monkeypatch.setattr(coverage_merge, "merge_rows", meanwhile)
    with pytest.raises(ValidationException):
        merge_coverage(tables, STEP)
    assert relay_sees(tables)[0] == [span(0, 70)]


def test_columns_and_rows_it_does_not_know_stay(tables: Catalog) -> None:
    table = tables.load_table(COVERAGE_TABLE)
    with table.update_schema() as change:
        change.add_column("note", StringType())
    append_coverage(tables, pages(6), now_ns=NOW_NS - SECOND_NS)
    append_coverage(tables, [page(0, 1, ticker=OTHER)], now_ns=NOW_NS)
    table = tables.load_table(COVERAGE_TABLE)
    rows = table.scan().to_arrow()
    odd = next(row for row in rows.to_pylist() if row["ticker"] == TICKER)
    odd |= {"ticker": OTHER, "note": "kept", "start_time": odd["end_time"], "end_time": odd["start_time"]}
    table.append(pa.Table.from_pylist([odd], schema=rows.schema))
    assert merge_coverage(tables, STEP) == Merged(before=8, after=3, left=2), "a reversed range is no line"
    assert sorted(tables.load_table(COVERAGE_TABLE).scan().to_arrow().column("note").to_pylist(), key=str) == [
        None,
        None,
        "kept",
    ]


def test_a_step_compares_about_as_many_lines_as_it_may(tables: Catalog) -> None:
    names = [f"T{n}/USDT.BINANCE" for n in range(4)]
    for n, name in enumerate(names):
        append_coverage(tables, pages(3 + n, ticker=name), now_ns=NOW_NS - SECOND_NS)
    step = MergeCoverage(NOW_NS, 1, max_rows=8, repeats=1)
    assert merge_coverage(tables, step) == Merged(before=18, after=9, left=9), "of 6 and 5 lines"
    assert merge_coverage(tables, step) == Merged(before=9, after=4, left=4)
    assert merge_coverage(tables, step).after == 4


# ---- by the caretaker ----------------------------------------------------------------------------------------------


class Session:
    """A session whose only use is to be there."""


@pytest.fixture
def runner(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MaintenanceRunner]:
    def look(session: object, settings: CatalogSettings, name: str, policy: object) -> TableState:
        return TableState(
            name, (PartitionState((), 1, 9, 1, 9, rows=settings.load().load_table(name).scan().count()),), 1, (1,)
        )

    def made(registry: CollectorRegistry, clock: ManualClock, **given: Any) -> MaintenanceRunner:
        found = MaintenanceRunner(
            catalog, MaintenanceSettings(**given), WriterLock(), MaintenanceMetrics(registry), clock=clock
        )
        found.attach(Session())  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(procedures, "look", look)
    return made


def test_the_caretaker_merges_what_is_settled_and_old_and_tells_how_many(
    tables: Catalog, runner: Callable[..., MaintenanceRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, clock = CollectorRegistry(), ManualClock(NOW_NS)
    one = runner(registry, clock, coverage_rows=5, coverage_grace_seconds=600)
    append_coverage(tables, pages(8), now_ns=NOW_NS)
    one.settle(NOW_NS + SECOND_NS)
    one.run_due()
    assert len(lines(tables)) == 8, "within the grace"
    clock.advance(601 * SECOND_NS)
    one.run_due()
    assert len(lines(tables)) == 8, "the table is as it was; looked at again within the hour"
    (care,) = one.maintain([COVERAGE_TABLE], dry_run=True)
    assert care.data_files_after == 1
    assert len(lines(tables)) == 8
    list(one.maintain([COVERAGE_TABLE]))
    assert len(lines(tables)) == 1
    assert registry.get_sample_value("dexorder_spark_maintenance_lines_merged_total", {"table": COVERAGE_TABLE}) == 7
    assert registry.get_sample_value("dexorder_spark_table_rows", {"table": COVERAGE_TABLE}) == 1

    append_coverage(tables, pages(12)[8:], now_ns=NOW_NS)
    with monkeypatch.context() as patched:
        patched.setattr(procedures, "run", lambda *_: pytest.fail("four more are too few"))
        one.run_due()
    append_coverage(tables, pages(13)[12:], now_ns=NOW_NS)
    one.run_due()
    assert len(lines(tables)) == 1


def test_a_batch_that_is_not_in_the_commit_log_finds_its_lines(
    tables: Catalog, runner: Callable[..., MaintenanceRunner]
) -> None:
    clock = ManualClock(NOW_NS + 3_600 * SECOND_NS)
    one = runner(CollectorRegistry(), clock, coverage_grace_seconds=0)
    append_coverage(tables, pages(4), now_ns=NOW_NS)
    one.settle(NOW_NS)
    list(one.maintain([COVERAGE_TABLE]))
    assert len(lines(tables)) == 4
    one.settle(NOW_NS + 1_000)
    list(one.maintain([COVERAGE_TABLE]))
    assert len(lines(tables)) == 1


def test_a_failed_commit_is_told_and_leaves_the_lines(
    tables: Catalog, runner: Callable[..., MaintenanceRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    registry = CollectorRegistry()
    one = runner(registry, ManualClock(NOW_NS), coverage_grace_seconds=0)
    one.settle(NOW_NS)
    append_coverage(tables, pages(4), now_ns=NOW_NS - SECOND_NS)
    monkeypatch.setattr(SqlCatalog, "_write_metadata", staticmethod(full))
    with pytest.raises(MaintenanceFailed, match=r"trading\.coverage: mergecoverage failed: No space left"):
        list(one.maintain([COVERAGE_TABLE]))
    assert len(lines(tables)) == 4
