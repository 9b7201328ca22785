"""Bare ccxt.pro loop: ``watch_trades`` of some markets, counted and thrown away. A process of its own.

    python -m bench.parts.realtime_bare HOST:PORT MARKETS

Prints a line every half second: monotonic seconds, trades so far, seconds of processor time so far.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import ccxt.pro as ccxt_pro

from dexorder_common.exchanges import Exchange, override_urls

_LINE_SECONDS = 0.5


async def run(address: str, symbols: list[str]) -> None:
    """Watch until killed."""
    client = ccxt_pro.binance({"newUpdates": True, "options": {"fetchMarkets": {"types": ["spot"]}}})
    urls = Exchange(ccxt="binance", rest_url=f"http://{address}", ws_url=f"ws://{address}")
    client.urls["api"] = override_urls(client.urls["api"], urls)
    await client.load_markets()
    count = 0

    async def watch(symbol: str) -> None:
        nonlocal count
        while True:
            found = await client.watch_trades(symbol, None, None, {"name": "aggTrade"})
            count += len(found)

    async def tell() -> None:
        while True:
            print(time.monotonic(), count, time.process_time(), flush=True)
            await asyncio.sleep(_LINE_SECONDS)

    loops: list[Any] = [watch(symbol) for symbol in symbols]
    await asyncio.gather(tell(), *loops)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], [f"X{number:04}/USDT" for number in range(1, int(sys.argv[2]) + 1)]))
