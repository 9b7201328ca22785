"""The oracle of the crash campaigns finds lost, duplicate and changed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.tables import ohlc
from tests.nightly.numbered_pages import CANDLES, PAGES, TICKERS, NumberedPages, Page

TURNS = 6
Change = Callable[[pa.Table], pa.Table]


def sent(turns: int = TURNS) -> tuple[NumberedPages, list[Page]]:
    pages = NumberedPages()
    return pages, [page for _ in range(turns) for page in pages.more()]


def table(pages: list[Page]) -> pa.Table:
    """Return the expected table: the rows as the pipeline decodes them, the latest of each key."""
    batches: list[pa.RecordBatch] = []
    for page in sorted(pages, key=lambda page: page.version):
        decode_record(ohlc.CANDLES, {"headers": page.control.encode(), "payload": page.value}, batches.append)
    rows = {(row["ticker"], row["open_time"]): row for batch in batches for row in batch.to_pylist()}
    return pa.Table.from_pylist(list(rows.values()), schema=OHLC.arrow)


def covered(pages: list[Page]) -> pa.Table:
    names = ["ticker", "rows", "start_time", "end_time", "fetched_at"]
    controls = [page.control for page in pages]
    values: list[list[Any]] = [
        [c.ticker for c in controls],
        [CANDLES] * len(controls),
        [c.span.start_ns // 1_000 for c in controls],
        [c.span.end_ns // 1_000 for c in controls],
        [c.fetched_ns // 1_000 for c in controls],
    ]
    types: tuple[Any, ...] = (pa.string(), pa.int64(), MICROSECONDS, MICROSECONDS, MICROSECONDS)
    columns: list[Any] = [pa.array(each, kind) for each, kind in zip(values, types, strict=True)]
    return pa.table(columns, names=names)


def test_the_pages_sent_are_correct() -> None:
    pages, each = sent()
    assert len(set(each)) == len(each) and {page.ticker for page in each} == set(range(len(TICKERS)))
    verdict = pages.verdict(table(each), covered(each))
    assert verdict.rows == TURNS * PAGES * len(TICKERS) * CANDLES
    verdict.fail_if_wrong()


def test_some_pages_are_repeated_in_newer_and_older_versions() -> None:
    _, each = sent()
    newest: dict[tuple[int, int], int] = {}
    again = []
    for page in each:
        if (before := newest.get((page.ticker, page.index))) is not None:
            again.append(page.version > before)
        newest[page.ticker, page.index] = max(before or 0, page.version)
    assert set(again) == {True, False}


def replaced(rows: pa.Table, name: str, value: object) -> pa.Table:
    """Return the rows with another value in the first row."""
    column = rows[name].to_pylist()
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array([value, *column[1:]], rows[name].type))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda rows: rows.slice(1), {"lost": 1}),
        (lambda rows: rows.slice(0, 0), {"lost": TURNS * PAGES * len(TICKERS) * CANDLES}),
        (lambda rows: pa.concat_tables([rows, rows.slice(5, 3)]), {"doubled": 3}),
        (lambda rows: replaced(rows, "close", 1.0), {"wrong": 1}),
        (lambda rows: replaced(rows, "trades", 99), {"wrong": 1}),
        (lambda rows: replaced(rows, "fetched_at", SECOND_NS), {"wrong": 1}),
        (lambda rows: replaced(rows, "ticker", "X/Y.Z"), {"lost": 1, "wrong": 1}),
        (lambda rows: replaced(rows, "period_seconds", 300), {"lost": 1, "wrong": 1}),
        (lambda rows: replaced(rows, "open_time", 1), {"lost": 1, "wrong": 1}),
    ],
)
def test_errors_are_counted(change: Change, wrong: dict[str, int]) -> None:
    pages, each = sent()
    verdict = pages.verdict(change(table(each)), covered(each))
    assert {name: value for name, value in vars(verdict).items() if value and name != "rows"} == wrong
    with pytest.raises(AssertionError):
        verdict.fail_if_wrong()


@pytest.mark.parametrize(
    "change", [lambda rows: rows.slice(1), lambda rows: pa.concat_tables([rows, rows.slice(0, 1)])]
)
def test_coverage_has_each_page_once(change: Change) -> None:
    pages, each = sent()
    assert pages.verdict(table(each), change(covered(each))).coverage == 1
