"""Grid, ranges and tickers by tables and properties."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import market
from services.common.errors import InvalidRequest
from services.common.market import SECOND_NS, Ticker, TimeRange

MINUTE_NS = 60 * SECOND_NS


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("text", "symbol", "venue"),
    [
        ("BTC/USDT.BINANCE", "BTC/USDT", "BINANCE"),
        ("ETH2.S/ETH.KRAKEN", "ETH2.S/ETH", "KRAKEN"),
        ("BTC/USDT:USDT-251226.OKX", "BTC/USDT:USDT-251226", "OKX"),
    ],
)
def test_ticker_splits_at_the_last_dot(text: str, symbol: str, venue: str) -> None:
    assert Ticker.parse(text) == Ticker(symbol, venue)
    assert str(Ticker.parse(text)) == text


@pytest.mark.parametrize("text", ["", "BTC/USDT", ".BINANCE", "BTC/USDT.", "BTC/USDT.BÖRSE"])
def test_ticker_without_two_sides_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="ticker"):
        Ticker.parse(text)


@pytest.mark.parametrize(
    ("time", "period", "floor", "after"),
    [
        ("2024-02-29T13:45:10", 60, "2024-02-29T13:45:00", "2024-02-29T13:46:00"),
        ("2024-02-29T13:45:10", 14_400, "2024-02-29T12:00:00", "2024-02-29T16:00:00"),
        ("2024-02-29T13:45:10", 604_800, "2024-02-26T00:00:00", "2024-03-04T00:00:00"),
        ("2024-02-29T13:45:10", 2_592_000, "2024-02-01T00:00:00", "2024-03-01T00:00:00"),
        ("2023-12-31T23:59:59", 2_592_000, "2023-12-01T00:00:00", "2024-01-01T00:00:00"),
        ("1970-01-02T00:00:00", 60, "1970-01-02T00:00:00", "1970-01-02T00:01:00"),
    ],
)
def test_grid(time: str, period: int, floor: str, after: str) -> None:
    assert market.floor_to_grid(ns(time), period) == ns(floor)
    assert market.next_open(ns(floor), period) == ns(after)
    assert market.next_open(ns(after), period, -1) == ns(floor)


@given(st.integers(0, 4_000_000_000), st.sampled_from(sorted(market.PERIODS)), st.integers(0, 400))
def test_grid_is_consistent(second: int, period: int, count: int) -> None:
    floor = market.floor_to_grid(second * SECOND_NS, period)
    assert floor <= second * SECOND_NS < market.next_open(floor, period)
    end = market.next_open(floor, period, count)
    if floor >= 0:
        span = TimeRange(floor, end)
        assert market.count_periods(span, period) == count == len(market.open_times(span, period))
        parts = market.split_by_periods(span, period, 7)
        assert market.merge(parts) == ([span] if count else [])
        assert sum(market.count_periods(p, period) for p in parts) == count


@pytest.mark.parametrize(
    ("start", "end", "period", "field"),
    [
        (60, 60, 60, "end_time 60000000000 is not after"),
        (120, 60, 60, "end_time 60000000000 is not after"),
        (1, 60, 60, "start_time 1000000000 is not on the 1m grid"),
        (0, 61, 60, "end_time 61000000000 is not on the 1m grid"),
        (0, 60, 61, "period_seconds 61"),
        (0, 2**64 // SECOND_NS, 60, "end_time"),
    ],
)
def test_bad_span_names_field_and_value(start: int, end: int, period: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        market.check_span(start * SECOND_NS, end * SECOND_NS, period)


ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda t: TimeRange(t[0], t[0] + t[1])), max_size=12
)


def points(parts: list[TimeRange]) -> set[int]:
    return {p for r in parts for p in range(r.start_ns, r.end_ns)}


@given(ranges, ranges)
def test_range_sets_agree_with_sets_of_points(left: list[TimeRange], right: list[TimeRange]) -> None:
    assert points(market.merge(left)) == points(left)
    assert points(market.subtract(left, right)) == points(left) - points(right)
    for result in (market.merge(left), market.subtract(left, right)):
        assert all(a.end_ns < b.start_ns for a, b in pairwise(result))
        assert all(result)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-31", "2024-01-31T00:00:00"),
        ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00"),
        ("2024-01-31T12:00:00+02:00", "2024-01-31T10:00:00"),
    ],
)
def test_time_without_a_zone_is_utc(text: str, expected: str) -> None:
    assert market.parse_time(text) == ns(expected)
