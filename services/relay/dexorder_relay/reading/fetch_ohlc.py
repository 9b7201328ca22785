"""Older form of a request, ``StreamOhlc``: waits for the end, then reads the rows from the table page by page.

Rows are read window by window, so that an answer of any length needs the memory of one window.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.kafka.page_record import encode_candle
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.model.history import HistoryRequest, Outcome, RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle
from dexorder_common.model.periods import split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.history_messages import MAX_UINT32
from dexorder_common.rpc.identity import Caller
from dexorder_protos.dexorder.ingest.v1.ingest_pb2 import Response
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.reading.rows import CANDLE_COLUMNS, CandleRows
from dexorder_relay.reading.table_reader import TableReader, compare_rows
from dexorder_relay.state.request import describe_wrong

Submit: TypeAlias = Callable[[HistoryRequest, Caller | None], Awaitable[bool]]
T = TypeVar("T")
AwaitOutcome: TypeAlias = Callable[[HistoryRequest], Awaitable[Outcome]]
WINDOW_PERIODS = 20 * MAX_PAGE_CANDLES
MAX_CANDLE_BYTES = 76
MAX_ENVELOPE_BYTES = 1_100
"""A response without candles: its request_id of up to 256 characters, numbers."""


class OhlcAnswers:
    """Reads answers in the turns of `Context.table_reads`."""

    def __init__(
        self, submit: Submit, outcome: AwaitOutcome, reader: TableReader, turns: FairSemaphore, *, max_bytes: int
    ) -> None:
        """Return pages of at most ``max_bytes`` as a message."""
        self._submit = submit
        self._outcome = outcome
        self._reader = reader
        self._page_candles = candles_in_page(max_bytes)
        self._turns = turns

    async def pages(self, request: HistoryRequest, caller: Caller | None = None) -> AsyncGenerator[Response, None]:
        """Submit the request, unless it is known, and yield its rows. Closing the generator does not affect it.

        Raises:
            Unavailable: The relay is stopping, or the table cannot be read now; the caller may repeat the request.
            Exhausted: A quota of the caller is used up; the request is not stored.
        """
        try:
            await self._submit(request, caller)
        except InvalidRequest as error:
            yield _failed(request, str(error))
            return
        end = await self._outcome(request)
        if end.status is RequestStatus.OK:
            async for page in self._rows(request, end):
                yield page
        elif end.status is RequestStatus.NOT_FOUND:
            yield Response(request_id=request.request_id, status=Response.NOT_FOUND, total_records=0, is_final=True)
        else:
            yield _failed(request, end.error)

    async def _rows(self, request: HistoryRequest, end: Outcome) -> AsyncGenerator[Response, None]:
        span = TimeRange(request.start_ns, end.end_ns)
        rows = await self._turns.in_thread(lambda: self._reader.candles(end.snapshot_id))
        total = end.row_count
        if rows.snapshot_id != end.snapshot_id:  # that one has expired
            compare = partial(compare_rows, rows, request.series, span, [], [], request.limit)
            now = (await self._turns.in_thread(compare)).found
            total = now.rows if request.limit is None else min(now.rows, request.limit)
            error = describe_wrong(now, request.series)
            if total < end.row_count:
                error = f"{OHLC.name} has {total} of the request's {end.row_count} rows now; submit it under a new id"
            if error:
                yield _failed(request, error)
                return
        make_page = partial(Response, request_id=request.request_id, total_records=min(total, MAX_UINT32))
        sent, pending = 0, list[bytes]()
        for window in split_by_periods(span, request.period_seconds, WINDOW_PERIODS):
            if sent == total:
                break
            found = await self._turns.in_thread(partial(_encoded, rows, request.series, window, total - sent))
            sent += len(found)
            pending += found
            while len(pending) > self._page_candles:  # candles that fill one page exactly may be the last page
                page, pending = pending[: self._page_candles], pending[self._page_candles :]
                yield make_page(data=page)
        if sent != total:
            raise Unavailable(f"{OHLC.name} gave {sent} of {total} rows at snapshot {rows.snapshot_id}")
        yield make_page(data=pending, is_final=True)


def _encoded(rows: CandleRows, series: Series, window: TimeRange, limit: int) -> list[bytes]:
    """Read the first rows of a window, and encode them."""
    return encode_rows(rows.candles(series, window).slice(0, limit))


def _failed(request: HistoryRequest, error: str) -> Response:
    return Response(request_id=request.request_id, status=Response.ERROR, error_message=error, is_final=True)


def candles_in_page(max_bytes: int) -> int:
    """Return the number of candles with the longest values that fit into a message."""
    return max(1, min(MAX_PAGE_CANDLES, (max_bytes - MAX_ENVELOPE_BYTES) // MAX_CANDLE_BYTES))


def encode_rows(rows: pa.Table) -> list[bytes]:
    """Return rows of ``trading.ohlc`` as serialized OHLCV messages, in the same order."""
    opens = pc.cast(pc.cast(rows["open_time"], pa.timestamp("ns", tz="UTC")), pa.int64())
    columns = [opens.to_pylist(), *(rows[name].to_pylist() for name in CANDLE_COLUMNS[1:])]
    return [encode_candle(Candle(*values)) for values in zip(*columns, strict=True)]
