"""Rows of the tables as messages of an Arrow IPC stream, for clients without access to the catalog.

A table is read window by window, so that an answer of any length needs the memory of one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa

from dexorder.services.common.lake.tables import OHLC, TICKS
from dexorder.services.common.model.errors import Unavailable
from dexorder.services.common.model.instrument import ALL_SYMBOLS, Instrument, Series
from dexorder.services.common.model.periods import TRADES_PERIOD, next_open, split_by_periods
from dexorder.services.common.model.time_range import TimeRange
from dexorder.services.gen.dexorder.relay.v1.rows_pb2 import ReadRowsResponse
from dexorder.services.relay.history.market_reader import MarketReader, MarketRows
from dexorder.services.relay.history.table_reader import Rows, TableReader

WINDOW_PERIODS = 50_000
WINDOW_TRADES = 50_000
BATCH_ROWS = 5_000
"""Rows of a message: at most 2 MB, half of what gRPC's clients accept, whatever the ticker's length."""
PARALLEL_WINDOWS = 2
Messages = AsyncGenerator[ReadRowsResponse, None]


class RowStreams:
    """Reads at most ``PARALLEL_WINDOWS`` windows at a time, so that threads are left for the outcomes of requests."""

    def __init__(self, candles: TableReader, markets: MarketReader) -> None:
        self._candles = candles
        self._markets = markets
        self._windows = asyncio.Semaphore(PARALLEL_WINDOWS)

    def messages(self, series: Series, span: TimeRange, snapshot_id: int | None) -> Messages:
        """Yield the schema, the number of rows and the rows, all at one snapshot.

        Period 0 is the trades of a market, or of ``*.EXCHANGE`` the last snapshot of each of its tickers that was
        received in the range.

        Raises:
            NotFound: The table of trades or of snapshots does not exist yet.
            Unavailable: The table can't be read now.
        """
        if series.period_seconds != TRADES_PERIOD:
            return self._of_candles(series, span, snapshot_id)
        instrument = Instrument.parse(series.ticker)
        if instrument.symbol == ALL_SYMBOLS:
            return self._of_snapshots(instrument.venue, span, snapshot_id)
        return self._of_trades(series.ticker, span, snapshot_id)

    async def _of_candles(self, series: Series, span: TimeRange, snapshot_id: int | None) -> Messages:
        rows = await asyncio.to_thread(self._candles.at, snapshot_id)
        yield _head(rows)
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
            for message in _messages(part.cast(rows.schema)):
                yield message
        _check_sent(sent, found.count, OHLC.name, rows.snapshot_id)

    async def _of_trades(self, ticker: str, span: TimeRange, snapshot_id: int | None) -> Messages:
        rows = await asyncio.to_thread(self._markets.trades, snapshot_id)
        yield _head(rows)
        async with self._windows:
            counts = await asyncio.to_thread(rows.count_trades, ticker, span)
        yield ReadRowsResponse(row_count=counts.total)
        sent = 0
        for window in counts.windows(WINDOW_TRADES):
            if (wanted := window.intersect(span)) is None:
                continue
            async with self._windows:
                part = await asyncio.to_thread(rows.trades, ticker, wanted)
            sent += part.num_rows
            for message in _messages(part):
                yield message
        _check_sent(sent, counts.total, TICKS.name, rows.snapshot_id)

    async def _of_snapshots(self, venue: str, span: TimeRange, snapshot_id: int | None) -> Messages:
        rows = await asyncio.to_thread(self._markets.tickers, snapshot_id)
        yield _head(rows)
        async with self._windows:
            found = await asyncio.to_thread(rows.last_snapshots, venue, span)
        yield ReadRowsResponse(row_count=found.num_rows)
        for message in _messages(found):
            yield message


def _head(rows: Rows | MarketRows) -> ReadRowsResponse:
    return ReadRowsResponse(data=rows.schema.serialize().to_pybytes(), snapshot_id=rows.snapshot_id)


def _messages(part: pa.Table) -> Iterator[ReadRowsResponse]:
    for batch in part.combine_chunks().to_batches(BATCH_ROWS):
        yield ReadRowsResponse(data=batch.serialize().to_pybytes())


def _check_sent(sent: int, count: int, table: str, snapshot_id: int | None) -> None:
    if sent != count:
        raise Unavailable(f"{table} gave {sent} of {count} rows at snapshot {snapshot_id}")
