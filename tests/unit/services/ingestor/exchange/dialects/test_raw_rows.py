"""Raw rows of candles, read by the columns of each dialect, against unmodified ccxt's reading of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ccxt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialects import DIALECTS
from dexorder_ingestor.exchange.validation import read_candles
from tests.examples import few
from tests.unit.services.ingestor.conftest import MINUTE_NS, minutes

Texts = list[str]
"""Open, high, low, close and volume as an exchange writes them."""
SPAN = minutes(0, 200)
KINDS = ("spot", "linear", "inverse")
QUOTE, BASE, TRADES = "81.25", "3.5", 7


def _milliseconds(time_ms: int, t: Texts) -> list[Any]:
    return [time_ms, *t, time_ms + 59_999, QUOTE, TRADES, "0.5", "0.5", "0"]


def _inverse(time_ms: int, t: Texts) -> list[Any]:
    return [time_ms, *t[:4], "123", time_ms + 59_999, t[4], TRADES, "0.5", "0.5", "0"]


def _okx(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms), *t, BASE, QUOTE, "1"]


def _okx_swap(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms), *t[:4], "123", t[4], QUOTE, "1"]


def _gate(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms // 1_000), QUOTE, t[3], t[1], t[2], t[0], t[4], "true"]


def _of_contracts(time_ms: int, t: Texts) -> dict[str, Any]:
    return {"t": time_ms // 1_000, "o": t[0], "h": t[1], "c": t[3], "l": t[2], "v": float(t[4]), "sum": QUOTE}


def _coinbase(time_ms: int, t: Texts) -> dict[str, Any]:
    return {"start": str(time_ms // 1_000), "low": t[2], "high": t[1], "open": t[0], "close": t[3], "volume": t[4]}


def _hyperliquid(time_ms: int, t: Texts) -> dict[str, Any]:
    times = {"t": time_ms, "T": time_ms + 59_999, "i": "1m", "s": "BTC"}
    return times | {"o": t[0], "h": t[1], "l": t[2], "c": t[3], "v": t[4], "n": TRADES}


def _bybit(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms), *t, QUOTE]


def _volume_last(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms), *t[:4], "123", t[4]]


def _bitget(time_ms: int, t: Texts) -> list[Any]:
    return [str(time_ms), *t, "1.0", QUOTE]


ROWS: Mapping[tuple[str, str], Callable[[int, Texts], Any]] = {
    ("binance", "spot"): _milliseconds,
    ("binance", "linear"): _milliseconds,
    ("binance", "inverse"): _inverse,
    ("binanceus", "spot"): _milliseconds,
    ("binanceus", "linear"): _milliseconds,
    ("binanceus", "inverse"): _inverse,
    ("binanceusdm", "linear"): _milliseconds,
    ("binancecoinm", "inverse"): _inverse,
    ("bitget", "spot"): _bitget,
    ("bitget", "linear"): _bitget,
    ("bitget", "inverse"): _volume_last,
    ("bybit", "spot"): _bybit,
    ("bybit", "linear"): _bybit,
    ("bybit", "inverse"): _volume_last,
    ("coinbase", "spot"): _coinbase,
    ("coinbase", "linear"): _coinbase,
    ("gate", "spot"): _gate,
    ("gate", "linear"): _of_contracts,
    ("gate", "inverse"): _of_contracts,
    ("hyperliquid", "spot"): _hyperliquid,
    ("hyperliquid", "linear"): _hyperliquid,
    ("okx", "spot"): _okx,
    ("okx", "linear"): _okx_swap,
    ("okx", "inverse"): _okx_swap,
}


def market(kind: str) -> dict[str, Any]:
    found = {"spot": kind == "spot", "linear": kind == "linear", "inverse": kind == "inverse", "option": False}
    return found | {"type": "spot" if kind == "spot" else "swap"}


def read(ccxt_id: str, kind: str, rows: list[Any], window: TimeRange = SPAN) -> list[Candle]:
    facts = DIALECTS[ccxt_id].candles
    return read_candles(rows, window, 60, columns=facts.columns_of(market(kind)), time_unit_ms=facts.time_unit_ms)


def test_every_dialect_with_columns_has_a_row_here() -> None:
    known = {(name, kind) for name, each in DIALECTS.items() for kind in KINDS if each.candles.columns_of(market(kind))}
    assert known == ROWS.keys()


@st.composite
def candle_texts(draw: st.DrawFn) -> Texts:
    low, *prices = sorted(draw(st.lists(st.integers(1, 10**9), min_size=4, max_size=4)))
    opened, close = draw(st.permutations(prices[:2]))
    digits = draw(st.integers(0, 8))
    volume = draw(st.integers(0, 10**12))
    return [f"{value / 10**digits:.{digits}f}" for value in (opened, prices[2], low, close, volume)]


@pytest.mark.parametrize(("ccxt_id", "kind"), ROWS)
@settings(max_examples=few(15))
@given(texts=st.lists(candle_texts(), min_size=1, max_size=20), newest_first=st.booleans())
def test_rows_are_read_as_ccxt_reads_them(ccxt_id: str, kind: str, texts: list[Texts], newest_first: bool) -> None:
    exchange = _exchange(ccxt_id)
    start_ms = SPAN.start_ns // 1_000_000
    rows = [ROWS[ccxt_id, kind](start_ms + n * 60_000, each) for n, each in enumerate(texts)]
    ccxts = read_candles(exchange.parse_ohlcvs(rows, market(kind)), SPAN, 60)
    found = read(ccxt_id, kind, rows[::-1] if newest_first else rows)
    assert [each[:6] for each in found] == [each[:6] for each in ccxts]
    assert {each.quote_volume for each in found} <= {None, float(QUOTE)}
    assert {each.trade_count for each in found} <= {None, TRADES}


@pytest.mark.parametrize(("ccxt_id", "kind"), ROWS)
def test_an_odd_row_costs_its_own_candle_and_no_other(ccxt_id: str, kind: str) -> None:
    make, start_ms = ROWS[ccxt_id, kind], SPAN.start_ns // 1_000_000
    rows = [make(start_ms + n * 60_000, ["2.0", "4.0", "1.0", "3.0", "5.0"]) for n in range(5)]
    good = make(start_ms + 120_000, ["2.0", "4.0", "1.0", "3.0", "5.0"])
    odd = [make(start_ms + 120_000, ["2.0", "4.0", "x", "3.0", "5.0"]), [], {}, "16987", None, 7, True]
    odd.append(good[:3] if isinstance(good, list) else dict(list(good.items())[:3]))
    for each in odd:
        rows[2] = each
        with pytest.raises(BadAnswer) as caught:
            read(ccxt_id, kind, rows)
        assert caught.value.opens == (SPAN.start_ns + 2 * MINUTE_NS,), each
    rows[2] = good
    assert len(read(ccxt_id, kind, rows)) == 5


_EXCHANGES: dict[str, Any] = {}


def _exchange(ccxt_id: str) -> Any:
    if ccxt_id not in _EXCHANGES:
        _EXCHANGES[ccxt_id] = getattr(ccxt, ccxt_id)()
    return _EXCHANGES[ccxt_id]
