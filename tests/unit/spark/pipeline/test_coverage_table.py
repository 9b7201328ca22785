from dataclasses import replace

from services.common.lake.catalog import COVERAGE_TABLE, DEAD_LETTER_TABLE, CatalogSettings
from services.common.model.times import SECOND_NS
from spark.pipeline.coverage_table import DeadLetter, GoodPage, append_coverage, append_dead_letters
from tests.fakes.pages import TICKER, span

NOW_NS = 1_800_000_000 * SECOND_NS
PAGE = GoodPage(TICKER, 60, span(0, 10), 1_700_000_000 * SECOND_NS, 7, (span(2, 3),))


def test_coverage_says_range_rows_and_empty_ranges(catalog: CatalogSettings) -> None:
    assert append_coverage(catalog.load(), [PAGE], now_ns=NOW_NS) == 1
    row = catalog.load().load_table(COVERAGE_TABLE).scan().to_arrow().to_pylist()[0]
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


def test_a_replay_writes_only_the_rows_that_are_missing(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    later = replace(PAGE, fetched_ns=PAGE.fetched_ns + SECOND_NS)
    other = replace(PAGE, ticker="ETH/USDT.BINANCE")
    assert append_coverage(tables, [PAGE, PAGE], now_ns=NOW_NS) == 1, "a page twice in a batch"
    assert append_coverage(tables, [PAGE, later, other], now_ns=NOW_NS + 1) == 2
    assert append_coverage(tables, [PAGE, later, other], now_ns=NOW_NS + 2) == 0
    assert tables.load_table(COVERAGE_TABLE).scan().count() == 3
    assert append_coverage(tables, [], now_ns=NOW_NS) == 0


def test_dead_letters_are_kept_once_each(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    first = DeadLetter(0, 7, "no DataResponse", "key", {"dx-job": "j"}, b"\xff")
    second = DeadLetter(1, 7, "headers", None, {}, None)
    assert append_dead_letters(tables, "host:1", [first], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:1", [first, second], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:2", [first], now_ns=NOW_NS) == 1
    rows = tables.load_table(DEAD_LETTER_TABLE).scan().to_arrow().to_pylist()
    kept = next(row for row in rows if row["source"] == "host:1" and row["partition"] == 0)
    assert (kept["payload"], kept["headers"], kept["key"]) == (b"\xff", [("dx-job", "j")], "key")
