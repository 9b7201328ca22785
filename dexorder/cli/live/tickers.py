"""``dexorder tickers``: a snapshot of all tickers of an exchange."""

from __future__ import annotations

from typing import Any

from dexorder.cli.live.watch_view import price_text
from dexorder.cli.rows.options import STDOUT, OutputOptions
from dexorder.cli.rows.sinks import file_rows
from dexorder.cli.terminal import output
from dexorder.client.blocking import Client
from dexorder_common.model.times import from_datetime, iso

_COLUMNS = ("ticker", "last", "bid", "ask", "high", "low", "base volume", "quote volume", "time")


def tickers(
    venue: str, text: str, top: int | None, options: OutputOptions, timeout: float | None, relay: str | None
) -> None:
    """Take a snapshot, store it, and print it: by ticker, or the ``top`` markets by quote volume."""
    with Client(relay) as client:
        found = client.snapshot_tickers(venue, timeout=timeout)
    every: list[dict[str, Any]] = found.to_pylist()
    shown = [index for index, row in enumerate(every) if text.lower() in row["ticker"].lower()]
    if top is not None:
        shown = sorted(shown, key=lambda index: every[index]["quote_volume"] or 0.0, reverse=True)[:top]
    rows = [every[index] for index in shown]
    is_piped = options.out == STDOUT
    if options.out is not None:
        with file_rows(options) as sink:
            sink.write(found.take(shown))
        if not is_piped:
            output.stderr().print(f"rows: {options.out}")
    if options.as_json:
        output.print_json([_json(row) for row in rows])
        return
    if not is_piped:
        output.stdout().print(output.plain_table(_COLUMNS, map(_cells, rows)))
    output.stderr().print(f"{len(rows):,} of {found.num_rows:,} markets; they are in trading.tickers")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    prices = (row[name] for name in ("last", "bid", "ask", "high", "low"))
    volumes = (row[name] for name in ("base_volume", "quote_volume"))
    return (
        row["ticker"],
        *("-" if each is None else price_text(each) for each in prices),
        *("-" if each is None else f"{each:,.2f}" for each in volumes),
        iso(from_datetime(row["time"])),
    )


def _json(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: row[name] and row[name].isoformat() for name in ("time", "received_at")}
    return {**row, **times}
