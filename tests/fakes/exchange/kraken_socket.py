"""WebSocket dialect of Kraken's spot market, version 2. Pure.

Channels ``trade``, ``ohlc`` and ``ticker``. Markets have unified names, BTC/USD. Kraken does not say that a candle is
closed: the next one shows it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from itertools import islice
from typing import Any

import numpy as np
import orjson

from dexorder_exchange_sim.candles import CandleRequest, Source, sum_up
from dexorder_exchange_sim.dialects.dialect import SocketMessage, SocketSession, Tapes
from dexorder_exchange_sim.market import usual_trades
from dexorder_exchange_sim.periods import DAY, Period
from dexorder_exchange_sim.stream import Event, Feed, TapeTrade
from dexorder_exchange_sim.trades import TradeSource
from tests.fakes.exchange.klines import Kline, klines, samples
from tests.fakes.exchange.kraken_history import PERIODS_BY_MINUTES
from tests.fakes.exchange.kraken_query import pairs

_NS = 1_000_000_000
_CHANNELS = ("trade", "ohlc", "ticker")
_SNAPSHOT_TRADES = 50
_SNAPSHOT_CANDLES = 10
Key = tuple[str, str, int]
"""Channel, market and minutes of the period; 0 minutes except for ``ohlc``."""


class KrakenSession(SocketSession):
    """Connection to ``/v2``."""

    beat_s = 1.0
    beat = '{"channel":"heartbeat"}'

    def __init__(self, tapes: Tapes) -> None:
        super().__init__(tapes)
        lit = (pair for pair in pairs(tapes.venue).values() if pair.wsname)
        self._markets = {pair.source.instrument.symbol: pair for pair in lit}
        self._sent: dict[str, dict[str, Any]] = {}

    def greeting(self, now_ns: int) -> list[str]:
        """See `SocketSession.greeting`."""
        status = {"api_version": "v2", "connection_id": 1, "system": "online", "version": "2.0.0"}
        return [_text({"channel": "status", "type": "update", "data": [status]})]

    def receive(self, text: str, now_ns: int) -> list[str]:
        """See `SocketSession.receive`."""
        try:
            command = orjson.loads(text)
            method, params = command["method"], command.get("params") or {}
            id = {"req_id": command["req_id"]} if "req_id" in command else {}
            channel, symbols = params.get("channel"), params.get("symbol", [])
            minutes = int(params.get("interval", 1)) if channel == "ohlc" else 0
        except (ValueError, KeyError, AttributeError, TypeError):
            return [_text({"error": "Malformed request", "success": False, **_times(now_ns)})]
        if method == "ping":
            return [_text({"method": "pong", **id, **_times(now_ns)})]
        if method not in ("subscribe", "unsubscribe") or channel not in _CHANNELS or not isinstance(symbols, list):
            return [_text({"method": method, "error": "Malformed request", "success": False, **id, **_times(now_ns)})]
        if minutes and minutes not in PERIODS_BY_MINUTES:
            error = "Subscription ohlc interval not supported"
            return [_text({"method": method, "error": error, "success": False, **id, **_times(now_ns)})]
        snapshot = bool(params.get("snapshot", channel != "trade"))
        return [
            text
            for symbol in symbols
            for text in self._apply(method, (channel, str(symbol), minutes), snapshot, id, now_ns)
        ]

    def _apply(self, method: str, key: Key, snapshot: bool, id: dict[str, Any], now_ns: int) -> list[str]:
        """Subscribe or unsubscribe; return the answer and, if it is wanted, the state so far."""
        channel, symbol, minutes = key
        if symbol not in self._markets:
            error = {"error": f"Currency pair not supported {symbol}", "success": False, "symbol": symbol}
            return [_text({"method": method, **error, **id, **_times(now_ns)})]
        result = {"channel": channel, "symbol": symbol, **({"interval": minutes} if minutes else {})}
        begins = method == "subscribe"
        answer = {"method": method, "result": {**result, **({"snapshot": snapshot} if begins else {})}, "success": True}
        texts = [_text({**answer, **id, **_times(now_ns)})]
        if begins:
            self.subscribe(key, now_ns)
            texts += self._snapshot(key, now_ns) if snapshot else []
        else:
            self.unsubscribe(key)
        return texts

    def feed(self, key: Hashable, after_ns: int) -> Feed | None:
        """See `SocketSession.feed`."""
        channel, source, period = self._open(key)
        if channel == "ticker":
            return samples(self, after_ns)
        if not isinstance(source, TradeSource):
            return None
        tape = self.tapes.of(source)
        if period is not None:
            return klines(tape, period, after_ns)
        return ((trade.time_ns, trade) for trade in tape.after(after_ns))

    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """See `SocketSession.render`."""
        channel, source, period = self._open(key)
        symbol, time_ns = source.instrument.symbol, now_ns
        if isinstance(event, TapeTrade):
            row, time_ns = _trade(symbol, event), event.time_ns
        elif isinstance(event, Kline) and period is not None:
            row, time_ns = _candle(symbol, event), event.open_s * _NS
        else:
            row = _ticker(source, now_ns)
            if self._sent.get(symbol) == row:
                return None
            self._sent[symbol] = row
        return SocketMessage(_update(channel, "update", [row], now_ns), self._markets[symbol].key, time_ns)

    def _open(self, key: Hashable) -> tuple[str, Source, Period | None]:
        assert isinstance(key, tuple)
        channel, symbol, minutes = key
        return channel, self._markets[symbol].source, PERIODS_BY_MINUTES.get(minutes)

    def _snapshot(self, key: Key, now_ns: int) -> list[str]:
        channel, source, period = self._open(key)
        symbol = source.instrument.symbol
        if channel == "ticker":
            self._sent[symbol] = _ticker(source, now_ns)
            rows = [self._sent[symbol]]
        elif period is not None:
            rows = _candles(source, period, now_ns)
        else:
            rows = self._last_trades(source, now_ns)
        return [_update(channel, "snapshot", rows, now_ns)] if rows else []

    def _last_trades(self, source: Source, now_ns: int) -> list[dict[str, Any]]:
        if not isinstance(source, TradeSource):
            return []
        next_id = source.first_trade_at(now_ns // 1_000_000 + 1, now_ns=now_ns)
        first_id = max(next_id - _SNAPSHOT_TRADES, source.first_trade_at(0, now_ns=now_ns))
        newest = islice(self.tapes.of(source).since(first_id), next_id - first_id)
        return [_trade(source.instrument.symbol, trade) for trade in newest]


def _trade(symbol: str, trade: TapeTrade) -> dict[str, Any]:
    return {
        "symbol": symbol,
        "side": "sell" if trade.buyer_is_maker else "buy",
        "price": trade.price,
        "qty": trade.amount,
        "ord_type": "market" if trade.id % 3 == 0 else "limit",
        "trade_id": trade.id,
        "timestamp": _time(trade.time_ns),
    }


def _candles(source: Source, period: Period, now_ns: int) -> list[dict[str, Any]]:
    """Return the newest candles, the last one unfinished."""
    found = source.candles(period, CandleRequest(None, None, _SNAPSHOT_CANDLES), now_ns=now_ns)
    counts = usual_trades(source.instrument, np.full(len(found), period.step_s))
    ends_s = found.open_s + period.step_s
    columns = (found.open_s, ends_s, *found.columns()[1:], counts, ends_s <= now_ns // _NS)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [_candle(source.instrument.symbol, Kline(*row)) for row in rows]


def _candle(symbol: str, kline: Kline) -> dict[str, Any]:
    typical = (kline.open + kline.high + kline.low + kline.close) / 4
    return {
        "symbol": symbol,
        "open": kline.open,
        "high": kline.high,
        "low": kline.low,
        "close": kline.close,
        "trades": kline.trades,
        "volume": kline.volume,
        "vwap": typical,
        "interval_begin": _time(kline.open_s * _NS),
        "interval": (kline.end_s - kline.open_s) // 60,
        "timestamp": _time(kline.end_s * _NS),
    }


def _ticker(source: Source, now_ns: int) -> dict[str, Any]:
    """Return the ticker of the last 24 hours, to the minute, as REST does."""
    end_s = source.newest_s(now_ns=now_ns)
    day = sum_up(source, end_s - DAY, end_s, now_ns=now_ns)
    return {
        "symbol": source.instrument.symbol,
        "bid": day.close,
        "bid_qty": 1.0,
        "ask": day.close,
        "ask_qty": 1.0,
        "last": day.close,
        "volume": day.volume,
        "vwap": day.mean,
        "low": day.low,
        "high": day.high,
        "change": day.close - day.open,
        "change_pct": (day.close / day.open - 1) * 100 if day.open else 0.0,
    }


def _update(channel: str, kind: str, rows: list[dict[str, Any]], now_ns: int) -> str:
    return _text({"channel": channel, "type": kind, "data": rows, "timestamp": _time(now_ns)})


def _times(now_ns: int) -> dict[str, str]:
    return {"time_in": _time(now_ns), "time_out": _time(now_ns)}


def _time(time_ns: int) -> str:
    """Return a time as text with microseconds."""
    day = dt.datetime.fromtimestamp(time_ns // _NS, dt.UTC)
    return f"{day:%Y-%m-%dT%H:%M:%S}.{time_ns % _NS // 1000:06}Z"


def _text(body: Any) -> str:
    return orjson.dumps(body).decode()
