"""WebSockets of a venue, by unmodified ccxt.pro. What they send proves nothing; `realtime` checks it.

All markets of a venue share one ccxt.pro client, which spreads them over sockets. ccxt.pro does not notice a silent
socket, and one malformed frame ends its loop without an error, so `reopen` closes a socket by force.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ccxt.pro as ccxt_pro
import structlog

from dexorder.services.ingestor.exchange.venue import Venue

log = structlog.get_logger(__name__)
_KEPT_TRADES = 20_000
"""Trades of a market that ccxt.pro keeps until a call takes them; it drops further ones without a sign."""
_CLOSE_SECONDS = 5.0


class LiveSockets:
    """Sockets of one venue; none is open before the first `watch`."""

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._client: Any = None
        self._closing: set[asyncio.Task[None]] = set()

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

    def reopen(self, symbol: str) -> None:
        """Close the socket of a market; every `watch` on it fails, and the next one opens another."""
        client = self._pro()
        names = {symbol, str((client.markets or {}).get(symbol, {}).get("id", symbol))}
        sockets = list(client.clients.items())
        own = [(url, ws) for url, ws in sockets if any(name in str(key) for key in ws.subscriptions for name in names)]
        for url, ws in own or (sockets if len(sockets) == 1 else []):
            del client.clients[url]
            ws.reject(ccxt_pro.NetworkError(f"{self._venue.name}: the socket was silent and is opened again"))
            task = asyncio.create_task(_close(ws))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close everything."""
        if self._client is not None:
            await asyncio.gather(*self._closing, return_exceptions=True)
            await self._client.close()

    def _pro(self) -> Any:
        if self._client is None:
            self._client = self._venue.new_client(ccxt_pro, tradesLimit=_KEPT_TRADES)
            self._client.throttler = self._venue.rate_limiter
        return self._client


async def _close(ws: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await ws.close()
    except Exception as error:  # it is given up anyway
        log.debug("a socket did not close", error=repr(error))
