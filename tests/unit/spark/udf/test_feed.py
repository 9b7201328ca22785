"""What a UDF is fed: each point once, in the order of time; whole windows; the state as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.udf import TICKS, UdfInput
from dexorder_spark.udf import feed as rules
from dexorder_spark.udf.feed import FeedState, UdfFeed
from dexorder_spark.udf.state import StageState, decode_state, encode_state
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge

SECOND_NS = 1_000_000_000


def candle(minute: int, ticker: str = "A/B.X", close: float = 1.0) -> dict[str, Any]:
    row: dict[str, Any] = {"ticker": ticker, "period_seconds": 60, "open_time": minute * 60_000_000}
    return (
        row
        | dict.fromkeys(("open", "high", "low", "volume"), 1.0)
        | {"close": close, "quote_volume": None, "trades": 3}
    )


def tick(number: int, at_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {"ticker": "A/B.X", "trade_id": f"t{number}", "time": round(at_s * 1_000_000)}
    return row | {"price": 2.0, "amount": 1.0, "side": None}


def candles(state: FeedState | None = None, **changes: Any) -> UdfFeed:
    edge = Edge.BATCH if changes.get("window_seconds") else Edge.STREAM
    return UdfFeed(UdfInput(**changes), edge, 0, state or FeedState())


def times(found: list[Point | Batch]) -> list[int]:
    return [each.time_ns // (60 * SECOND_NS) for each in found if isinstance(each, Point)]


def test_a_point_has_the_columns_of_its_row() -> None:
    (point,) = candles().take([candle(2, close=1.5)])
    assert isinstance(point, Point)
    assert (point.name, point.database, point.group) == ("ohlc", "trading", "ticker=A/B.X,period=1m")
    assert point.time_ns == 120 * SECOND_NS
    assert point.fields == {"open": 1.0, "high": 1.0, "low": 1.0, "close": 1.5, "volume": 1.0, "trades": 3}
    assert isinstance(point.fields["trades"], int)


def test_candles_that_come_again_revised_or_late_are_not_fed() -> None:
    feed = candles()
    assert times(feed.take([candle(1), candle(3), candle(3, close=2.0), candle(2), candle(4)])) == [1, 3, 4]
    assert times(feed.take([candle(4), candle(1, "C/D.X")])) == [1]  # another group has an order of its own
    assert feed.late == 3


def test_rows_before_since_are_not_fed_and_not_late() -> None:
    feed = candles(since_ns=120 * SECOND_NS)
    assert times(feed.take(map(candle, range(5)))) == [2, 3, 4] and feed.late == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 40)), max_size=60), st.integers(0, 60))
def test_no_trade_is_fed_twice_and_none_is_fed_out_of_order_by_more_than_the_tolerance(
    sent: list[tuple[int, float]], cut: int
) -> None:
    """Copies of a trade may differ by up to a second in time, as those of sockets and REST do."""
    rows = [tick(number, 2.0 * number + min(at_s, 0.99)) for number, at_s in sent]
    first = UdfFeed(UdfInput(TICKS), Edge.STREAM, SECOND_NS, FeedState())
    found = first.take(rows[:cut])
    state = decode_state(encode_state(StageState(feed=first.state), 1 << 20)).feed
    found += UdfFeed(UdfInput(TICKS), Edge.STREAM, SECOND_NS, state).take(rows[cut:])
    ids = [each.fields["trade_id"] for each in found if isinstance(each, Point)]
    assert len(set(ids)) == len(ids)
    newest = 0
    for each in found:
        assert isinstance(each, Point) and each.time_ns >= newest - SECOND_NS
        newest = max(newest, each.time_ns)


def test_ids_are_remembered_only_for_twice_the_tolerance() -> None:
    feed = UdfFeed(UdfInput(TICKS), Edge.STREAM, SECOND_NS, FeedState())
    feed.take(tick(number, number / 10) for number in range(5_000))
    (group,) = feed.state.groups.values()
    assert len(group.recent) < 200


@given(st.lists(st.integers(0, 200), unique=True).map(sorted), st.integers(1, 9), st.integers(0, 200))
def test_windows_have_the_points_of_their_time_whatever_the_batches(minutes: list[int], size: int, cut: int) -> None:
    first = candles(window_seconds=size * 60)
    found = first.take(candle(minute) for minute in minutes if minute < cut)
    state = decode_state(encode_state(StageState(feed=first.state), 1 << 20)).feed
    found += candles(state, window_seconds=size * 60).take(candle(minute) for minute in minutes if minute >= cut)
    windows: dict[int, list[int]] = {}
    for minute in minutes:
        windows.setdefault(minute // size, []).append(minute)
    expected = [((number + 1) * size, inside) for number, inside in sorted(windows.items())][:-1]
    assert [
        (each.tmax_ns // (60 * SECOND_NS), [point.time_ns // (60 * SECOND_NS) for point in each.points])
        for each in found
        if isinstance(each, Batch)
    ] == expected
    assert all(isinstance(each, Batch) and each.group == "period=1m,ticker=A/B.X" for each in found)


def test_the_edge_and_the_window_must_fit() -> None:
    with pytest.raises(InvalidRequest, match=r"wants batches, and input\.window is not set"):
        UdfFeed(UdfInput(), Edge.BATCH, 0, FeedState())
    with pytest.raises(InvalidRequest, match=r"wants a stream of points, and input\.window is set"):
        UdfFeed(UdfInput(window_seconds=60), Edge.STREAM, 0, FeedState())


def test_open_windows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_WINDOW_POINTS", 3)
    with pytest.raises(InvalidRequest, match="open windows have 4 points, at most 3 are allowed"):
        candles(window_seconds=86_400).take(map(candle, range(4)))


def test_a_series_is_wanted_if_the_input_names_it_or_nothing() -> None:
    assert candles().wants(Series("A/B.X", 60))
    feed = candles(tickers=("A/B.X",), periods=(60,))
    series = Series("A/B.X", 60), Series("A/B.X", 300), Series("C/D.X", 60)
    assert [feed.wants(each) for each in series] == [True, False, False]


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 8, b"\0\0\0\0\0\0\0\x02{}", (2**63).to_bytes(8, "big") + b"{}"])
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="are not the state of a UDF"):
        decode_state(data)


def test_a_state_of_a_later_version_is_refused() -> None:
    data = encode_state(StageState(snapshot=b"abc"), 1_000)
    with pytest.raises(InvalidRequest, match="has version 2, and this driver reads 1"):
        decode_state(data.replace(b'"version":1', b'"version":2'))
    assert decode_state(data).snapshot == b"abc"
