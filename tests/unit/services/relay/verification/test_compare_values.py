"""Rows compared with the exchange's coarser candles: tables, and random candles of which one value is changed."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import WEEK_SECONDS, split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.reading.rows import CANDLE_COLUMNS
from dexorder_relay.verification.compare_values import compare_values, fetch_ranges, whole_cells

MINUTE_NS = 60 * SECOND_NS
TOLERANCE = 1e-9


def span(start: int, end: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, end * MINUTE_NS)


def table(candles: Sequence[Candle]) -> pa.Table:
    columns = zip(*candles, strict=True) if candles else [()] * len(CANDLE_COLUMNS)
    values: dict[str, Any] = {
        name: pa.array(column, pa.float64() if name != "open_time" else pa.int64())
        for name, column in zip(CANDLE_COLUMNS, columns, strict=True)
    }
    values["open_time"] = values["open_time"].cast(pa.timestamp("ns")).cast(pa.timestamp("us"))
    return pa.table(values)


def cell_of(minutes: Sequence[Candle], open_ns: int) -> Candle:
    """The cell of some minutes, added up one by one: not by the code under test."""
    first, last = minutes[0], minutes[-1]
    high, low = sorted(c.high for c in minutes)[-1], sorted(c.low for c in minutes)[0]
    return Candle(open_ns, first.open, high, low, last.close, fsum(c.volume for c in minutes))


def minute(number: int, **values: Any) -> Candle:
    return Candle(number * MINUTE_NS, 2.0, 4.0 + number % 7, 1.0, 3.0, 0.1 * (1 + number % 5))._replace(**values)


MINUTES = [minute(n) for n in range(60)]
CELLS = [cell_of(MINUTES[n : n + 5], MINUTES[n].open_ns) for n in range(0, 60, 5)]

TINY = [minute(0, volume=1e9), minute(2, volume=1e-3)]


def differing(minutes: Sequence[Candle], cells: Sequence[Candle] = CELLS, *compared: TimeRange) -> list[int]:
    """Return the numbers of the first minutes of the cells that differ."""
    found = compare_values(table(minutes), table(cells), compared or [span(0, 60)], 300, TOLERANCE)
    return [each.span.start_ns // MINUTE_NS for each in found]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("open", {"open": 2.5}),
        ("close", {"close": 2.5}),
        ("high", {"high": 90.0}),
        ("low", {"low": 0.5}),
        ("volume", {"volume": 0.6}),
    ],
)
def test_one_changed_value_is_found(name: str, change: dict[str, float]) -> None:
    assert differing(MINUTES) == []
    first_or_last = 20 if name == "open" else 24
    changed = [minute(n, **change) if n == first_or_last else each for n, each in enumerate(MINUTES)]
    assert differing(changed) == [20]


@pytest.mark.parametrize(
    ("name", "minutes", "cells", "expected"),
    [
        ("nothing at all", [], [], []),
        ("a row is absent", MINUTES[:7] + MINUTES[8:], CELLS, [5]),
        ("a cell has no row", MINUTES[:5] + MINUTES[10:], CELLS, [5]),
        ("the exchange has no cell", MINUTES, CELLS[:1] + CELLS[2:], [5]),
        ("neither has anything", MINUTES[:5] + MINUTES[10:], CELLS[:1] + CELLS[2:], []),
        ("no rows", [], CELLS, list(range(0, 60, 5))),
        ("no cells", MINUTES, [], list(range(0, 60, 5))),
        ("volume differs by rounding", [*MINUTES[:-1], minute(59, volume=0.5 * (1 + 1e-10))], CELLS, []),
        ("a candle within the rounding, and a hole", TINY, [cell_of(TINY, 0)], []),
        ("the last cell", [*MINUTES[:-1], minute(59, close=3.5)], CELLS, [55]),
    ],
)
def test_cells_that_differ(name: str, minutes: list[Candle], cells: list[Candle], expected: list[int]) -> None:
    assert differing(minutes, cells) == expected


def test_only_given_ranges_are_compared() -> None:
    changed = [each._replace(close=0.5) for each in MINUTES]
    assert differing(changed, CELLS, span(10, 20), span(35, 40)) == [10, 15, 35]
    assert differing(changed, CELLS, span(55, 60)) == [55]


def test_both_values_are_told() -> None:
    changed = [*MINUTES[:4], minute(4, close=2.5), *MINUTES[5:]]
    (found,) = compare_values(table(changed), table(CELLS), [span(0, 60)], 300, TOLERANCE)
    assert str(found) == "close 2.5, 3.0 at the exchange"
    assert found.table and found.table.volume == pytest.approx(1.5)
    (none,) = compare_values(table(MINUTES[5:]), table(CELLS), [span(0, 60)], 300, TOLERANCE)
    assert (none.table, str(none)) == (None, "the exchange has candles, the table has none")


prices = st.floats(0.01, 1e6)
values = st.tuples(prices, prices, prices, prices, st.floats(1e-3, 1e6))


@given(st.data(), st.lists(st.none() | values, min_size=40, max_size=40), st.sampled_from([300, 600, 1_200]))
def test_random_candles_agree_and_one_changed_value_is_found(
    data: st.DataObject, drawn: list[tuple[float, ...] | None], cell_seconds: int
) -> None:
    minutes = []
    for number, each in enumerate(drawn):
        if each:
            open_, close, one, other, volume = each
            high, low = max(open_, close, one, other), min(open_, close, one, other)
            minutes.append(Candle(number * MINUTE_NS, open_, high, low, close, volume))
    whole = span(0, 40)
    cells = []
    for cell in split_by_periods(whole, cell_seconds, 1):
        inside = [c for c in minutes if cell.start_ns <= c.open_ns < cell.end_ns]
        cells += [cell_of(inside, cell.start_ns)] if inside else []
    compared = [table(minutes), table(cells), [whole], cell_seconds, TOLERANCE]
    assert list(compare_values(*compared)) == []  # type: ignore[arg-type]
    if not cells:
        return
    index = data.draw(st.integers(0, len(cells) - 1))
    name = data.draw(st.sampled_from(["open", "high", "low", "close", "volume"]))
    changed = cells[index]._replace(**{name: getattr(cells[index], name) * 1.001})
    compared[1] = table([*cells[:index], changed, *cells[index + 1 :]])
    (found,) = compare_values(*compared)  # type: ignore[arg-type]
    assert (found.span.start_ns, found.exchange) == (changed.open_ns, changed)


def test_whole_cells_leave_out_cut_and_young_ones() -> None:
    parts = [span(3, 4), span(7, 23), span(30, 44), span(46, 49)]
    assert whole_cells(parts, 300, settled_ns=span(0, 60).end_ns) == [span(10, 20), span(30, 40)]
    assert whole_cells(parts, 300, settled_ns=span(0, 36).end_ns) == [span(10, 20), span(30, 35)]
    assert whole_cells([TimeRange(0, 30 * 86_400 * SECOND_NS)], WEEK_SECONDS, settled_ns=2**62) == [
        TimeRange(4 * 86_400 * SECOND_NS, 25 * 86_400 * SECOND_NS)
    ]


def test_ranges_within_a_call_are_fetched_together_and_their_number_is_limited() -> None:
    cells = [span(0, 5), span(20, 25), span(200, 210), span(400, 405)]
    assert fetch_ranges(cells, 300, 10, 9) == [span(0, 25), span(200, 210), span(400, 405)]
    assert fetch_ranges(cells, 300, 10, 2) == [span(0, 25), span(200, 210)]
    assert fetch_ranges(cells, 300, 100, 1) == [span(0, 405)]
    assert fetch_ranges(cells, 300, 10, 0) == fetch_ranges([], 300, 10, 9) == []
