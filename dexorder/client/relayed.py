"""Rows that the relay streams as Arrow, for a machine without access to the catalog. Blocking."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from operator import lt

import grpc
from arro3.io import read_ipc_stream

from dexorder import errors
from dexorder.client.connection import PATIENCE_SECONDS, REOPEN_SECONDS
from dexorder.client.failures import answer_error, lacks, version_error
from dexorder.rows.answers import OnNote, answered_span, check_rows, note_expired, without_bookkeeping
from dexorder.rows.columns import int64_values
from dexorder.rows.table import Rows
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import Code
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import Failure, answered, code_of, details_of, is_failure
from dexorder_common.rpc.common_messages import decode_series, encode_series
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_common.rpc.server_info import decode_server_info
from dexorder_protos.dexorder.relay.v1.rows_service_pb2 import StreamRowsRequest, StreamRowsResponse
from dexorder_protos.dexorder.server.v1.server_info_service_pb2 import GetServerInfoRequest
from dexorder_protos.dexorder.server.v1.server_info_service_pb2_grpc import ServerInfoServiceStub

_INFO_SECONDS = 10.0
"""Timeout of the question for the relay's version."""


@dataclass(frozen=True)
class RelaySource:
    """Source of rows: a relay."""

    address: str

    def table(self, record: RequestRecord, on_note: OnNote) -> Rows:
        """Return the rows of a request that has ended, ascending; HistoryMismatch if their number is wrong."""
        return Rows.concat(self.batches(record, on_note))

    def batches(self, record: RequestRecord, on_note: OnNote) -> Iterator[Rows]:
        """Yield the same rows in bounded memory; at least one batch, which may be empty.

        Their number is verified before the first batch, and that no time comes twice as they come.
        """
        series, limit = record.request.series, record.limit
        with closing(self._open(series, answered_span(record), record.snapshot_id)) as answer:
            expired = record.snapshot_id is not None and answer.snapshot_id != record.snapshot_id
            count = answer.row_count if limit is None else min(answer.row_count, limit)
            check_rows(record, count, count, answer.snapshot_id, expired=expired)
            if expired:
                note_expired(record, answer.snapshot_id, on_note)
            yield from _ascending(answer.batches(count))

    def points(self, series: Series, span: TimeRange) -> Rows:
        """Return the stored rows of a dataset without periods in a range, ascending; CatalogError without a table."""
        return self._market(series, span)

    def udf_rows(self, name: str, span: TimeRange) -> Rows:
        """Raise CatalogError: the relay streams no rows of UDFs."""
        raise errors.CatalogError(
            f"trading.udf_{name} is read from the catalog, which this machine does not reach; set DEXORDER_CATALOG_URI"
        )

    def snapshots(self, venue: str, span: TimeRange) -> Rows:
        """Return the last snapshot of each market of an exchange that was received in a range, by ticker.

        CatalogError without a table of them.
        """
        return self._market(Series.whole_exchange(venue, TICKERS), span)

    def _market(self, series: Series, span: TimeRange) -> Rows:
        try:
            with closing(self._open(series, span, None)) as answer:
                return without_bookkeeping(Rows.concat(answer.batches(answer.row_count)))
        except errors.RequestUnknown as error:
            raise errors.CatalogError(str(error)) from None

    def stored(self, series: Series, span: TimeRange) -> RelayedRows:
        """Count the rows of a series that open in a range, at the current snapshot."""
        with closing(self._open(series, span, None)) as answer:
            return RelayedRows(self, series, span, answer.row_count, answer.snapshot_id)

    def snapshot_id(self, series: Series, span: TimeRange) -> int | None:
        """Return the current snapshot of the table of a series."""
        first_ns = next_open(span.start_ns, series.period_seconds) if series.dataset.has_periods else span.start_ns + 1
        with closing(self._open(series, TimeRange(span.start_ns, first_ns), None)) as answer:
            return answer.snapshot_id

    def at(self, series: Series, span: TimeRange, snapshot_id: int) -> Iterator[Rows] | None:
        """Return the rows of a series at a snapshot, ascending, in batches; None if the snapshot is not kept."""
        answer = self._open(series, span, snapshot_id)
        if answer.snapshot_id != snapshot_id:
            answer.close()
            return None
        return _closed_after(answer, answer.batches(answer.row_count))

    def _open(
        self, series: Series, span: TimeRange, snapshot_id: int | None, *, has_answered: bool = False
    ) -> _RowStream:
        request = StreamRowsRequest(
            series=encode_series(series),
            start_ns=span.start_ns or None,  # the ends of time are on no grid
            end_ns=None if span.end_ns == MAX_TIME_NS else span.end_ns,
            snapshot_id=snapshot_id,
        )
        return _RowStream(self.address, request, has_answered=has_answered)


@dataclass(frozen=True)
class RelayedRows:
    """The rows of a series in a range that the table has now, whether or not a request covers them."""

    source: RelaySource
    series: Series
    span: TimeRange
    row_count: int
    snapshot_id: int | None

    def batches(self) -> Iterator[Rows]:
        """Yield the rows, ascending by ``open_time``, in bounded memory; at least one batch, which may be empty."""
        # the relay has counted them, so a stream that a proxy resets before its first message is opened again
        with closing(self.source._open(self.series, self.span, self.snapshot_id, has_answered=True)) as answer:
            yield from _ascending(answer.batches(answer.row_count))


class _Broken(Exception):
    """The connection broke during the rows."""


@dataclass
class _Place:
    """Where the rows continue after a break: the time of the last row, because rows of one snapshot have one order.

    Attributes:
        column: The time by which the rows ascend; None if they do by another column, so that all are read again.
        time_us: Time of the last row; None before the first.
        known: Rows that have come and that a stream from this time has again.
    """

    column: str | None
    time_us: int | None = None
    known: int = 0

    def move(self, batch: Rows) -> None:
        """Move after the rows of a batch."""
        if self.column is None:
            self.known += batch.num_rows
            return
        times_us = int64_values(batch.column(self.column))
        before, self.time_us = self.time_us, times_us[-1]
        of_last = bisect_right(times_us, self.time_us) - bisect_left(times_us, self.time_us)
        self.known = of_last + (self.known if self.time_us == before else 0)


class _RowStream:
    """Open stream of the relay with a known schema and number of rows; one that breaks is continued."""

    def __init__(self, address: str, request: StreamRowsRequest, *, has_answered: bool = False) -> None:
        self._address = address
        self._request = request
        dataset = decode_series(request.series).dataset
        self._place = _Place(None if dataset.whole_exchange else dataset.time_column)
        self._known = 0
        """Rows to skip, of those that come."""
        self._has_answered = has_answered
        self._channel = open_sync_channel(address)
        try:
            self._schema, self.snapshot_id, self.row_count = self._opened(request)
        except BaseException:
            self.close()
            raise

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield the first ``count`` rows; at least one batch, which may be empty. CatalogError if there are fewer."""
        left = count
        while left:
            batch = self._next_batch()
            self._place.move(batch)
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= min(batch.num_rows, left)
        if not count:
            yield Rows(read_ipc_stream(self._schema))

    def close(self) -> None:
        """End the call."""
        self._channel.close()

    def _opened(self, request: StreamRowsRequest, deadline_s: float | None = None) -> tuple[bytes, int | None, int]:
        """Open a stream, again while it breaks; a first one must give an answer at once. Return what `_open` does."""
        while True:
            try:
                return self._open(request)
            except _Broken:
                if not self._has_answered or (deadline_s is not None and time.monotonic() >= deadline_s):
                    raise errors.RelayUnreachable(
                        f"the connection to the relay at {self._address} broke; read again"
                    ) from None
            deadline_s = deadline_s or time.monotonic() + PATIENCE_SECONDS
            time.sleep(REOPEN_SECONDS)

    def _open(self, request: StreamRowsRequest) -> tuple[bytes, int | None, int]:
        """Open a stream; return its schema, snapshot and number of rows."""
        self._call = BlockingRelayStubs(self._channel).rows.StreamRows(request)
        first = self._next()
        return first.data, first.snapshot_id if first.HasField("snapshot_id") else None, self._next().row_count

    def _next_batch(self) -> Rows:
        """Return the next rows, at least one; a stream that breaks is continued for as long as rows come."""
        deadline_s = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                batch = Rows(read_ipc_stream(self._schema + self._next().data))
            except _Broken:
                self._continue(deadline_s)
                continue
            known = min(self._known, batch.num_rows)
            self._known -= known
            if known < batch.num_rows:
                return batch.slice(known) if known else batch

    def _continue(self, deadline_s: float) -> None:
        """Open the stream again at the place after the last row."""
        request = StreamRowsRequest()
        request.CopyFrom(self._request)
        if self.snapshot_id is not None:
            request.snapshot_id = self.snapshot_id
        if self._place.time_us is not None:
            request.start_ns = 1_000 * self._place.time_us
        _, snapshot_id, _ = self._opened(request, deadline_s)
        if snapshot_id != self.snapshot_id:
            raise errors.CatalogError(f"snapshot {self.snapshot_id} expired while it was read; read again")
        self._known = self._place.known

    def _next(self) -> StreamRowsResponse:
        try:
            message: StreamRowsResponse = next(self._call)
        except StopIteration:
            raise errors.CatalogError(f"the relay at {self._address} ended the rows too early; read again") from None
        except grpc.RpcError as error:
            if is_failure(error, Failure.UNANSWERED) and not answered(error):
                raise _Broken from None
            raise self._answer_error(code_of(error), details_of(error)) from None
        self._has_answered = True
        return message

    def _answer_error(self, code: Code, details: str) -> errors.DexorderError:
        """Return the error for an answer that is a failure, like `Connection` does."""
        if lacks(code, details) is None:
            return answer_error(code, details)
        stub = ServerInfoServiceStub(self._channel)
        try:
            info = decode_server_info(stub.GetServerInfo(GetServerInfoRequest(), timeout=_INFO_SECONDS))
        except grpc.RpcError as error:
            if code_of(error) is not Code.UNIMPLEMENTED:
                return answer_error(code, details)
            info = None
        return version_error(code, details, info, self._address)


def _closed_after(answer: _RowStream, batches: Iterator[Rows]) -> Iterator[Rows]:
    with closing(answer):
        yield from batches


def _ascending(batches: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the batches; CatalogError if their times do not ascend."""
    last = -1
    for batch in batches:
        opens = int64_values(batch.column("open_time"))
        if opens:
            if opens[0] <= last or not all(map(lt, opens, islice(opens, 1, None))):
                raise errors.CatalogError("the table has two rows for one time; `dexorder verify --repair` removes one")
            last = opens[-1]
        yield batch
