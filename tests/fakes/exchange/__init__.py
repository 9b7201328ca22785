"""The simulated exchange in all dialects: that of the product with further streams, and those that only tests speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
