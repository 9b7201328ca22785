"""A simulated exchange on a free port and an unmodified ccxt client that talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import ccxt.async_support as ccxt
import ccxt.pro as ccxt_pro
import pytest

from dexorder_common.exchanges import Exchange as Venue
from dexorder_common.exchanges import override_urls
from dexorder_exchange_sim.config import SimSettings
from tests.fakes.exchange import SimClient, serve
from tests.fixtures_ccxt import cheap_clients as cheap_clients

NOW_NS = 1_700_000_123 * 1_000_000_000
"""2023-11-14 22:15:23, in the middle of a minute."""


class Exchange(SimClient):
    def __init__(self, url: str, http: aiohttp.ClientSession, options: dict[str, Any]) -> None:
        super().__init__(url, http)
        self._options = options

    @cached_property
    def client(self) -> Any:
        """Made when a test first wants it: building one takes longer than most tests."""
        client = ccxt.binance({"options": self._options, "enableRateLimit": False})
        point_at(client, self.url)
        return client

    @cached_property
    def kraken(self) -> Any:
        client = ccxt.kraken({"enableRateLimit": False})
        point_at(client, self.url)
        return client

    @cached_property
    def pro(self) -> Any:
        # by default ccxt.pro keeps 1000 trades of a market and drops others that no call has returned, without a sign
        options = {**self._options, "tradesLimit": 1_000_000, "OHLCVLimit": 10_000}
        return self._streaming(ccxt_pro.binance({"options": options, "enableRateLimit": False, "apiKey": "any"}))

    @cached_property
    def kraken_pro(self) -> Any:
        options = {"tradesLimit": 1_000_000, "OHLCVLimit": 10_000}
        return self._streaming(ccxt_pro.kraken({"options": options, "enableRateLimit": False}))

    def _streaming(self, client: Any) -> Any:
        ours = Venue(ccxt=client.id, rest_url=self.url, ws_url=self.url.replace("http", "ws", 1))
        client.urls["api"] = override_urls(client.urls["api"], ours)
        return client

    async def close(self) -> None:
        for name in ("client", "kraken", "pro", "kraken_pro"):
            if name in vars(self):
                await vars(self)[name].close()

    async def subscribed(self, *names: str) -> None:
        """Wait until the open sockets together have exactly these subscriptions."""
        async with asyncio.timeout(10):
            while sorted(await self.subscriptions()) != sorted(names):
                pass

    async def subscriptions(self) -> list[str]:
        return [name for one in await self.get("/sim/sockets") for name in one["subscriptions"]]


def point_at(client: Any, url: str) -> None:
    """Rewrite scheme, host and port of every API URL; the paths stay."""
    client.urls["api"] = {name: url + urlsplit(address).path for name, address in client.urls["api"].items()}


@asynccontextmanager
async def running(
    options: dict[str, Any] | None = None, *, fill: bool = False, **settings: Any
) -> AsyncIterator[Exchange]:
    async with AsyncExitStack() as stack:
        config = SimSettings(listen="127.0.0.1:0", **{"now_ns": NOW_NS, **settings})
        url = await stack.enter_async_context(serve(config, fill=fill))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        exchange = Exchange(url, http, options or {})
        stack.push_async_callback(exchange.close)
        yield exchange


Start = Callable[..., AbstractAsyncContextManager[Exchange]]


@pytest.fixture
def start() -> Start:
    return running


@pytest.fixture
async def exchange() -> AsyncIterator[Exchange]:
    async with running() as started:
        yield started
