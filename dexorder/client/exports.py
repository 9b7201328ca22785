"""``client.export``: the rows of a complete range in a file of a backtesting program."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dexorder.client.inputs import read_series
from dexorder.client.moments import Moment
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows
from dexorder.errors import ExportFailed


async def export(
    rows: AsyncTableRows,
    series: AsyncSeries,
    ticker: str,
    period: str | int,
    since: Moment,
    until: Moment,
    *,
    to: str,
    folder: str | Path,
) -> Path:
    """Write the rows of a range; see ``AsyncClient.export``."""
    from dexorder.exports.formats import export_format
    from dexorder.rows.table import Rows

    wanted, span = read_series(ticker, period, since, until)
    target = export_format(to, wanted)
    found = await series.coverage(ticker, period, span.start_ns, span.end_ns)
    if missing := found.why_incomplete(span):
        raise ExportFailed(f"{missing}; fetch it first (`dexorder history`), or export a shorter range")
    snapshot_id, source = await rows.snapshot_id(wanted, span), await rows.source()

    def write() -> Path:
        batches = None if snapshot_id is None else source.at(wanted, span, snapshot_id)
        if batches is None:
            raise ExportFailed(f"{wanted.dataset.table} is still empty, or its snapshot has just expired; try again")
        return target.write(Rows.concat(batches), wanted, Path(folder))

    return await asyncio.to_thread(write)
