"""Rows that the relay streams as Arrow, for a machine without access to the catalog. Blocking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from operator import lt

import grpc
from arro3.io import read_ipc_stream

from dexorder import errors
from dexorder.client.failures import answer_error, lacks, version_error
from dexorder.rows.answers import OnNote, answered_span, check_rows, note_expired, without_bookkeeping
from dexorder.rows.columns import int64_values
from dexorder.rows.table import Rows
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import Code
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import Failure, answered, code_of, details_of, is_failure
from dexorder_common.rpc.common_messages import encode_series
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

    def _open(self, series: Series, span: TimeRange, snapshot_id: int | None) -> _RowStream:
        request = StreamRowsRequest(
            series=encode_series(series),
            start_ns=span.start_ns or None,  # the ends of time are on no grid
            end_ns=None if span.end_ns == MAX_TIME_NS else span.end_ns,
            snapshot_id=snapshot_id,
        )
        return _RowStream(self.address, request)


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
        with closing(self.source._open(self.series, self.span, self.snapshot_id)) as answer:
            yield from _ascending(answer.batches(answer.row_count))


class _RowStream:
    """Open stream of the relay with a known schema and number of rows."""

    def __init__(self, address: str, request: StreamRowsRequest) -> None:
        self._address = address
        self._channel = open_sync_channel(address)
        self._call = BlockingRelayStubs(self._channel).rows.StreamRows(request)
        try:
            first = self._next()
            self._schema = first.data
            self.snapshot_id = first.snapshot_id if first.HasField("snapshot_id") else None
            self.row_count = self._next().row_count
        except BaseException:
            self.close()
            raise

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield the first ``count`` rows; at least one batch, which may be empty. CatalogError if there are fewer."""
        left = count
        while left:
            batch = Rows(read_ipc_stream(self._schema + self._next().data))
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= min(batch.num_rows, left)
        if not count:
            yield Rows(read_ipc_stream(self._schema))

    def close(self) -> None:
        """End the call."""
        self._call.cancel()
        self._channel.close()

    def _next(self) -> StreamRowsResponse:
        try:
            message: StreamRowsResponse = next(self._call)
        except StopIteration:
            raise errors.CatalogError(f"the relay at {self._address} ended the rows too early; read again") from None
        except grpc.RpcError as error:
            if is_failure(error, Failure.UNANSWERED) and not answered(error):
                raise errors.RelayUnreachable(
                    f"the connection to the relay at {self._address} broke; read again"
                ) from None
            raise self._answer_error(code_of(error), details_of(error)) from None
        return message

    def _answer_error(self, code: Code, details: str) -> errors.DexorderError:
        """Return the error for an answer that is a failure, as that of a connection."""
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
