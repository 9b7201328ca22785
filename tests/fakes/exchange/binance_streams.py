"""Binance's dialect with the streams that only tests read: candles and tickers. Pure.

Streams: ``<symbol>@kline_<period>``, ``@miniTicker``, ``@ticker``, and ``!miniTicker@arr``, ``!ticker@arr``, which have
the tickers that changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dexorder_exchange_sim.candles import Source, printer
from dexorder_exchange_sim.dialects import binance
from dexorder_exchange_sim.dialects.binance_rows import day_ticker
from dexorder_exchange_sim.dialects.binance_socket import BinanceSession, connect
from dexorder_exchange_sim.dialects.dialect import SocketMessage, Tapes
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import PERIODS
from dexorder_exchange_sim.stream import Event, Feed, TapeTrade
from dexorder_exchange_sim.trades import TradeSource
from tests.fakes.exchange.klines import Kline, klines, samples

_MS = 1_000_000
_MINI = {"c": "lastPrice", "o": "openPrice", "h": "highPrice", "l": "lowPrice", "v": "volume", "q": "quoteVolume"}
_TICKERS = {
    "miniTicker": ("24hrMiniTicker", _MINI),
    "ticker": (
        "24hrTicker",
        {
            "p": "priceChange",
            "P": "priceChangePercent",
            "w": "weightedAvgPrice",
            "x": "prevClosePrice",
            "Q": "lastQty",
            "b": "bidPrice",
            "B": "bidQty",
            "a": "askPrice",
            "A": "askQty",
            **_MINI,
            "O": "openTime",
            "C": "closeTime",
            "F": "firstId",
            "L": "lastId",
            "n": "count",
        },
    ),
}
"""Kinds of tickers: their event's name, and their fields by those of the REST ticker."""


class BinanceStreams(BinanceSession):
    """Session with all streams."""

    def __init__(self, tapes: Tapes, path: str, streams: str, now_ns: int) -> None:
        self._sent: dict[tuple[Hashable, str], dict[str, Any]] = {}
        super().__init__(tapes, path, streams, now_ns)

    def feed(self, key: Hashable, after_ns: int) -> Feed | None:
        """See `SocketSession.feed`."""
        source, kind = self.stream(key)
        if kind in _TICKERS and (source is not None or str(key).startswith("!")):
            return samples(self, after_ns)
        period = PERIODS.get(kind.removeprefix("kline_")) if kind.startswith("kline_") else None
        if period is not None and isinstance(source, TradeSource):
            return klines(self.tapes.of(source), period, after_ns)
        return super().feed(key, after_ns)

    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """See `SocketSession.render`."""
        if isinstance(event, TapeTrade):
            return super().render(key, event, now_ns)
        source, kind = self.stream(key)
        market = source.instrument.id if source else None
        if isinstance(event, Kline) and source is not None:
            row = _kline(event, kind.removeprefix("kline_"), source.instrument)
            body: Any = {"e": "kline", "E": now_ns // _MS, "s": market, "k": row}
            return self.message(key, body, market, event.open_s * 1_000_000_000)
        sources = [source] if source else list(self.tapes.venue.sources.values())
        tickers = [ticker for one in sources if (ticker := self._ticker(key, kind, one, now_ns))]
        return self.message(key, tickers[0] if source else tickers, market, now_ns) if tickers else None

    def _ticker(self, key: Hashable, kind: str, source: Source, now_ns: int) -> dict[str, Any] | None:
        """Return a market's ticker; None if it is as it was sent last."""
        event, names = _TICKERS[kind]
        day = day_ticker(source, now_ns)
        fields = {name: day[of] for name, of in names.items()}
        market = source.instrument.id
        values = {name: value for name, value in fields.items() if name not in "OC"}
        if self._sent.get((key, market)) == values:
            return None
        self._sent[key, market] = values
        return {"e": event, "E": now_ns // _MS, "s": market, **fields}


def _kline(kline: Kline, period: str, instrument: SimInstrument) -> dict[str, Any]:
    price, lot = printer(instrument.price_decimals), printer(instrument.lot_decimals)
    o, h, low, c = price(np.array([kline.open, kline.high, kline.low, kline.close]))
    traded = (kline.open + kline.high + kline.low + kline.close) / 4 * kline.volume
    quote, half_base, half_quote = printer(8)(np.array([traded, kline.volume / 2, traded / 2]))
    return {
        "t": kline.open_s * 1000,
        "T": kline.end_s * 1000 - 1,
        "s": instrument.id,
        "i": period,
        "o": o,
        "c": c,
        "h": h,
        "l": low,
        "v": lot(np.array([kline.volume]))[0],
        "n": kline.trades,
        "x": kline.closed,
        "q": quote,
        "V": half_base,
        "Q": half_quote,
        "B": "0",
    }


DIALECT = replace(binance.DIALECT, connect=partial(connect, kind=BinanceStreams))
