"""``dexorder funding``: funding rates of a perpetual future."""

from __future__ import annotations

from typing import Any

from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.rows.printing import print_table
from dexorder.cli.terminal import output, progress
from dexorder.client.blocking import Client
from dexorder.errors import HistoryNotFound, RequestRefused
from dexorder_common.model import datasets
from dexorder_common.model.times import from_datetime, iso

_COLUMNS = ("funding time", "rate", "interval", "mark price")
_HOUR = 3_600


def funding(
    ticker: str,
    since: str | None,
    until: str | None,
    options: OutputOptions,
    timeout: float | None,
    relay: str | None,
) -> None:
    """Fetch the missing rates, and print all of them or write them to a file."""
    if since is None:
        raise RequestRefused("--since is required, for example --since 2024-01-01 or --since -30d")
    name = f"{ticker} {datasets.FUNDING.rows}"
    with Client(relay) as client, progress.show_hours(name, output.stderr()) as on_progress:
        try:
            found = client.funding(ticker, since, until or "now", on_progress=on_progress, timeout=timeout)
        except HistoryNotFound:
            output.stderr().print(f"{name}: there are none in this range")
            raise
    total = sum(found["rate"].to_pylist())
    summary = f"{name}: {found.num_rows:,}, in total {total:+.6%}; they are in {datasets.FUNDING.table}"
    print_table(options, found, _COLUMNS, _cells, ("funding_time", "fetched_at"), summary)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    interval, price = row["interval_seconds"], row["mark_price"]
    return (
        iso(from_datetime(row["funding_time"])),
        f"{row['rate']:+.6%}",
        "-" if interval is None else f"{interval / _HOUR:g} h",
        "-" if price is None else f"{price:,.8g}",
    )
