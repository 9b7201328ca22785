"""``dexorder tickers``: a snapshot of all tickers of an exchange."""

from __future__ import annotations

from typing import Any

from dexorder.cli.live.watch_view import price_text
from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.rows.printing import print_table
from dexorder.client.blocking import Client
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.times import from_datetime, iso

_COLUMNS = ("ticker", "last", "bid", "ask", "high", "low", "base volume", "quote volume", "time")


def tickers(
    venue: str, text: str, top: int | None, options: OutputOptions, timeout: float | None, relay: str | None
) -> None:
    """Take a snapshot, store it, and print it: by ticker, or the ``top`` markets by quote volume."""
    with Client(relay) as client:
        found = client.snapshot_tickers(venue, timeout=timeout)
    every = found.select(["ticker", "quote_volume"]).to_pylist()
    shown = [index for index, row in enumerate(every) if text.lower() in row["ticker"].lower()]
    if top is not None:
        shown = sorted(shown, key=lambda index: every[index]["quote_volume"] or 0.0, reverse=True)[:top]
    summary = f"{len(shown):,} of {found.num_rows:,} markets; they are in {TICKERS.table}"
    print_table(options, found.take(shown), _COLUMNS, _cells, ("time", "received_at"), summary)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    prices = (row[name] for name in ("last", "bid", "ask", "high", "low"))
    volumes = (row[name] for name in ("base_volume", "quote_volume"))
    return (
        row["ticker"],
        *("-" if each is None else price_text(each) for each in prices),
        *("-" if each is None else f"{each:,.2f}" for each in volumes),
        iso(from_datetime(row["time"])),
    )
