"""``dexorder read``: the rows of a series that the table has, without fetching any."""

from __future__ import annotations

from typing import Any

from dexorder.cli.history.queries import shares
from dexorder.cli.rows.options import OutputOptions
from dexorder.cli.rows.printing import print_rows
from dexorder.cli.terminal import output, progress
from dexorder.cli.terminal.unknown import refuse_unknown
from dexorder.client.async_client import AsyncClient
from dexorder.client.inputs import read_part
from dexorder.client.requests import without_repeats
from dexorder.client.table_rows import in_thread
from dexorder.rows.answers import TABLE, CountedRows
from dexorder_common.model.coverage import CoverageKind, CoverageRange
from dexorder_common.model.history import id_json, range_json
from dexorder_common.model.periods import PERIODS


async def read(
    ticker: str,
    period: str,
    since: str | None,
    until: str | None,
    options: OutputOptions,
    *,
    quiet: bool,
    relay: str | None,
) -> None:
    """Print the rows, and how much of the range the table covers."""
    seconds, since_ns, until_ns = read_part(period, since, until)
    on_note = progress.ignore if quiet else without_repeats(output.stderr().print)
    async with AsyncClient(relay, on_note=on_note) as client:
        found = await client.rows.find(ticker, seconds, since_ns, until_ns)
        known = await client.series.coverage(ticker, seconds, since_ns, until_ns)
        if not found.row_count and not known.known:
            await refuse_unknown(client, ticker, seconds)
        whole = known.whole(since_ns, until_ns)
        text = f"{ticker} {PERIODS[seconds]}: {found.row_count:,} rows in {TABLE}, snapshot {found.snapshot_id}"
        summary = f"{text}; {shares(known, whole)}" if whole else f"{text}; nothing is covered"
        await print_rows(options, in_thread(found.batches()), stored_json(found, whole), summary)


def stored_json(found: CountedRows, whole: list[CoverageRange]) -> dict[str, Any]:
    """Return the JSON fields of rows that are stored, without the rows."""
    return {
        "ticker": found.series.ticker,
        "period_seconds": found.series.period_seconds,
        "row_count": found.row_count,
        "missing": [range_json(each.span) for each in whole if each.kind is CoverageKind.MISSING],
        "snapshot_id": id_json(found.snapshot_id),
        "table": TABLE,
    }
