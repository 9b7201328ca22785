from dataclasses import replace

from services.common.lake.catalog import CatalogSettings
from services.common.lake.tables import COVERAGE, DEAD_LETTERS
from services.common.model.history import PageResult
from services.common.model.instrument import Series
from services.common.model.times import SECOND_NS
from spark.pipeline.coverage_table import DeadLetter, append_coverage, append_dead_letters
from tests.fakes.pages import TICKER, span

NOW_NS = 1_800_000_000 * SECOND_NS
PAGE = PageResult("", Series(TICKER, 60), span(0, 10), (span(2, 3),), None, 1_700_000_000 * SECOND_NS, rows=7)


def test_coverage_has_range_rows_and_empty_ranges(catalog: CatalogSettings) -> None:
    assert append_coverage(catalog.load(), [PAGE], now_ns=NOW_NS) == 1
    row = catalog.load().load_table(COVERAGE.name).scan().to_arrow().to_pylist()[0]
    empty = row["empty"][0]
    assert (row["ticker"], row["period_seconds"], row["rows"], row["evidence"]) == (TICKER, 60, 7, "page")
    for moment, time_ns in (
        (row["start_time"], PAGE.span.start_ns),
        (row["end_time"], PAGE.span.end_ns),
        (row["fetched_at"], PAGE.fetched_ns),
        (row["committed_at"], NOW_NS),
        (empty["start_time"], span(2, 3).start_ns),
        (empty["end_time"], span(2, 3).end_ns),
    ):
        assert moment.timestamp() * SECOND_NS == time_ns


def test_a_replay_writes_only_the_missing_rows(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    later = replace(PAGE, fetched_ns=PAGE.fetched_ns + SECOND_NS)
    other = replace(PAGE, series=Series("ETH/USDT.BINANCE", 60))
    assert append_coverage(tables, [PAGE, PAGE], now_ns=NOW_NS) == 1, "a duplicate page in a batch"
    assert append_coverage(tables, [PAGE, later, other], now_ns=NOW_NS + 1) == 2
    assert append_coverage(tables, [PAGE, later, other], now_ns=NOW_NS + 2) == 0
    assert tables.load_table(COVERAGE.name).scan().count() == 3
    assert append_coverage(tables, [], now_ns=NOW_NS) == 0


def test_each_dead_letter_is_kept_once(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    first = DeadLetter(0, 7, "not a DataResponse", "key", {"dx-job": "j"}, b"\xff")
    second = DeadLetter(1, 7, "headers", None, {}, None)
    assert append_dead_letters(tables, "host:1", [first], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:1", [first, second], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:2", [first], now_ns=NOW_NS) == 1
    rows = tables.load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
    kept = next(row for row in rows if row["source"] == "host:1" and row["partition"] == 0)
    assert (kept["payload"], kept["headers"], kept["key"]) == (b"\xff", [("dx-job", "j")], "key")
