"""Part of the async client for the rows of the tables: those of a request, and those that a series has now."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from dexorder.client.connection import Connection
from dexorder.client.ended import Ended, history_error
from dexorder.client.moments import Moment
from dexorder.client.request import check_ticker, read_part
from dexorder.client.traces import read_span
from dexorder.rows.answers import RowSource, Stored, catalog_is_set, is_here
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.relay.v1 import relay_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

T = TypeVar("T")

# What reads rows is imported by the first call that does: pyiceberg takes most of a second of processor time.


class RowCalls:
    """Methods of AsyncClient that read rows; it has the connection and the catalog, if one was given."""

    _connection: Connection
    _catalog: tuple[str, Mapping[str, str]] | None

    async def read(self, ended: Ended, *, partial: bool = False) -> Rows:
        """Return the rows of a request that ended OK, at the announced snapshot; raises the errors of ``history``.

        If that snapshot has expired, the current one is read, provided that it has as many rows; ``on_note`` is called.
        With ``partial``, the rows that another status left in the range are returned as well.
        """
        with read_span():
            source = await self._source(ended, partial)
            return await asyncio.to_thread(source.table, ended.record, self._connection.on_note)

    async def read_batches(self, ended: Ended, *, partial: bool = False) -> AsyncGenerator[Rows, None]:
        """Yield the same rows in the same order, in batches, in bounded memory.

        Their number is verified before the first batch. There is at least one batch, which may be empty.
        """
        source = await self._source(ended, partial)
        async for batch in in_thread(source.batches(ended.record, self._connection.on_note)):
            yield batch

    async def read_stored(
        self, ticker: str, period: str | int, since: Moment | None = None, until: Moment | None = None
    ) -> Rows:
        """Return the rows of a series that the table has now, all of them or between two times; nothing is fetched.

        The rows are ascending by ``open_time``; ``coverage`` says whether the range is complete.
        """
        from dexorder.rows.table import Rows

        found = await self.find_stored(ticker, period, since, until)
        return await asyncio.to_thread(lambda: Rows.concat(found.batches()))

    async def find_stored(
        self, ticker: str, period: str | int, since: Moment | None = None, until: Moment | None = None
    ) -> Stored:
        """Count these rows at the current snapshot. The value's ``batches`` reads them, and blocks."""
        check_ticker(ticker)
        seconds, start_ns, end_ns = read_part(period, since, until)
        span = TimeRange(start_ns or 0, MAX_TIME_NS if end_ns is None else end_ns)
        source = await self._rows()
        return await asyncio.to_thread(source.stored, Series(ticker, seconds), span)

    async def _source(self, ended: Ended, partial: bool) -> RowSource:
        if ended.record.status is not RequestStatus.OK and not partial:
            raise history_error(ended.record)
        return await self._rows()

    async def _rows(self) -> RowSource:
        """Return where rows are read: the catalog if it is set here or is a file of this machine, else the relay."""
        if self._catalog is None and not catalog_is_set(os.environ):
            answer = await self._connection.call(self._connection.stub.GetCatalog, pb.GetCatalogRequest())
            if not is_here(answer.properties) or find_spec("pyiceberg") is None:
                from dexorder.client.relayed import RelaySource

                return RelaySource(self._connection.address)
        from dexorder.rows.catalog_source import CatalogSource

        return CatalogSource(*(self._catalog or await self.catalog()))

    async def catalog(self) -> tuple[str, dict[str, str]]:
        """Return the name and pyiceberg properties of the catalog, overridden by the environment."""
        answer = await self._connection.call(self._connection.stub.GetCatalog, pb.GetCatalogRequest())
        from dexorder.rows import reading

        return reading.catalog_properties(answer.name, dict(answer.properties))


async def in_thread(values: Iterator[T]) -> AsyncIterator[T]:
    """Yield the values of an iterator that blocks; each is computed in a thread."""
    while (value := await asyncio.to_thread(next, values, None)) is not None:
        yield value
