"""WebSocket dialect of Binance's spot market. Pure.

Streams: ``<symbol>@trade``, ``@aggTrade``, ``@kline_<period>``, ``@miniTicker``, ``@ticker``, and ``!miniTicker@arr``,
``!ticker@arr``, which have the tickers that changed. A stream of an unknown market is accepted and stays silent, as at
Binance.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import orjson

from dexorder_exchange_sim.candles import Source, printer
from dexorder_exchange_sim.dialects.binance_rows import AGGREGATES, day_ticker
from dexorder_exchange_sim.dialects.dialect import Query, SocketMessage, SocketSession, Tapes
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import PERIODS
from dexorder_exchange_sim.stream import Event, Feed, Kline, TapeTrade, klines
from dexorder_exchange_sim.trades import TradeSource

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


class BinanceSession(SocketSession):
    """Connection to ``/ws``, ``/ws/<anything>`` or ``/stream``; keys are names of streams.

    Args:
        path: ``/ws/<stream>/<stream>`` subscribes at once; one without ``@`` (ccxt numbers its sockets) is ignored.
        streams: Parameter ``streams`` of ``/stream``, names with ``/`` between them; its messages name their stream.
    """

    beat_s = 20.0

    def __init__(self, tapes: Tapes, path: str, streams: str, now_ns: int) -> None:
        super().__init__(tapes)
        self._combined = path.startswith("/stream")
        self._sent: dict[tuple[Hashable, str], dict[str, Any]] = {}
        for name in (*path.split("/"), *streams.split("/")):
            if "@" in name:
                self.subscribe(name, now_ns)

    def greeting(self, now_ns: int) -> list[str]:
        """See `SocketSession.greeting`."""
        return []

    def receive(self, text: str, now_ns: int) -> list[str]:
        """See `SocketSession.receive`."""
        try:
            command = orjson.loads(text)
            id, method, names = command.get("id"), command["method"], command.get("params") or []
        except (ValueError, KeyError, AttributeError):
            return [_error(None, 3, "Invalid JSON: expected value at line 1 column 1")]
        if method == "LIST_SUBSCRIPTIONS":
            return [_text({"result": self.subscriptions, "id": id})]
        if method not in ("SUBSCRIBE", "UNSUBSCRIBE"):
            return [_error(id, 2, f"Invalid request: unknown variant {method!r}")]
        if not isinstance(names, list) or not all(isinstance(name, str) and "@" in name for name in names):
            return [_error(id, 2, "Invalid request: invalid stream")]
        for name in names:
            if method == "SUBSCRIBE":
                self.subscribe(name, now_ns)
            else:
                self.unsubscribe(name)
        return [_text({"result": None, "id": id})]

    def feed(self, key: Hashable, after_ns: int) -> Feed | None:
        """See `SocketSession.feed`."""
        source, kind = self._stream(key)
        if kind in _TICKERS and (source is not None or str(key).startswith("!")):
            return self.samples(after_ns)
        if not isinstance(source, TradeSource):
            return None
        tape, period = self.tapes.of(source), PERIODS.get(kind.removeprefix("kline_"))
        if kind in ("trade", "aggTrade"):
            return ((trade.time_ms * _MS, trade) for trade in tape.after(after_ns))
        return klines(tape, period, after_ns) if period else None

    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """See `SocketSession.render`."""
        source, kind = self._stream(key)
        market = source.instrument.id if source else None
        if isinstance(event, TapeTrade):
            time_ns = event.time_ms * _MS
            body: Any = {"e": kind, "E": now_ns // _MS, "s": market, **_trade(kind, event)}
        elif isinstance(event, Kline) and source is not None:
            time_ns = event.open_s * 1_000_000_000
            period = kind.removeprefix("kline_")
            body = {"e": "kline", "E": now_ns // _MS, "s": market, "k": _kline(event, period, source.instrument)}
        else:
            time_ns = now_ns
            sources = [source] if source else list(self.tapes.venue.sources.values())
            tickers = [ticker for one in sources if (ticker := self._ticker(key, kind, one, now_ns))]
            if not tickers:
                return None
            body = tickers[0] if source else tickers
        return SocketMessage(_text({"stream": key, "data": body} if self._combined else body), market, time_ns)

    def _stream(self, key: Hashable) -> tuple[Source | None, str]:
        """Return the market and the kind of a stream; no market for those of all markets."""
        left, _, right = str(key).partition("@")
        if right == "arr":
            return None, left.removeprefix("!")
        return self.tapes.venue.sources.get(left.upper()), right

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


def connect(tapes: Tapes, path: str, query: Query, now_ns: int) -> SocketSession | None:
    """Open a session; return None for a path without WebSocket."""
    if not path.startswith(("/ws", "/stream")):
        return None
    return BinanceSession(tapes, path, query.get("streams", ""), now_ns)


def _trade(kind: str, trade: TapeTrade) -> dict[str, Any]:
    ids: dict[str, Any] = {"t": trade.id}
    if kind == "aggTrade":
        ids = {"a": trade.id + AGGREGATES, "f": trade.id, "l": trade.id}
    return {
        **ids,
        "p": trade.price_text,
        "q": trade.amount_text,
        "T": trade.time_ms,
        "m": trade.buyer_is_maker,
        "M": True,
    }


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


def _error(id: Any, code: int, message: str) -> str:
    return _text({"error": {"code": code, "msg": message}, **({} if id is None else {"id": id})})


def _text(body: Any) -> str:
    return orjson.dumps(body).decode()
