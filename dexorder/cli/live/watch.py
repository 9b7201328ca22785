"""``dexorder watch``: the live trades and candles of one market."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress

from rich.live import Live

from dexorder.cli.live.watch_view import WatchView
from dexorder.cli.terminal import output
from dexorder.cli.terminal.unknown import refuse_unlisted
from dexorder.client.async_client import AsyncClient
from dexorder.client.inputs import check_ticker, read_periods
from dexorder.client.live import LiveCandle, LiveUpdate
from dexorder.errors import DexorderError
from dexorder_common.model.times import SECOND_NS, from_datetime

REFRESHES_PER_SECOND = 8
CLIENT_ID = "dexorder-watch"
_STORED = 120


def watch(
    ticker: str,
    periods: Sequence[str],
    *,
    count: int | None,
    as_json: bool,
    start: bool,
    live_only: bool,
    relay: str | None,
) -> None:
    """Show a market until Ctrl-C, or until ``count`` trades and closed candles were shown."""

    async def show() -> None:
        check_ticker(ticker)
        seconds = read_periods(periods)
        async with AsyncClient(relay, on_note=output.stderr().print) as client:
            await refuse_unlisted(client, ticker)
            updates = client.realtime.live(
                ticker,
                seconds,
                running=not as_json,
                keep_all=as_json,
                live_only=live_only,
                subscribe=start,
                client_id=CLIENT_ID,
            )
            async with aclosing(updates):
                await (_print_lines(updates, count) if as_json else _draw(client, ticker, seconds, updates, count))

    with suppress(KeyboardInterrupt):
        asyncio.run(show())


async def _print_lines(updates: AsyncIterator[LiveUpdate], count: int | None) -> None:
    printed = 0
    async for update in updates:
        for value in update.as_json():
            output.print_json_line(value)
            printed += value["kind"] in ("trade", "candle")
            if printed == count:
                return


async def _draw(
    client: AsyncClient, ticker: str, periods: list[int], updates: AsyncIterator[LiveUpdate], count: int | None
) -> None:
    view, shown = WatchView(ticker, periods), 0
    console = output.stdout()
    for period in periods:
        view.add_stored(await stored_candles(client, ticker, period))
    with Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, screen=console.is_terminal) as live:

        def refresh() -> None:
            live.update(view.render(console.width, console.height, now_ns=time.time_ns()))

        async def tick() -> None:
            while True:  # the time since the last trade changes by itself
                refresh()
                await asyncio.sleep(1 / REFRESHES_PER_SECOND)

        ticking = asyncio.create_task(tick())
        try:
            async for update in updates:
                view.add(update, now_ns=time.time_ns())
                shown += len(update.trades) + sum(candle.closed for candle in update.candles)
                if count is not None and shown >= count:
                    return
        finally:
            ticking.cancel()
            refresh()


async def stored_candles(client: AsyncClient, ticker: str, period: int) -> list[LiveCandle]:
    """Return the newest candles of the table; none if it can't be read from here: the view works without them."""
    since_ns = time.time_ns() - _STORED * period * SECOND_NS
    try:
        rows = await client.rows.stored(ticker, period, max(0, since_ns))
    except DexorderError:
        return []
    return [
        LiveCandle(
            ticker,
            period,
            from_datetime(row["open_time"]),
            row["open"],
            row["high"],
            row["low"],
            row["close"],
            row["volume"],
            row["quote_volume"],
            row["trades"],
            closed=True,
            amends=False,
            received_ns=0,
        )
        for row in rows.to_pylist()
    ]
