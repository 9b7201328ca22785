from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.lake.catalog import CatalogSettings
from services.common.lake.tables import MICROSECONDS, OHLC
from services.common.model.instrument import Series
from services.common.model.page import Candle
from services.common.model.time_range import TimeRange
from spark.pipeline.upsert import (
    KeyRange,
    Presence,
    ScanRange,
    compare,
    merge_condition,
    overlap,
    presence_of,
    scan_ranges,
)
from spark.tables.ohlc import CANDLES
from tests.fakes.pages import DAY, MINUTE_NS, TICKER, candle, span

spans = st.builds(lambda a, n: TimeRange(a, a + n), st.integers(0, 50), st.integers(1, 20))
pages = st.lists(
    st.builds(KeyRange, st.builds(Series, st.sampled_from(["A.X", "B.X", "C.Y"]), st.sampled_from([60, 300])), spans),
    max_size=12,
)


@given(pages, st.integers(1, 8))
def test_scan_ranges_contain_every_key_and_are_few(some: list[KeyRange], limit: int) -> None:
    found = scan_ranges(some, limit)
    for one in some:
        assert any(
            one.series[0] in scan.first_values and scan.other_values == one.series[1:] and scan.span.contains(one.span)
            for scan in found
        )
    assert len(found) <= max(limit, len({one.series[1:] for one in some}))


def test_adjacent_pages_are_one_exact_range() -> None:
    run = [KeyRange(Series(TICKER, 60), span(n * 10, 10)) for n in (2, 0, 1)]
    assert scan_ranges(run) == [ScanRange((TICKER,), (60,), span(0, 30))]


@given(pages)
def test_overlap_is_two_pages_with_a_common_key(some: list[KeyRange]) -> None:
    pairs = [(a, b) for i, a in enumerate(some) for b in some[:i] if a.series == b.series]
    assert overlap(some) == any(a.span.intersect(b.span) for a, b in pairs)


def test_text_of_a_ticker_cannot_leave_its_quotes() -> None:
    condition = merge_condition(CANDLES, [ScanRange(("A'\\ OR 1=1.X",), (60,), span(0, 1))])
    assert r"t.ticker IN ('A\'\\ OR 1=1.X')" in condition
    assert "TIMESTAMP '2024-01-31 23:30:00+00:00'" in condition


def arrow(candles: list[Candle], ticker: str = TICKER) -> pa.Table:
    times = pa.array([c.open_ns // 1_000 for c in candles], pa.int64()).cast(MICROSECONDS)
    size = len(candles)
    columns: dict[str, Any] = {
        "ticker": [ticker] * size,
        "period_seconds": [60] * size,
        "open_time": times,
        "fetched_at": times,
        "quote_volume": [None] * size,
        "trades": [None] * size,
        "dispatch": [None] * size,
        "page": [None] * size,
    } | {name: [getattr(c, name) for c in candles] for name in ("open", "high", "low", "close", "volume")}
    return pa.table([pa.array(columns[f.name], f.type) for f in OHLC.arrow], schema=OHLC.arrow)


@pytest.mark.parametrize(
    ("ticker", "minutes", "expected"),
    [
        (TICKER, [0], Presence.ALL),
        (TICKER, [0, 1, 5, 6], Presence.ALL),
        (TICKER, [2], Presence.NOTHING),  # within the file's bounds, but not in the file
        (TICKER, [4, 5], Presence.SOMETHING),
        (TICKER, [10], Presence.NOTHING),
        ("ETH/USDT.BINANCE", [0, 1], Presence.NOTHING),
    ],
)
def test_presence_is_the_share_of_rows_that_the_table_has(
    catalog: CatalogSettings, ticker: str, minutes: list[int], expected: Presence
) -> None:
    table = catalog.load().load_table(OHLC.name)
    table.append(arrow([candle(n) for n in (0, 1, 5, 6)]))
    assert DAY % MINUTE_NS == 0
    scan = ScanRange((ticker,), (60,), span(minutes[0], minutes[-1] - minutes[0] + 1))
    staged = versions(dict.fromkeys(minutes, (None, None)), ticker)
    assert presence_of(CANDLES, table, [scan], lambda: staged) is expected


def test_an_empty_table_has_nothing_and_no_file_is_read(catalog: CatalogSettings) -> None:
    table = catalog.load().load_table(OHLC.name)
    scan = ScanRange((TICKER,), (60,), span(0, 10))
    assert presence_of(CANDLES, table, [scan], lambda: pytest.fail("read")) is Presence.NOTHING


Version = tuple[int | None, int | None]


def versions(some: dict[int, Version], ticker: str = TICKER) -> pa.Table:
    """Version columns of candles, given as the dispatch and the page of each minute."""
    rows = [
        {
            "ticker": ticker,
            "period_seconds": 60,
            "open_time": candle(minute).open_ns // 1_000,
            "dispatch": dispatch,
            "page": page,
        }
        for minute, (dispatch, page) in some.items()
    ]
    return pa.Table.from_pylist(rows, schema=CANDLES.arrow_of(CANDLES.version_columns))


def number(version: Version) -> tuple[int, int]:
    """A row of an earlier release has neither, and counts as the oldest."""
    return version[0] or 0, version[1] or 0


numbers = st.none() | st.integers(1, 2) | st.just(2**62 - 1)
some_versions = st.dictionaries(st.integers(0, 6), st.tuples(numbers, st.none() | st.integers(0, 2)), max_size=7)


@given(some_versions, some_versions)
def test_a_candle_is_present_if_its_version_is_the_same_or_larger(
    staged: dict[int, Version], found: dict[int, Version]
) -> None:
    if not staged.keys() & found.keys():
        expected = Presence.NOTHING
    elif all(minute in found and number(found[minute]) >= number(version) for minute, version in staged.items()):
        expected = Presence.ALL
    else:
        expected = Presence.SOMETHING
    assert compare(CANDLES, versions(staged), versions(found)) is expected
