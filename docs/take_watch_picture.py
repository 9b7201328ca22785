"""Picture of ``dexorder watch`` for docs/realtime.md, of a running suite: ``take_watch_picture.py TICKER``."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import aclosing
from pathlib import Path

from rich.console import Console

from dexorder import AsyncClient
from dexorder.cli.live.watch import stored_candles
from dexorder.cli.live.watch_view import WatchView

PICTURE = Path(__file__).with_name("images") / "watch.svg"
PERIODS = (60, 300)
SECONDS = 10


async def watched(ticker: str) -> WatchView:
    """Return the view after some seconds."""
    view = WatchView(ticker, PERIODS)
    async with AsyncClient() as client:
        await client.start_realtime(ticker, PERIODS, subscription_id="picture", since="-2h")
        await client.history(ticker, 60, "-2h")
        for period in PERIODS:
            view.add_stored(await stored_candles(client, ticker, period))
        async with aclosing(client.live(ticker, PERIODS, subscribe=False)) as updates, asyncio.timeout(60):
            started = time.monotonic()
            async for update in updates:
                view.add(update, now_ns=time.time_ns())
                if time.monotonic() - started > SECONDS:
                    return view
    raise AssertionError("the stream never ends")


def main() -> None:
    """Write the picture."""
    ticker = sys.argv[1]
    view = asyncio.run(watched(ticker))
    console = Console(record=True, width=104, height=36, force_terminal=True, color_system="truecolor")
    console.print(view.render(104, 36, now_ns=time.time_ns()))
    svg = console.export_svg(title=f"dexorder watch {ticker} --period 1m,5m")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # the reader's own monospaced font is used
    PICTURE.write_text(svg)


if __name__ == "__main__":
    main()
