"""The simulated exchange in all dialects: that of the product with further streams, and those that only tests speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from dexorder_exchange_sim import server
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.dialects import bybit
from dexorder_exchange_sim.trades import TradeSource
from tests.fakes.exchange import binance_streams, kraken
from tests.fakes.exchange.filled import Filled

DIALECTS = (binance_streams.DIALECT, bybit.DIALECT, kraken.DIALECT)


@asynccontextmanager
async def serve(settings: SimSettings, *, fill: bool = False) -> AsyncIterator[str]:
    """Serve in a context; yield the base URL. With ``fill`` candles have no gaps."""
    simulator = server.Simulator(settings, DIALECTS)
    if fill:
        sources = simulator.venue.sources
        sources.update((id, Filled(each)) for id, each in sources.items() if isinstance(each, TradeSource))
    async with server.serve(settings, simulator) as url:
        yield url


@dataclass
class SimClient:
    """Client of a running simulated exchange."""

    url: str
    http: aiohttp.ClientSession

    async def get(self, path: str, **query: str | int) -> Any:
        async with self.http.get(self.url + path, params=query) as answer:
            return await answer.json()

    async def klines(self, **query: str | int) -> list[list[Any]]:
        async with self.http.get(f"{self.url}/api/v3/klines", params=query) as answer:
            assert answer.status == 200, await answer.text()
            rows: list[list[Any]] = await answer.json()
            return rows

    async def faults(self, *rules: dict[str, Any]) -> None:
        async with self.http.post(f"{self.url}/sim/faults", json=list(rules)) as answer:
            assert answer.status == 200, await answer.text()

    async def clock(self, **change: float | None) -> None:
        async with self.http.post(f"{self.url}/sim/clock", json=change) as answer:
            assert answer.status == 200, await answer.text()

    async def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.get("/sim/stats")
        return found


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Answer each GET by a function; yield the base URL."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
