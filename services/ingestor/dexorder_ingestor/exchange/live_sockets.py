"""WebSockets of a venue, by unmodified ccxt.pro. Their messages are not trusted; `realtime` checks them.

All markets of a venue share one ccxt.pro client, which spreads them over sockets. It runs in a separate thread: see
`socket_thread`. ccxt.pro does not notice a silent socket, and one malformed frame ends its loop without an error, so
`reopen` closes a socket by force. Nor does it end a subscription without a waiting call: it would parse and keep trades
of a stopped market, so a market without a watcher is unsubscribed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ccxt.pro as ccxt_pro
import structlog
from ccxt.async_support.base.ws.cache import ArrayCache

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.rate_limiter import RateLimiter
from dexorder_ingestor.exchange.socket_thread import Handover, Received, SocketThread
from dexorder_ingestor.exchange.venue import CcxtVenue

log = structlog.get_logger(__name__)
_KEPT_TRADES = 20_000
"""Trades of a market that ccxt.pro keeps until a call takes them, and messages that wait for a job; the others are
dropped."""
_CLOSE_SECONDS = 5.0
_PING_MS = 2_000
"""Time between two pings of a socket, unless the exchange sets it: the answer proves that the socket is alive."""
_LEAVE_SECONDS = 10.0
"""Time for which a subscription outlives its job; another one of the same market often follows at once."""


class SocketSubscription:
    """Messages of one market for one job."""

    def __init__(self, sockets: LiveSockets, symbol: str) -> None:
        self._sockets = sockets
        self._symbol = symbol
        self._is_started = False
        self.handover = Handover(max_messages=_KEPT_TRADES)

    @property
    def dropped(self) -> int:
        """Number of messages so far that found no room, because the job was too slow."""
        return self.handover.dropped

    async def next(self) -> list[Received]:
        """Return the next messages. After an error, the next call connects again.

        Raises:
            ccxt.BaseError: The connection is lost or refused.
        """
        if not self._is_started:
            self._is_started = True
            self._sockets.start(self._symbol)
        try:
            return await self.handover.take()
        except Exception:
            self._is_started = False
            raise


class LiveSockets:
    """Sockets of one venue; no thread is started and no socket is open before the first `watching`.

    Methods with a leading underscore run in the thread.
    """

    def __init__(self, venue: CcxtVenue) -> None:
        self._venue = venue
        self._client: Any = None
        self._thread: SocketThread | None = None
        self._watchers: dict[str, list[Handover]] = {}
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._found: dict[str, tuple[str, Any]] = {}

    @property
    def can_watch(self) -> bool:
        """Whether ccxt.pro has trades of this exchange."""
        return hasattr(ccxt_pro, self._venue.dialect.ccxt) and self.client().has.get("watchTrades") is True

    def client(self) -> Any:
        """Return the client of ccxt.pro, which only the thread may call."""
        if self._client is None:
            self._client = self._venue.new_client(ccxt_pro, tradesLimit=_KEPT_TRADES)
            self._client.throttler = _ThrottlerOfAnotherLoop(self._venue.rate_limiter)
            self._client.streaming = _pinged_often(self._client.streaming)
        return self._client

    @contextmanager
    def watching(self, symbol: str) -> Iterator[SocketSubscription]:
        """Subscribe to a market for the block and a while longer; its instruments must be known (`CcxtVenue.know`)."""
        self.client()
        self._thread = self._thread or SocketThread(f"sockets {self._venue.name}")
        subscription = SocketSubscription(self, symbol)
        self._watchers.setdefault(symbol, []).append(subscription.handover)
        try:
            yield subscription
        finally:
            self._watchers[symbol].remove(subscription.handover)
            self._thread.soon(lambda: _keep(self._leaving, self._leave(symbol)))

    def start(self, symbol: str) -> None:
        """Let the messages of a watched market come, unless they do."""
        assert self._thread is not None, "start is called inside watching"
        self._thread.soon(partial(self._start, symbol))

    def reopen(self, symbol: str) -> None:
        """Close the socket of a market; its subscriptions fail, and their next call opens another."""
        if self._thread is not None:
            self._thread.soon(partial(self._reopen, symbol))

    def ping(self, symbol: str) -> None:
        """Ping the socket of a market; `silence_ns` shows the answer."""
        if self._thread is not None and self._client is not None:
            self._thread.soon(partial(self._ping, symbol))

    def silence_ns(self, symbol: str) -> int | None:
        """Return the time since the last frame on the socket of a market: any market's frame, or a pong.

        None without an open socket, or before its first frame. A frame proves that the socket is alive; it does not
        prove that the subscription is.
        """
        if self._client is None or symbol not in self._pumps:
            return None
        url, ws = self._found.get(symbol, ("", None))
        if ws is None or self._client.clients.get(url) is not ws:
            url, ws = next(self._sockets_of(symbol), ("", None))
            self._found[symbol] = url, ws
        heard_ms = getattr(ws, "last_message_at", None)
        return None if heard_ms is None else max(0, time.time_ns() - heard_ms * SECOND_NS // 1_000)

    async def close(self) -> None:
        """Close everything."""
        if self._thread is not None:
            await self._thread.run(self._close())
            await self._thread.close()
            self._thread = None

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _start(self, symbol: str) -> None:
        if symbol not in self._pumps and self._watchers[symbol]:
            self._client.trades.pop(symbol, None)  # received without a watcher
            self._pumps[symbol] = asyncio.get_running_loop().create_task(self._pump(symbol))

    async def _pump(self, symbol: str) -> None:
        """Hand over the messages of a market until the connection is lost or the task is cancelled."""
        task, error = asyncio.current_task(), Exception()
        try:
            while True:
                rows = await self._watch(symbol)
                received = Received(self._venue.clock.wall_ns(), rows)
                for handover in tuple(self._watchers[symbol]):
                    handover.put(received)
        except asyncio.CancelledError:
            if task is None or task.cancelling():
                raise
            error = ccxt_pro.NetworkError("ccxt.pro cancelled the call")  # it does so when it closes a socket
        except Exception as caught:
            error = caught
        finally:
            if self._pumps.get(symbol) is task:
                del self._pumps[symbol]
        for handover in tuple(self._watchers[symbol]):
            handover.fail(error)

    async def _watch(self, symbol: str) -> list[Any]:
        client = self._client
        self._venue.share_markets(client)
        found = list(await client.watch_trades(symbol, None, None, dict(self._venue.trade_series.watch)))
        if symbol in client.trades:
            client.trades[symbol].clear()  # or it keeps them, a dict each, for every market
        return found

    async def _leave(self, symbol: str) -> None:
        if not self._watchers[symbol] and (pump := self._pumps.pop(symbol, None)):
            pump.cancel()
        await asyncio.sleep(_LEAVE_SECONDS)
        client = self._client
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

    def _reopen(self, symbol: str) -> None:
        client = self._client
        for url, ws in list(self._sockets_of(symbol)):
            del client.clients[url]
            ws.reject(ccxt_pro.NetworkError(f"{self._venue.name}: the socket was silent and is opened again"))
            _keep(self._closing, _close(ws))

    def _ping(self, symbol: str) -> None:
        for _, ws in list(self._sockets_of(symbol)):
            if ws.connection is not None and not ws.connection.closed:
                _keep(self._closing, _ping(ws.connection))

    def _sockets_of(self, symbol: str) -> Iterator[tuple[str, Any]]:
        """Yield the sockets with a subscription to a market; the only socket, if none names it."""
        client = self._client
        names = {symbol, str((client.markets or {}).get(symbol, {}).get("id", symbol))}
        sockets = list(client.clients.items())
        keys = {url: [str(key) for key in list(ws.subscriptions)] for url, ws in sockets}
        own = [(url, ws) for url, ws in sockets if any(name in key for key in keys[url] for name in names)]
        yield from own or (sockets if len(sockets) == 1 else [])

    async def _close(self) -> None:
        ending = [*self._pumps.values(), *self._leaving]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, *self._closing, return_exceptions=True)
        await self._client.close()


class _ThrottlerOfAnotherLoop:
    """Throttler for ccxt that waits in the loop of the rate limiter."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._home = asyncio.get_running_loop()
        self.loop: Any = None  # ccxt sets it

    async def __call__(self, cost: Any = None) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._limiter(cost), self._home))


def _pinged_often(streaming: dict[str, Any]) -> dict[str, Any]:
    """Return ccxt's options of sockets with more pings; a socket without pongs is closed as late as without them."""
    misses = streaming["keepAlive"] * streaming["maxPingPongMisses"] / _PING_MS
    return {**streaming, "keepAlive": _PING_MS, "maxPingPongMisses": misses}


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Start a task that is not awaited before `LiveSockets.close`."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _ping(connection: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.ping()
    except Exception as error:  # its loss is noticed otherwise
        log.debug("a socket was not pinged", error=repr(error))


async def _close(ws: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await ws.close()
    except Exception as error:  # it is given up anyway
        log.debug("a socket did not close", error=repr(error))
