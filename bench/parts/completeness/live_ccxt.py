"""Bare ccxt.pro loop that writes each trade of ``watch_trades`` to a file, as tutorials do. A process of its own.

python -m bench.parts.completeness.live_ccxt HOST:PORT FILE SYMBOL...
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import ccxt.pro as ccxt_pro

from dexorder_common.exchanges import Exchange, override_urls


async def run(address: str, file: Path, symbols: list[str]) -> None:
    """Watch until killed; after an error, watch again."""
    client = ccxt_pro.binance({"newUpdates": True, "options": {"fetchMarkets": {"types": ["spot"]}}})
    urls = Exchange(ccxt="binance", rest_url=f"http://{address}", ws_url=f"ws://{address}")
    client.urls["api"] = override_urls(client.urls["api"], urls)
    await client.load_markets()
    with file.open("a", buffering=1) as out:

        async def watch(symbol: str) -> None:
            while True:
                try:
                    found = await client.watch_trades(symbol, None, None, {"name": "aggTrade"})
                except ccxt_pro.BaseError:
                    await asyncio.sleep(0.1)
                    continue
                for trade in found:
                    out.write(json.dumps([symbol, trade["id"], trade["price"], trade["amount"]]) + "\n")

        await asyncio.gather(*map(watch, symbols))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
