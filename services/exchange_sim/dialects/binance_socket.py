"""WebSocket dialect of Binance's spot market. Pure.

Streams: ``<symbol>@trade``, ``<symbol>@aggTrade``. A stream of an unknown market is accepted and stays silent, as at
Binance.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import orjson

from services.exchange_sim.dialects.binance import AGGREGATES
from services.exchange_sim.dialects.session import Message, Session, Tapes
from services.exchange_sim.stream import Event, Feed, Trade
from services.exchange_sim.trades import TradeSource

_MS = 1_000_000


class BinanceSession(Session):
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
        """See `Session.greeting`."""
        return []

    def receive(self, text: str, now_ns: int) -> list[str]:
        """See `Session.receive`."""
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
        """See `Session.feed`."""
        symbol, _, kind = str(key).partition("@")
        source = self.tapes.venue.sources.get(symbol.upper())
        if kind in ("trade", "aggTrade") and isinstance(source, TradeSource):
            return ((trade.time_ms * _MS, trade) for trade in self.tapes.of(source).after(after_ns))
        return None

    def render(self, key: Hashable, event: Event, now_ns: int) -> Message:
        """See `Session.render`."""
        symbol, _, kind = str(key).partition("@")
        market = symbol.upper()
        body: Any = {"e": kind, "E": now_ns // _MS, "s": market, **_trade(kind, event)}
        return Message(_text({"stream": key, "data": body} if self._combined else body), market, event.time_ms * _MS)


def _trade(kind: str, trade: Trade) -> dict[str, Any]:
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


def _error(id: Any, code: int, message: str) -> str:
    return _text({"error": {"code": code, "msg": message}, **({} if id is None else {"id": id})})


def _text(body: Any) -> str:
    return orjson.dumps(body).decode()
