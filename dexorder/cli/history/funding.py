"""``dexorder funding``: funding rates of a perpetual future."""

from __future__ import annotations

from typing import Any

from dexorder.cli.rows.options import STDOUT, OutputOptions
from dexorder.cli.rows.sinks import file_rows
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
    """Fetch what the table lacks, and print the rates or write them to a file."""
    if since is None:
        raise RequestRefused("--since is required, for example --since 2024-01-01 or --since -30d")
    name = f"{ticker} {datasets.FUNDING.rows}"
    with Client(relay) as client, progress.show_hours(name, output.stderr()) as on_progress:
        try:
            found = client.funding(ticker, since, until or "now", on_progress=on_progress, timeout=timeout)
        except HistoryNotFound:
            output.stderr().print(f"{name}: there are none in this range")
            raise
    rows: list[dict[str, Any]] = found.to_pylist()
    is_piped = options.out == STDOUT
    if options.out is not None:
        with file_rows(options) as sink:
            sink.write(found)
        if not is_piped:
            output.stderr().print(f"rows: {options.out}")
    if options.as_json:
        output.print_json([_json(row) for row in rows])
        return
    if not is_piped:
        output.stdout().print(output.plain_table(_COLUMNS, map(_cells, rows)))
    total = sum(row["rate"] for row in rows)
    output.stderr().print(f"{name}: {len(rows):,}, in total {total:+.6%}; they are in {datasets.FUNDING.table}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    interval, price = row["interval_seconds"], row["mark_price"]
    return (
        iso(from_datetime(row["funding_time"])),
        f"{row['rate']:+.6%}",
        "-" if interval is None else f"{interval / _HOUR:g} h",
        "-" if price is None else f"{price:,.8g}",
    )


def _json(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{name: row[name].isoformat() for name in ("funding_time", "fetched_at")}}
