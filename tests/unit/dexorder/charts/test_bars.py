"""Bars are whole periods: the candles of one are those that the period's grid puts together."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import groupby

import pytest

from dexorder.charts.bars import Bar, combine, fitting, levels, marked
from dexorder_common.model.periods import PERIOD_SECONDS, PERIODS, floor_to_grid, next_open
from dexorder_common.model.times import SECOND_NS, iso
from tests.fakes.candle_table import START


def opens(period: str, count: int, start_ns: int = START, *, missing: float = 0.0) -> list[int]:
    """Return open times of candles, without a part of them."""
    seconds, rng = PERIOD_SECONDS[period], random.Random(count)
    first = floor_to_grid(start_ns, seconds)
    return [next_open(first, seconds, n) for n in range(count) if rng.random() >= missing]


@pytest.mark.parametrize("period", PERIODS.values())
@pytest.mark.parametrize("missing", [0.0, 0.6])
def test_each_level_has_the_bars_that_the_grid_of_its_period_makes(period: str, missing: float) -> None:
    times = opens(period, 700, START + 1_234_567 * SECOND_NS, missing=missing)
    for level in levels(times, PERIOD_SECONDS[period]):
        if seconds := PERIOD_SECONDS.get(level.name):
            grouped = [(key, list(each)) for key, each in groupby(times, lambda each: floor_to_grid(each, seconds))]
            assert list(level.opens_ns) == [key for key, _ in grouped], level.name
            assert [times[n] for n in level.starts] == [each[0] for _, each in grouped], level.name


@pytest.mark.parametrize(
    ("period", "count", "limit", "name"),
    [
        ("1s", 601, 600, "5s"),
        ("1m", 50_000, 600, "2h"),
        ("3m", 601, 600, "15m"),  # 5 minutes are not whole candles of 3
        ("8h", 601, 600, "1d"),
        ("1d", 600, 600, "1d"),
        ("1d", 601, 600, "1w"),
        ("1d", 6_000, 600, "1M"),
        ("1w", 1_300, 600, "3w"),  # a week belongs to two months
        ("1M", 300, 100, "3M"),
        ("1h", 100_000, 2, "120M"),
        ("1h", 100, 1, "1w"),
        ("1M", 20_000, 1, "all candles"),
    ],
)
def test_the_shortest_period_that_fits_is_shown(period: str, count: int, limit: int, name: str) -> None:
    found = fitting(opens(period, count), PERIOD_SECONDS[period], limit)
    assert found.name == name and len(found.starts) <= limit


def test_months_open_on_the_first_and_years_in_january() -> None:
    times = opens("1d", 800, int(datetime(2023, 11, 17, tzinfo=UTC).timestamp()) * SECOND_NS)
    by_name = {level.name: [iso(each)[:10] for each in level.opens_ns] for level in levels(times, 86_400)}
    assert by_name["1M"][:3] == ["2023-11-01", "2023-12-01", "2024-01-01"]
    assert by_name["12M"] == ["2023-01-01", "2024-01-01", "2025-01-01", "2026-01-01"]
    assert by_name["1w"][:2] == ["2023-11-13", "2023-11-20"]  # Mondays


def test_a_bar_combines_its_candles() -> None:
    single = [Bar(n, 10 + n, 12 + n, 5 - n, 11 - n, 0.1) for n in opens("1h", 3)]
    single = [
        Bar(each.open_ns, *values)
        for each, values in zip(single, [(2, 6, 1, 4, 1), (4, 9, 3, 8, 2), (8, 8, 0, 2, 4)], strict=True)
    ]
    first, last = combine(single, fitting([each.open_ns for each in single], 3_600, 2))
    assert (first.open, first.high, first.low, first.close, first.volume) == (2, 9, 1, 8, 3)
    assert last == single[2]


def test_the_end_of_a_candle_belongs_to_it() -> None:
    assert marked([10, 20, 30], [10, 11, 20, 21, 99]) == [0, 1, 2]
