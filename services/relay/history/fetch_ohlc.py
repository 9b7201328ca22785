"""The older form of a request: wait for its end, then give its rows as pages read from the table, in time order.

Rows are read window by window, so that an answer of any length takes the memory of one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from services.common.kafka.page_record import encode_candle
from services.common.lake.catalog import OHLC_TABLE
from services.common.model.errors import InvalidRequest, Unavailable
from services.common.model.history import FinalStatus, Outcome, RequestStatus, Submission
from services.common.model.page import MAX_PAGE_CANDLES, Candle
from services.common.model.periods import split_by_periods
from services.common.model.time_range import TimeRange
from services.common.rpc.identity import Caller
from services.relay.history.engine import Engine
from services.relay.history.table_reader import TableReader

WINDOW_PERIODS = 20 * MAX_PAGE_CANDLES
WINDOWS_AT_ONCE = 2
MOST_CANDLE_BYTES = 76
MOST_ENVELOPE_BYTES = 1_100
"""A response without candles: its request_id of up to 256 characters, numbers."""


@dataclass(frozen=True, slots=True)
class AnswerPage:
    """One page.

    Attributes:
        candles: Serialized OHLCV messages, ascending over all pages.
        total: Rows of the whole answer; None where it has failed.
    """

    status: FinalStatus
    candles: tuple[bytes, ...] = ()
    total: int | None = None
    error: str = ""
    last: bool = True


class Answers:
    """Reads answers; at most ``WINDOWS_AT_ONCE`` at a time, so that they leave threads to the decider."""

    def __init__(self, engine: Engine, reader: TableReader, *, most_bytes: int) -> None:
        self._engine = engine
        self._reader = reader
        self._page_candles = candles_in_page(most_bytes)
        self._turns = asyncio.Semaphore(WINDOWS_AT_ONCE)

    async def pages(self, submission: Submission, caller: Caller | None = None) -> AsyncGenerator[AnswerPage, None]:
        """Submit the request, unless it is known; then its rows. Closing it leaves the request as it is.

        Raises:
            Unavailable: The relay stops, or the table can't be read now; ask again under the same id.
            Exhausted: A quota of the caller; nothing is stored.
        """
        try:
            await self._engine.submitter.submit(submission, caller)
        except InvalidRequest as error:
            yield AnswerPage(FinalStatus.ERROR, error=str(error))
            return
        end = await self._engine.queries.ended(submission)
        if end.status is RequestStatus.OK:
            async for page in self._rows(submission, end):
                yield page
        elif end.status is RequestStatus.NOT_FOUND:
            yield AnswerPage(FinalStatus.NOT_FOUND, total=0)
        else:
            yield AnswerPage(FinalStatus.ERROR, error=end.error)

    async def _rows(self, submission: Submission, end: Outcome) -> AsyncGenerator[AnswerPage, None]:
        span = TimeRange(submission.start_ns, end.end_ns)
        try:
            total, snapshot_id = await asyncio.to_thread(self._look, submission, span, end)
            if total < end.row_count:
                error = f"{OHLC_TABLE} has {total} of the request's {end.row_count} rows now; submit it under a new id"
                yield AnswerPage(FinalStatus.ERROR, error=error)
                return
            read, waiting = 0, list[bytes]()
            for window in split_by_periods(span, submission.period_seconds, WINDOW_PERIODS):
                if read == total:
                    break
                async with self._turns:
                    found = await asyncio.to_thread(self._read, submission, window, snapshot_id, total - read)
                read += len(found)
                waiting += found
                while len(waiting) > self._page_candles:  # what fills one page exactly may be the last one
                    page, waiting = waiting[: self._page_candles], waiting[self._page_candles :]
                    yield AnswerPage(FinalStatus.OK, tuple(page), total, last=False)
        except Exception as error:  # catalog, object store, file system: each has errors of its own
            raise Unavailable(f"{OHLC_TABLE} can't be read: {error}") from error
        if read != total:
            raise Unavailable(f"{OHLC_TABLE} gave {read} of {total} rows at snapshot {snapshot_id}")
        yield AnswerPage(FinalStatus.OK, tuple(waiting), total)

    def _look(self, submission: Submission, span: TimeRange, end: Outcome) -> tuple[int, int | None]:
        """Rows of the answer, and the snapshot to read them at: where they were counted, else the current one."""
        snapshot_id = self._reader.kept(end.snapshot_id)
        if snapshot_id == end.snapshot_id:
            return end.row_count, snapshot_id
        count = self._reader.count(submission.series, span, snapshot_id, submission.limit)
        return count.rows, count.snapshot_id

    def _read(self, submission: Submission, window: TimeRange, snapshot_id: int | None, most: int) -> list[bytes]:
        return encode(self._reader.candles(submission.series, window, snapshot_id).slice(0, most))


def candles_in_page(most_bytes: int) -> int:
    """How many candles fit into a message, whatever their values."""
    return max(1, min(MAX_PAGE_CANDLES, (most_bytes - MOST_ENVELOPE_BYTES) // MOST_CANDLE_BYTES))


def encode(rows: pa.Table) -> list[bytes]:
    """Rows of ``trading.ohlc`` as serialized OHLCV messages, in the same order."""
    opens = pc.cast(pc.cast(rows["open_time"], pa.timestamp("ns", tz="UTC")), pa.int64())
    names = ("open", "high", "low", "close", "volume", "quote_volume", "trades")
    columns = [opens.to_pylist(), *(rows[name].to_pylist() for name in names)]
    return [encode_candle(Candle(*values)) for values in zip(*columns, strict=True)]
