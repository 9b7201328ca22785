"""``client.export``: the rows of a complete range in a file of a backtesting program."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dexorder.client.inputs import check_ticker, covered_dataset, read_exact_range, read_range
from dexorder.client.moments import Moment
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows
from dexorder.errors import ExportFailed
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.time_range import subtract


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

    check_ticker(ticker)
    dataset = covered_dataset(period)
    seconds, span = read_range(period, since, until) if dataset.has_periods else (0, read_exact_range(since, until))
    wanted = Series(ticker, seconds, dataset)
    target = export_format(to, wanted)
    found = await series.coverage(ticker, period, span.start_ns, span.end_ns)
    if missing := subtract([span], [each.span for each in found.known]):
        name = PERIODS.get(seconds, dataset.name)
        more = f" and {len(missing) - 3:,} more ranges" if len(missing) > 3 else ""
        raise ExportFailed(
            f"{ticker} {name} is not complete: nothing is known of {', '.join(map(str, missing[:3]))}{more}; fetch it "
            "first (`dexorder history`), or export a shorter range"
        )
    snapshot_id, source = await rows.snapshot_id(wanted, span), await rows.source()

    def write() -> Path:
        batches = None if snapshot_id is None else source.at(wanted, span, snapshot_id)
        if batches is None:
            raise ExportFailed(f"{dataset.table} has no rows yet, or its snapshot has just expired; try again")
        return target.write(Rows.concat(batches), wanted, Path(folder))

    return await asyncio.to_thread(write)
