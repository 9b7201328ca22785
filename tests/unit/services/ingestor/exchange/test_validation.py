from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dexorder_common.model.periods import MONTH_SECONDS, WEEK_SECONDS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import parse_time
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.exchange.validation import check_rows, read_candles
from tests.examples import few
from tests.unit.services.ingestor.conftest import MINUTE_NS, minutes

WINDOW = minutes(0, 10)
T = WINDOW.start_ns // 1_000_000


def row(minute: int, **changed: Any) -> list[Any]:
    values = {"time": T + minute * 60_000, "open": 2.0, "high": 4.0, "low": 1.0, "close": 3.0, "volume": 5.0}
    return list({**values, **changed}.values())


def test_rows_become_candles_in_order() -> None:
    first, second = read_candles([row(0), row(9, volume=0)], WINDOW, 60)
    assert first[:6] == (WINDOW.start_ns, 2.0, 4.0, 1.0, 3.0, 5.0)
    assert second.open_ns == WINDOW.end_ns - MINUTE_NS
    assert isinstance(second.volume, float)


GARBAGE: list[tuple[Any, str]] = [
    (None, "NoneType"),
    ("<html>", "str"),
    ({"msg": "no"}, "dict"),
    (["<html>"], "is not a candle"),
    ([None], "is not a candle"),
    ([[9, None, None, None, None, None]], "outside the queried"),
    ([[T, 1, 1, 1, 1]], "is not a candle"),
    ([[None, 1, 1, 1, 1, 1]], "is not a candle"),
    ([["x", 1, 1, 1, 1, 1]], "is not a candle"),
    ([[True, 1, 1, 1, 1, 1]], "is not a candle"),
    ([[math.nan, 1, 1, 1, 1, 1]], "is not a candle"),
    ([[T + 0.5, 1, 1, 1, 1, 1]], "is not a candle"),
    ([row(n, time=T + n * 60_000 + 500) for n in range(4)], "off the grid"),
    ([row(0), "<html>"], "is not a candle"),
    ([row(-1)], "outside the queried"),
    ([row(10)], "outside the queried"),
    ([row(0, time=10**30)], "outside the queried"),
    ([row(2), row(1)], "comes after"),
]


@pytest.mark.parametrize(("rows", "reason"), GARBAGE)
def test_garbage_is_a_bad_answer(rows: Any, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason) as caught:
        read_candles(rows, WINDOW, 60)
    assert not caught.value.opens


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"close": None}, "six finite numbers"),
    ({"close": "3"}, "six finite numbers"),
    ({"volume": math.nan}, "six finite numbers"),
    ({"high": math.inf}, "six finite numbers"),
    ({"high": 10**400}, "six finite numbers"),
    ({"high": 2.5}, "breaks low"),
    ({"low": 2.5}, "breaks low"),
    ({"high": 0.5, "low": 0.4}, "breaks low"),
    ({"volume": -1e-9}, "negative volume"),
]


@pytest.mark.parametrize(("changed", "reason"), IMPOSSIBLE)
def test_impossible_candle_is_named_with_its_row(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason) as caught:
        read_candles([row(0), row(3, **changed), row(4)], WINDOW, 60)
    assert caught.value.opens == (WINDOW.start_ns + 3 * MINUTE_NS,)
    assert str(row(3, **changed)) in str(caught.value)


OFF = [T + 180_500, 2.0, 4.0, 1.0, 3.0, 5.0]


@pytest.mark.parametrize("odd", [[OFF], [row(3), row(3, close=2.0)], ["?"], [[None] * 6], [row(3, low=5.0)]])
def test_an_odd_row_costs_its_own_candle(odd: list[Any]) -> None:
    rows = [row(0), row(2), *odd, row(4), row(4), row(9)]
    with pytest.raises(BadAnswer) as caught:
        read_candles(rows, WINDOW, 60)
    assert caught.value.opens == (WINDOW.start_ns + 3 * MINUTE_NS,)
    left = read_candles(rows, WINDOW, 60, skip=caught.value.opens)
    assert [(c.open_ns - WINDOW.start_ns) // MINUTE_NS for c in left] == [0, 2, 4, 9]


RAW = (0, 1, 2, 3, 4, 5, 7, 8)


def kline(minute: int, **changed: Any) -> list[Any]:
    texts = {"open": "2.0", "high": "4.0", "low": "1.0", "close": "3.0", "volume": "5.0"} | changed
    return [T + minute * 60_000, *texts.values(), 0, "12.5", 7, "0"]


@pytest.mark.parametrize("rows", [[kline(0), kline(1)], [kline(1), kline(0)], [kline(0), kline(1), kline(1)]])
def test_raw_rows_keep_quote_volume_and_number_of_trades(rows: list[Any]) -> None:
    candles = read_candles(rows, WINDOW, 60, columns=RAW)
    assert [c.open_ns for c in candles] == [WINDOW.start_ns, WINDOW.start_ns + MINUTE_NS]
    assert {c[1:] for c in candles} == {(2.0, 4.0, 1.0, 3.0, 5.0, 12.5, 7)}


def test_odd_raw_row_costs_its_own_candle() -> None:
    with pytest.raises(BadAnswer) as caught:
        read_candles([kline(0), kline(1), kline(2, low="x")], WINDOW, 60, columns=RAW)
    assert caught.value.opens == (WINDOW.start_ns + 2 * MINUTE_NS,)


def test_fault_of_the_whole_answer_counts_for_more_than_an_impossible_candle() -> None:
    with pytest.raises(BadAnswer) as caught:
        read_candles([row(0, volume=-1), row(2), row(1)], WINDOW, 60)
    assert not caught.value.opens


@pytest.mark.parametrize(
    ("period_seconds", "on", "off"),
    [
        (WEEK_SECONDS, "2024-01-01", "2024-01-04"),
        (MONTH_SECONDS, "2024-02-01", "2024-01-31"),
        (259_200, "1970-01-04", "1970-01-05"),
    ],
)
def test_long_periods_have_their_own_grid(period_seconds: int, on: str, off: str) -> None:
    window = TimeRange(0, parse_time("2030-01-01"))
    good, bad = (row(0, time=parse_time(day) // 1_000_000) for day in (on, off))
    assert len(read_candles([good], window, period_seconds)) == 1
    with pytest.raises(BadAnswer, match="off the grid"):
        read_candles([bad], window, period_seconds)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=12,
)
ROWS = st.lists(st.builds(row, st.integers(-2, 12), volume=JSON, close=JSON) | JSON, max_size=6)


VALUES = st.one_of(
    st.integers(-2, 5), st.floats(-1, 5), st.sampled_from([None, "1", True, math.nan, math.inf, 10**400])
)
FIVE = partial(st.lists, min_size=5, max_size=5)
NEARLY_SOUND = st.lists(
    st.builds(
        lambda minute, values: [T + minute * 60_000, *values],
        st.integers(0, 10),
        st.just([2.0, 4, 1.0, 3.0, 0]) | FIVE(st.integers(1, 4)) | FIVE(VALUES),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(ROWS | NEARLY_SOUND | JSON)
@example([[T, 1.0, 4.0, 2.0, 3.0, 0.0]])  # it opens below its low
@example([[T, 3.0, 4.0, 2.0, 5.0, 0.0]])  # it closes above its high
def test_whatever_comes_is_either_sound_candles_or_a_bad_answer(rows: Any) -> None:
    try:
        candles = read_candles(rows, WINDOW, 60)
    except BadAnswer:
        return
    opens = [c.open_ns for c in candles]
    assert opens == sorted(set(opens))
    assert all(t in range(WINDOW.start_ns, WINDOW.end_ns, MINUTE_NS) for t in opens)
    for c in candles:
        assert all(math.isfinite(v) for v in (c.open, c.high, c.low, c.close, c.volume))
        assert c.low <= min(c.open, c.close) <= max(c.open, c.close) <= c.high
        assert c.volume >= 0


@settings(max_examples=few(100))
@given(NEARLY_SOUND, st.booleans())
def test_columns_and_rows_are_read_alike(rows: list[list[Any]], in_order: bool) -> None:
    rows = sorted(rows, key=lambda r: r[0]) if in_order else rows

    def outcome(rows: Any) -> Any:
        try:
            return read_candles(rows, WINDOW, 60)
        except BadAnswer as error:
            return error.kind, error.opens

    # tuples are always read row by row
    assert outcome(rows) == outcome([tuple(r) for r in rows])


# ---- the raw answer

RAW_ROWS = [["1"], ["2"]]
GOOD: dict[str, Any] = {
    "binance": RAW_ROWS,
    "bybit": {"retCode": 0, "result": {"symbol": "ID", "category": "spot", "list": RAW_ROWS}},
    "coinbase": {"candles": RAW_ROWS},
    "kraken": {"error": [], "result": {"ID": RAW_ROWS, "last": "7"}},
    "okx": {"code": "0", "msg": "", "data": RAW_ROWS},
}
OTHERS = {
    "bybit": {"retCode": 0, "result": {"symbol": "OTHER", "list": RAW_ROWS}},
    "kraken": {"error": [], "result": {"OTHER": RAW_ROWS, "last": "7"}},
}


@pytest.mark.parametrize("exchange", GOOD)
def test_rows_are_found_where_the_exchange_puts_them(exchange: str) -> None:
    assert check_rows(dialect_of(exchange).candles, GOOD[exchange], [1, 2], "ID") == RAW_ROWS


NO_JSON = [None, "text", 7, True]
NO_LIST = [{}, {"data": None}, {"result": []}, {"result": {"symbol": "ID", "list": {}}}]
REFUSED = [
    *((exchange, GOOD[exchange], rows, "window") for exchange in GOOD for rows in ([], [1], [1, 2, 3])),
    *((exchange, raw, [], "not_json") for exchange in (*GOOD, "gate") for raw in NO_JSON),
    *((exchange, raw, [], None) for exchange in GOOD for raw in NO_LIST),
    *((exchange, OTHERS[exchange], [], "other_symbol") for exchange in OTHERS),
]


@pytest.mark.parametrize(("exchange", "raw", "rows", "kind"), REFUSED)
def test_rows_that_ccxt_dropped_no_json_no_list_and_another_market_are_refused(
    exchange: str, raw: Any, rows: list[int], kind: str | None
) -> None:
    with pytest.raises(BadAnswer, match="'ID'" if kind == "other_symbol" else ".") as caught:
        check_rows(dialect_of(exchange).candles, raw, rows, "ID")
    assert kind in (None, caught.value.kind)


def test_open_candle_is_refused() -> None:
    row = ["1678928760000", "1", "1", "1", "1", "1", "1", "1"]
    okx = dialect_of("okx").candles
    assert check_rows(okx, {"code": "0", "data": [[*row, "1"]]}, [1], "ID")
    with pytest.raises(BadAnswer, match="still open"):
        check_rows(okx, {"code": "0", "data": [[*row, "1"], [*row, "0"]]}, [1, 2], "ID")


def test_only_lists_are_counted_for_an_exchange_without_a_row() -> None:
    kucoin = dialect_of("kucoin").candles
    assert check_rows(kucoin, {"any": "thing"}, [1], "ID") is None
    assert check_rows(kucoin, [1], [1], "ID") == [1]
    with pytest.raises(BadAnswer):
        check_rows(kucoin, [1, 2], [1], "ID")
