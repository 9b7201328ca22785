"""WebSockets of a venue, by unmodified ccxt.pro. What they send proves nothing; `realtime` checks it.

All markets of a venue share one ccxt.pro client, which spreads them over sockets. ccxt.pro does not notice a silent
socket, and one malformed frame ends its loop without an error, so `reopen` closes a socket by force. Nor does it end a
subscription that nobody waits for: it would parse and keep trades of a stopped market, so `watching` unsubscribes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import ccxt.pro as ccxt_pro
import structlog
from ccxt.async_support.base.ws.cache import ArrayCache

from dexorder.services.ingestor.exchange.venue import Venue

log = structlog.get_logger(__name__)
_KEPT_TRADES = 20_000
"""Trades of a market that ccxt.pro keeps until a call takes them; it drops further ones without a sign."""
_CLOSE_SECONDS = 5.0
_LEAVE_SECONDS = 10.0
"""Time for which a subscription outlives its job; another one of the same market often follows at once."""


class LiveSockets:
    """Sockets of one venue; none is open before the first `watch`."""

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._client: Any = None
        self._closing: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._watchers: Counter[str] = Counter()

    @property
    def can_watch(self) -> bool:
        """Whether ccxt.pro has trades of this exchange."""
        return hasattr(ccxt_pro, self._venue.dialect.ccxt) and self._pro().has.get("watchTrades") is True

    async def watch(self, symbol: str) -> list[Any]:
        """Return the next trades of a market, as ccxt has them; the markets must be known (`Venue.know`).

        Raises:
            ccxt.BaseError: The connection is lost or refused.
        """
        client = self._pro()
        self._venue.share_markets(client)
        found = list(await client.watch_trades(symbol, None, None, dict(self._venue.trade_series.watch)))
        if symbol in client.trades:
            client.trades[symbol].clear()  # or it keeps them, a dict each, for every market
        return found

    @contextmanager
    def watching(self, symbol: str) -> Iterator[None]:
        """Keep the subscription of a market while a job calls `watch`, and a while longer."""
        if not self._watchers[symbol] and self._client is not None:
            self._client.trades.pop(symbol, None)
        self._watchers[symbol] += 1
        try:
            yield
        finally:
            self._watchers[symbol] -= 1
            if not self._watchers[symbol] and self._client is not None:
                _keep(self._leaving, self._leave(symbol))

    async def _leave(self, symbol: str) -> None:
        await asyncio.sleep(_LEAVE_SECONDS)
        client = self._pro()
        if self._watchers[symbol]:
            return
        if client.has.get("unWatchTrades") is not True:
            client.trades[symbol] = ArrayCache(1)  # its trades come until the socket closes
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.un_watch_trades(symbol, dict(self._venue.trade_series.watch))
        except (ccxt_pro.BaseError, TimeoutError) as error:  # a new watcher subscribes again
            log.info("trades of a stopped market still come", symbol=symbol, error=repr(error)[:200])

    def reopen(self, symbol: str) -> None:
        """Close the socket of a market; every `watch` on it fails, and the next one opens another."""
        client = self._pro()
        names = {symbol, str((client.markets or {}).get(symbol, {}).get("id", symbol))}
        sockets = list(client.clients.items())
        own = [(url, ws) for url, ws in sockets if any(name in str(key) for key in ws.subscriptions for name in names)]
        for url, ws in own or (sockets if len(sockets) == 1 else []):
            del client.clients[url]
            ws.reject(ccxt_pro.NetworkError(f"{self._venue.name}: the socket was silent and is opened again"))
            _keep(self._closing, _close(ws))

    async def close(self) -> None:
        """Close everything."""
        for task in self._leaving:
            task.cancel()
        if self._client is not None:
            await asyncio.gather(*self._leaving, *self._closing, return_exceptions=True)
            await self._client.close()

    def _pro(self) -> Any:
        if self._client is None:
            self._client = self._venue.new_client(ccxt_pro, tradesLimit=_KEPT_TRADES)
            self._client.throttler = self._venue.rate_limiter
        return self._client


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Start a task that nobody awaits before `LiveSockets.close`."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _close(ws: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await ws.close()
    except Exception as error:  # it is given up anyway
        log.debug("a socket did not close", error=repr(error))
