"""Rows as a client reads them, ``client.rows``: the rows of a request, and the rows that a table has now."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from opentelemetry.trace import Span, SpanKind

from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import check_ticker, read_exact_range, read_moment, read_part, refused
from dexorder.client.moments import Moment
from dexorder.client.requests import Ended, history_error
from dexorder.errors import RequestRefused
from dexorder.rows.answers import catalog_is_set, is_here
from dexorder_common import tracing
from dexorder_common.model.datasets import CANDLES, TRADES
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.model.udf import check_udf_name
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.client.relayed import RelayedRows, RelaySource
    from dexorder.rows.catalog import CatalogSource, StoredRows
    from dexorder.rows.table import Rows

T = TypeVar("T")
READ = f"read {CANDLES.table}"
"""Name of the span of reading rows."""

# What reads rows is imported by the first call that does: pyiceberg takes most of a second of processor time.


class AsyncTableRows:
    """Rows of the tables, for asyncio: read from the catalog if this machine can, else through the relay."""

    def __init__(self, connection: RelayConnection, catalog: tuple[str, Mapping[str, str]] | None) -> None:
        """Read with a catalog's name and pyiceberg properties, if they are given."""
        self._connection = connection
        self._catalog = catalog

    async def read(self, ended: Ended, *, partial: bool = False) -> Rows:
        """Return the rows of a request that ended OK, at the announced snapshot; raises the errors of ``history``.

        If that snapshot has expired, the current one is read, provided that it has as many rows; ``on_note`` is called.
        With ``partial``, the rows that another status left in the range are returned as well.
        """
        with read_span():
            check_ended(ended, partial=partial)
            source = await self.source()
            return await asyncio.to_thread(source.table, ended.record, self._connection.on_note)

    async def batches(self, ended: Ended, *, partial: bool = False) -> AsyncGenerator[Rows, None]:
        """Yield the same rows in the same order, in batches, in bounded memory.

        Their number is verified before the first batch. There is at least one batch, which may be empty.
        """
        check_ended(ended, partial=partial)
        source = await self.source()
        async for batch in in_thread(source.batches(ended.record, self._connection.on_note)):
            yield batch

    async def stored(
        self, ticker: str, period: str | int, since: Moment | None = None, until: Moment | None = None
    ) -> Rows:
        """Return the rows of a series that the table has now, all or between two times, without fetching.

        The rows are ascending by ``open_time``; ``coverage`` says whether the range is complete.
        """
        from dexorder.rows.table import Rows

        found = await self.find(ticker, period, since, until)
        return await asyncio.to_thread(lambda: Rows.concat(found.batches()))

    async def find(
        self, ticker: str, period: str | int, since: Moment | None = None, until: Moment | None = None
    ) -> StoredRows | RelayedRows:
        """Count these rows at the current snapshot. The value's ``batches`` reads them, and blocks."""
        check_ticker(ticker)
        seconds, start_ns, end_ns = read_part(period, since, until)
        span = TimeRange(start_ns or 0, MAX_TIME_NS if end_ns is None else end_ns)
        source = await self.source()
        return await asyncio.to_thread(source.stored, Series(ticker, seconds), span)

    async def trades(self, ticker: str, since: Moment, until: Moment = "now") -> Rows:
        """Return the stored trades of a market between two times, by time and id, each once.

        ``realtime list`` and the coverage of period 0 say up to when they are complete.

        Raises:
            RequestRefused: A value is invalid.
            CatalogError: The catalog or ``trading.ticks`` can't be read, or does not exist.
            TableUnavailable: The relay, through which the trades are read, can't read the table now.
        """
        check_ticker(ticker)
        span = read_exact_range(since, until)
        return await self.points(Series(ticker, dataset=TRADES), span)

    async def points(self, series: Series, span: TimeRange) -> Rows:
        """Return the stored rows of a dataset without periods in a range, ascending; raises as ``trades``."""
        source = await self.source()
        return await asyncio.to_thread(source.points, series, span)

    async def udf(self, name: str, since: Moment | None = None, until: Moment | None = None) -> Rows:
        """Return the rows of a UDF, by ``sequence``: all of them, or the rows between two times.

        Each tag and each field of its output is a separate typed column, null where a row lacks it.

        Raises:
            RequestRefused: A value is invalid.
            CatalogError: The catalog can't be read from here, or lacks the table of this UDF.
        """
        with refused():
            check_udf_name(name)
        now_ns = time.time_ns()
        start_ns = 0 if since is None else read_moment(since, "since", now_ns)
        end_ns = MAX_TIME_NS if until is None else read_moment(until, "until", now_ns)
        if end_ns <= start_ns:
            raise RequestRefused(f"until {until} is not after since {since}")
        span = TimeRange(start_ns, end_ns)
        source = await self.source()
        return await asyncio.to_thread(source.udf_rows, name, span)

    async def snapshots(self, venue: str, since_ns: int) -> Rows:
        """Return the last snapshot of each market of an exchange that was received since a time, by ticker."""
        source = await self.source()
        return await asyncio.to_thread(source.snapshots, venue, TimeRange(since_ns, MAX_TIME_NS))

    async def snapshot_id(self, series: Series, span: TimeRange) -> int | None:
        """Return the current snapshot of the table of a series; None before the first commit."""
        source = await self.source()
        return await asyncio.to_thread(source.snapshot_id, series, span)

    async def source(self) -> CatalogSource | RelaySource:
        """Return where rows are read: the catalog if it is set here or is a file of this machine, else the relay."""
        if self._catalog is None and not catalog_is_set(os.environ):
            answer = await self._connection.call(self._connection.stub.rows.GetCatalog, pb.GetCatalogRequest())
            if not is_here(answer.properties) or find_spec("pyiceberg") is None:
                from dexorder.client.relayed import RelaySource

                return RelaySource(self._connection.address)
        from dexorder.rows.catalog import CatalogSource

        return CatalogSource(*(self._catalog or await self.catalog()))

    async def catalog(self) -> tuple[str, dict[str, str]]:
        """Return the name and pyiceberg properties of the catalog, overridden by the environment."""
        answer = await self._connection.call(self._connection.stub.rows.GetCatalog, pb.GetCatalogRequest())
        from dexorder.rows.catalog import catalog_properties

        return catalog_properties(answer.name, dict(answer.properties))


async def in_thread(values: Iterator[T]) -> AsyncIterator[T]:
    """Yield the values of an iterator that blocks; each is computed in a thread."""
    while (value := await asyncio.to_thread(next, values, None)) is not None:
        yield value


def check_ended(ended: Ended, *, partial: bool) -> None:
    """Raise the error of a request that did not end OK, unless its rows are wanted anyway."""
    if ended.record.status is not RequestStatus.OK and not partial:
        raise history_error(ended.record)


def read_span() -> AbstractContextManager[Span]:
    """Return the span of reading rows."""
    return tracing.span(READ, SpanKind.CLIENT, {"db.system.name": "iceberg", "db.collection.name": CANDLES.table})
