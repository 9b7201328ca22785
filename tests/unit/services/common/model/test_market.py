"""Grid, ranges and tickers by tables and properties."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model import market
from services.common.model.errors import InvalidRequest
from services.common.model.market import SECOND_NS, Ticker, TimeRange

MINUTE_NS = 60 * SECOND_NS


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("text", "symbol", "venue"),
    [
        ("BTC/USDT.BINANCE", "BTC/USDT", "BINANCE"),
        ("BTC/USDT:USDT.BINANCE", "BTC/USDT:USDT", "BINANCE"),  # swap
        ("BTC/USD:BTC.BYBIT", "BTC/USD:BTC", "BYBIT"),  # inverse swap
        ("BTC/USDT:USDT-251226.OKX", "BTC/USDT:USDT-251226", "OKX"),  # dated future
        ("BTC/USD:BTC-251226.OKX", "BTC/USD:BTC-251226", "OKX"),
        ("BTC/USDT:USDT-251226-50000-C.BINANCE", "BTC/USDT:USDT-251226-50000-C", "BINANCE"),  # option
        ("XRP/USDT:USDT-251226-2.25-P.BINANCE", "XRP/USDT:USDT-251226-2.25-P", "BINANCE"),  # with a dot in its strike
        ("ETH2.S/ETH.KRAKEN", "ETH2.S/ETH", "KRAKEN"),
        ("USD.HOLD/EUR.M.KRAKEN", "USD.HOLD/EUR.M", "KRAKEN"),
        ("1000SATS/USDT.BINANCE", "1000SATS/USDT", "BINANCE"),
        ("币安人生/USDT.BINANCE", "币安人生/USDT", "BINANCE"),
        ("A B/USDT.SIM", "A B/USDT", "SIM"),
        ("kPEPE/USDC:USDC.HYPERLIQUID", "kPEPE/USDC:USDC", "HYPERLIQUID"),  # case is kept
        ("BTC-USDT.SIM", "BTC-USDT", "SIM"),  # no unified symbol; only the exchange's list of markets can tell
    ],
)
def test_ticker_splits_at_the_last_dot(text: str, symbol: str, venue: str) -> None:
    assert Ticker.parse(text) == Ticker(symbol, venue)
    assert str(Ticker.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "BTC/USDT",
        ".BINANCE",
        "BTC/USDT.",
        "BTC/USDT.BÖRSE",
        "BTC/USDT.SIM\n",
        "BTC\n/USDT.SIM",
        " BTC/USDT.SIM",
        "BTC/USDT.SIM ",
        "BTC/US\x00DT.SIM",
        "BTC/\ud800.SIM",
        "BTC/USDT\u202e.SIM",
    ],
)
def test_what_is_no_ticker_is_refused(text: str) -> None:
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
        (0, 2**63 // SECOND_NS + 60, 60, r"end_time \d+ is outside \[0, 9223372036854775807\] nanoseconds"),
        (0, 11 * 86_400, market.WEEK_SECONDS, "start_time 0 is not on the 1w grid; the first open is 345600000000000"),
        (86_400, 31 * 86_400, market.MONTH_SECONDS, "start_time .* is not on the 1M grid; the open before it is 0"),
    ],
)
def test_bad_span_names_field_and_value(start: int, end: int, period: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        market.check_span(start * SECOND_NS, end * SECOND_NS, period)


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30), st.sampled_from(["SIM", "X:1"]))
def test_ticker_reads_back_whatever_the_symbol(symbol: str, venue: str) -> None:
    assert Ticker.parse(str(Ticker(symbol, venue))) == Ticker(symbol, venue)


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
