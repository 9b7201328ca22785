from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.page import Candle
from services.common.model.periods import MONTH_SECONDS, PERIODS, WEEK_SECONDS, floor_to_grid, is_on_grid, next_open
from services.common.model.times import SECOND_NS, parse_time
from services.ingestor.exchange.dialects.candle_building import CandleBuilder

DAY_NS = parse_time("2024-02-28")
Made = list[tuple[int, str, str]]


def built(trades: Made, period_seconds: int = 60) -> list[Candle]:
    builder = CandleBuilder(period_seconds)
    for time_ns, price, amount in trades:
        builder.add(time_ns, Decimal(price), Decimal(amount))
    found = builder.candles()
    assert len(builder) == len(found)
    return found


def test_candle_of_its_trades() -> None:
    trades = [(DAY_NS + 59, "3", "0.1"), (DAY_NS + 59, "5", "0.2"), (DAY_NS + 60, "1", "0.3"), (DAY_NS + 61, "2", "0")]
    assert built(trades) == [Candle(DAY_NS, 3.0, 5.0, 1.0, 2.0, 0.6, quote_volume=1.6, trade_count=4)]


def test_period_without_trades_has_no_candle_and_borders_are_exact() -> None:
    minute_ns = 60 * SECOND_NS
    trades = [(DAY_NS + t, "1", "1") for t in (0, minute_ns - 1, minute_ns, 5 * minute_ns)]
    assert [(c.open_ns - DAY_NS, c.trade_count) for c in built(trades)] == [(0, 2), (minute_ns, 1), (5 * minute_ns, 1)]


@pytest.mark.parametrize(
    ("period_seconds", "days", "opens"),
    [
        (WEEK_SECONDS, ["2024-02-25", "2024-02-26", "2024-03-03"], ["2024-02-19", "2024-02-26"]),
        (MONTH_SECONDS, ["2024-02-01", "2024-02-29", "2024-03-31"], ["2024-02-01", "2024-03-01"]),
    ],
)
def test_weeks_begin_on_monday_and_months_on_the_first(period_seconds: int, days: list[str], opens: list[str]) -> None:
    candles = built([(parse_time(day), "1", "1") for day in days], period_seconds)
    assert [c.open_ns for c in candles] == [parse_time(day) for day in opens]


def test_volume_is_the_decimal_sum() -> None:
    assert built([(DAY_NS, "1", "0.1")] * 10)[0].volume == 1.0  # floats make 0.9999999999999999 of it


AMOUNTS = st.decimals(min_value=0, max_value=10**6, places=8, allow_nan=False).map(str)


@given(
    st.lists(st.tuples(st.integers(0, 10**17), st.sampled_from(["1", "2.5", "7"]), AMOUNTS), max_size=30).map(sorted),
    st.sampled_from(sorted(PERIODS)),
)
def test_nothing_is_lost_or_doubled(trades: Made, period_seconds: int) -> None:
    candles = built(trades, period_seconds)
    assert sum(c.trade_count or 0 for c in candles) == len(trades)
    assert [c.open_ns for c in candles] == sorted({floor_to_grid(t, period_seconds) for t, _, _ in trades})
    for candle in candles:
        assert is_on_grid(candle.open_ns, period_seconds)
        end_ns = next_open(candle.open_ns, period_seconds)
        inside = [(Decimal(p), Decimal(a)) for t, p, a in trades if candle.open_ns <= t < end_ns]
        assert (candle.open, candle.close) == (float(inside[0][0]), float(inside[-1][0]))
        assert (candle.low, candle.high) == (float(min(inside)[0]), float(max(inside)[0]))
        assert candle.volume == float(sum(amount for _, amount in inside))
