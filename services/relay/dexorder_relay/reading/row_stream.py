"""Rows of the tables as messages of an Arrow IPC stream, for clients without access to the catalog.

A table is read window by window, so that an answer of any length needs the memory of one window, and all streams
together the memory of a few (`HeldWindows`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from dexorder_common.lake.tables import OHLC
from dexorder_common.model import datasets
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.relay.v1.rows_service_pb2 import StreamRowsResponse
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.reading.held_windows import HeldWindow, HeldWindows
from dexorder_relay.reading.rows import CandleRows, MarketRows
from dexorder_relay.reading.table_reader import TableReader

WINDOW_PERIODS = 50_000
WINDOW_ROWS = 50_000
BATCH_ROWS = 5_000
"""Rows of a message: at most 2 MB with the longest ticker, half of the limit of gRPC's clients."""
Messages = AsyncGenerator[StreamRowsResponse, None]
R = TypeVar("R", CandleRows, MarketRows)
T = TypeVar("T")


class RowStreams:
    """Reads windows in the turns of `Context.table_reads`."""

    def __init__(self, reader: TableReader, turns: FairSemaphore) -> None:
        self._reader = reader
        self._turns = turns
        self._held = HeldWindows()

    def messages(self, series: Series, span: TimeRange, snapshot_id: int | None) -> Messages:
        """Yield the schema, the number of rows and the rows, all at one snapshot.

        Of ticker snapshots, these are the last one of each ticker that was received in the range.

        Raises:
            NotFound: The table, of another dataset than candles, does not exist yet.
            Unavailable: The table can't be read now.
        """
        if series.dataset is datasets.CANDLES:
            return self._stream(partial(self._reader.candles, snapshot_id), partial(candles, series, span), OHLC.name)
        plan = partial(last_snapshots if series.dataset is datasets.TICKERS else points, series, span)
        return self._stream(partial(self._reader.market, series.dataset, snapshot_id), plan, series.dataset.table)

    async def _stream(self, open_table: Callable[[], R], plan: Callable[[R], Plan], table: str) -> Messages:
        rows = await self._turns.in_thread(open_table)
        yield StreamRowsResponse(data=rows.schema.serialize().to_pybytes(), snapshot_id=rows.snapshot_id)
        planned = await self._turns.in_thread(partial(plan, rows))
        yield StreamRowsResponse(row_count=planned.rows)
        sent, held = 0, self._held
        with held.stream() as window:
            for read in planned.parts:
                held.hold(window, await self._turns.in_thread(partial(_whole, read)))
                at, end = 0, window.table.num_rows if window.table is not None else 0
                while at < end:
                    if window.table is None:  # dropped while the client did not read
                        held.hold(window, await self._turns.in_thread(partial(_whole, read)))
                    data, count = self._message(window, at)
                    at += count
                    yield StreamRowsResponse(data=data)
                sent += end
        if sent != planned.rows:
            raise Unavailable(f"{table} gave {sent} of {planned.rows} rows at snapshot {rows.snapshot_id}")

    def _message(self, window: HeldWindow, at: int) -> tuple[bytes, int]:
        """Return the next message of a window, and its number of rows."""
        assert window.table is not None
        part = window.table.slice(at, self._held.message_rows(window.table, BATCH_ROWS))
        self._held.used(window)
        (batch,) = part.to_batches()
        return batch.serialize().to_pybytes(), part.num_rows


def _whole(read: Callable[[], pa.Table]) -> pa.Table:
    """Read a window, in one chunk."""
    return read().combine_chunks()


class Plan(NamedTuple):
    """Number of rows of an answer, and the functions that read them, a part each."""

    rows: int
    parts: Iterable[Callable[[], pa.Table]]


def candles(series: Series, span: TimeRange, rows: CandleRows) -> Plan:
    """Return the plan of a series' candles."""
    found = rows.summary(series, span)
    if not found.rows:
        return Plan(0, ())
    whole = TimeRange(found.first_ns, next_open(found.last_ns, series.period_seconds))
    windows = split_by_periods(whole, series.period_seconds, WINDOW_PERIODS)
    return Plan(found.rows, (partial(rows.whole, series, window) for window in windows))


def points(series: Series, span: TimeRange, rows: MarketRows) -> Plan:
    """Return the plan of the rows of a series without periods."""
    counts = rows.count(series, span)
    windows = filter(None, (window.intersect(span) for window in counts.windows(WINDOW_ROWS)))
    return Plan(counts.total, (partial(rows.rows, series, window) for window in windows))


def last_snapshots(series: Series, span: TimeRange, rows: MarketRows) -> Plan:
    """Return the plan of an exchange's last snapshots, which are read to be counted."""
    found = rows.last_snapshots(series.exchange, span)
    return Plan(found.num_rows, [lambda: found])
