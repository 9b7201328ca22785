"""The simulated exchange in all dialects: that of the product, and those that only tests speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dexorder_exchange_sim import server
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.dialects import binance
from tests.fakes.exchange import kraken

DIALECTS = (binance.DIALECT, kraken.DIALECT)


@asynccontextmanager
async def serve(settings: SimSettings) -> AsyncIterator[str]:
    """Serve in a context; yield the base URL."""
    async with server.serve(settings, DIALECTS) as url:
        yield url
