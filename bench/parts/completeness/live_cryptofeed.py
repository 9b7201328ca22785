"""cryptofeed that writes each trade to a file. It runs in the environment of ``requirements/peer-cryptofeed.txt``.

python -I live_cryptofeed.py HOST:PORT FILE SYMBOL...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cryptofeed import FeedHandler, feed  # type: ignore[import-not-found]
from cryptofeed.connection import WSAsyncConn  # type: ignore[import-not-found]
from cryptofeed.defines import TRADES  # type: ignore[import-not-found]
from cryptofeed.exchanges import Binance  # type: ignore[import-not-found]

_TLS = "wss://"


class _Plain(WSAsyncConn):  # type: ignore[misc]
    """A connection without TLS, which cryptofeed's check of addresses refuses."""

    address: str

    async def _open(self) -> None:
        self.address = self.address.replace(_TLS, "ws://")
        await super()._open()


def run(address: str, file: str, symbols: list[str]) -> None:
    """Follow until killed; cryptofeed connects again by itself."""
    Binance.websocket_endpoints[0].address = f"{_TLS}{address}"
    feed.WSAsyncConn = _Plain
    Binance.rest_endpoints[0].address = f"http://{address}"
    with Path(file).open("a", buffering=1) as out:

        async def write(trade: Any, _: float) -> None:
            row = [trade.symbol.replace("-", "/"), str(trade.id), float(trade.price), float(trade.amount)]
            out.write(json.dumps(row) + "\n")

        handler = FeedHandler(config={"log": {"disabled": True}})
        names = [symbol.replace("/", "-") for symbol in symbols]
        handler.add_feed(Binance(symbols=names, channels=[TRADES], callbacks={TRADES: write}))
        handler.run()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
