"""Rows of ``trading.ohlc`` as messages of an Arrow IPC stream, for clients without access to the catalog.

The table is read window by window, so that an answer of any length needs the memory of one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dexorder.services.common.lake.tables import OHLC
from dexorder.services.common.model.errors import Unavailable
from dexorder.services.common.model.instrument import Series
from dexorder.services.common.model.periods import next_open, split_by_periods
from dexorder.services.common.model.time_range import TimeRange
from dexorder.services.gen.dexorder.relay.v1.rows_pb2 import ReadRowsResponse
from dexorder.services.relay.history.table_reader import TableReader

WINDOW_PERIODS = 50_000
BATCH_ROWS = 5_000
"""Rows of a message: at most 2 MB, half of what gRPC's clients accept, whatever the ticker's length."""
PARALLEL_WINDOWS = 2


class RowStreams:
    """Reads at most ``PARALLEL_WINDOWS`` windows at a time, so that threads are left for the outcomes of requests."""

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader
        self._windows = asyncio.Semaphore(PARALLEL_WINDOWS)

    async def messages(
        self, series: Series, span: TimeRange, snapshot_id: int | None
    ) -> AsyncGenerator[ReadRowsResponse, None]:
        """Yield the schema, the number of rows and the rows, all at one snapshot.

        Raises:
            Unavailable: The table can't be read now.
        """
        rows = await asyncio.to_thread(self._reader.at, snapshot_id)
        schema = rows.schema
        yield ReadRowsResponse(data=schema.serialize().to_pybytes(), snapshot_id=rows.snapshot_id)
        async with self._windows:
            found = await asyncio.to_thread(rows.summary, series, span)
        yield ReadRowsResponse(row_count=found.count)
        if not found.count:
            return
        sent, whole = 0, TimeRange(found.first_ns, next_open(found.last_ns, series.period_seconds))
        for window in split_by_periods(whole, series.period_seconds, WINDOW_PERIODS):
            async with self._windows:
                part = await asyncio.to_thread(rows.whole, series, window)
            sent += part.num_rows
            for batch in part.cast(schema).combine_chunks().to_batches(BATCH_ROWS):
                yield ReadRowsResponse(data=batch.serialize().to_pybytes())
        if sent != found.count:
            raise Unavailable(f"{OHLC.name} gave {sent} of {found.count} rows at snapshot {rows.snapshot_id}")
