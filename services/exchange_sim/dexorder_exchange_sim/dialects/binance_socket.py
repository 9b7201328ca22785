"""WebSocket dialect of Binance's spot market. Pure.

Streams: ``<symbol>@trade`` and ``<symbol>@aggTrade``. Other streams, and streams of an unknown market, are accepted and
stay silent, as at Binance.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import orjson

from dexorder_exchange_sim.candles import Source
from dexorder_exchange_sim.dialects.binance_rows import aggregate_id
from dexorder_exchange_sim.dialects.dialect import Query, SocketMessage, SocketSession, Tapes
from dexorder_exchange_sim.stream import Event, Feed, TapeTrade
from dexorder_exchange_sim.trades import TradeSource

_MS = 1_000_000


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
        source, kind = self.stream(key)
        if not isinstance(source, TradeSource) or kind not in ("trade", "aggTrade"):
            return None
        return ((trade.time_ms * _MS, trade) for trade in self.tapes.of(source).after(after_ns))

    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """See `SocketSession.render`."""
        source, kind = self.stream(key)
        assert source is not None and isinstance(event, TapeTrade), "feed returns trades only"
        market = source.instrument.id
        again_id = self.tapes.venue.again_ids.get(market)
        body = {"e": kind, "E": now_ns // _MS, "s": market, **_trade(kind, event, again_id)}
        return self.message(key, body, market, event.time_ms * _MS)

    def message(self, key: Hashable, body: Any, market: str | None, time_ns: int) -> SocketMessage:
        """Return a message of a stream."""
        return SocketMessage(_text({"stream": key, "data": body} if self._combined else body), market, time_ns)

    def stream(self, key: Hashable) -> tuple[Source | None, str]:
        """Return the market and the kind of a stream; no market for a stream of all markets."""
        left, _, right = str(key).partition("@")
        if right == "arr":
            return None, left.removeprefix("!")
        return self.tapes.venue.sources.get(left.upper()), right


def connect(
    tapes: Tapes, path: str, query: Query, now_ns: int, *, kind: type[BinanceSession] = BinanceSession
) -> SocketSession | None:
    """Open a session of a kind; return None for a path without WebSocket."""
    if not path.startswith(("/ws", "/stream")):
        return None
    return kind(tapes, path, query.get("streams", ""), now_ns)


def _trade(kind: str, trade: TapeTrade, again_id: int | None) -> dict[str, Any]:
    ids: dict[str, Any] = {"t": trade.id}
    if kind == "aggTrade":
        ids = {"a": aggregate_id(trade.id, again_id), "f": trade.id, "l": trade.id}
    return {
        **ids,
        "p": trade.price_text,
        "q": trade.amount_text,
        "T": trade.time_ms,
        "m": trade.buyer_is_maker,
        "M": True,
    }


def _error(id: Any, code: int, message: str) -> str:
    return _text({"error": {"code": code, "msg": message}, **({} if id is None else {"id": id})})


def _text(body: Any) -> str:
    return orjson.dumps(body).decode()
