"""Two ways to fetch a range by ccxt alone: a loop over its ``fetch_ohlcv``, and its own ``paginate``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dexorder.demo.exchange import Values
from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange

PAGE = 1_000
"""Most candles of one answer."""
ATTEMPTS = 5
"""Calls of the loop for one page before it gives up."""
MINUTE_MS = 60_000
_MS_NS = 1_000_000
Rows = list[Any]
Way = Callable[[Any, str, TimeRange, Rows], Awaitable[None]]


@dataclass(frozen=True)
class PeerEnd:
    """Result of a peer for its caller: rows (open time in ns, values) in order of arrival, and the error if any."""

    rows: list[tuple[int, Values]]
    error: str = ""

    @property
    def told(self) -> str:
        """Return the outcome as the caller sees it."""
        return f"raises {self.error}" if self.error else "nothing"


async def retrying_loop(client: Any, symbol: str, span: TimeRange, rows: Rows) -> None:
    """Fetch pages, each starting at the last candle, until one is empty; repeat a call after a network error."""
    import ccxt

    since_ms, end_ms = span.start_ns // _MS_NS, span.end_ns // _MS_NS
    while since_ms < end_ms:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                page = await client.fetch_ohlcv(symbol, "1m", since_ms, PAGE)
                break
            except ccxt.NetworkError:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(0.2 * attempt)
        if not page:
            return
        rows += page
        since_ms = page[-1][0] + MINUTE_MS


async def paginate(client: Any, symbol: str, span: TimeRange, rows: Rows) -> None:
    """Fetch the whole range in one call of ccxt."""
    pages = -(-count_periods(span, 60) // PAGE)
    until_ms = span.end_ns // _MS_NS - 1
    parameters = {"paginate": True, "until": until_ms, "paginationCalls": pages + 1}
    rows += await client.fetch_ohlcv(symbol, "1m", span.start_ns // _MS_NS, None, parameters)


class Peers:
    """Ways to fetch a range by ccxt alone, which run side by side in a thread until the block ends."""

    def __init__(self, address: str, symbol: str, span: TimeRange) -> None:
        self._address = address
        self._symbol = symbol
        self._span = span
        self._pool = ThreadPoolExecutor(1, "demo-peers")

    def start(self, *ways: Way) -> Future[list[PeerEnd]]:
        """Start the ways; the result has an end for each, in their order."""
        return self._pool.submit(lambda: asyncio.run(self._run_all(ways)))

    async def _run_all(self, ways: tuple[Way, ...]) -> list[PeerEnd]:
        return list(await asyncio.gather(*map(self._run, ways)))

    async def _run(self, way: Way) -> PeerEnd:
        client, rows, error = _client(self._address), Rows(), ""
        try:
            await way(client, self._symbol, self._span, rows)
        except Exception as raised:  # each exception of ccxt reaches its caller
            error = type(raised).__name__
        finally:
            await client.close()
        return PeerEnd([row for row in map(_row, rows) if self._span.start_ns <= row[0] < self._span.end_ns], error)


def _client(address: str) -> Any:
    """Return ccxt's client of Binance with the simulated exchange's address."""
    import ccxt.async_support as ccxt

    client = ccxt.binance({"options": {"fetchMarkets": {"types": ["spot"]}}})
    client.urls["api"] = {
        name: f"http://{address}/{url.split('/', 3)[3]}" if isinstance(url, str) else url
        for name, url in client.urls["api"].items()
    }
    return client


def _row(row: Any) -> tuple[int, Values]:
    open_ms, *values = row
    return int(open_ms or 0) * _MS_NS, tuple(values)
