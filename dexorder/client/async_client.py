"""Async client: parts that share one connection, and methods that forward to them.

``history`` takes three steps, submit -> wait -> read: ``client.requests`` has the first two, ``client.rows`` the third.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from dexorder import errors
from dexorder.client import connection
from dexorder.client.connection import RelayConnection, relay_address
from dexorder.client.inputs import make_request
from dexorder.client.many import PARALLEL, Batches, fetch_many
from dexorder.client.moments import Moment
from dexorder.client.notebook import ProgressView, is_notebook
from dexorder.client.points import AsyncPoints
from dexorder.client.realtime import AsyncRealtime
from dexorder.client.receipts import AsyncReceipts
from dexorder.client.requests import AsyncRequests, Ended, OnProgress, history_span, new_request_id
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows, check_ended
from dexorder.client.triggers import AsyncTriggers
from dexorder.client.udfs import AsyncUdfs
from dexorder_common.model import datasets
from dexorder_common.model.history import HistoryRequest, Progress
from dexorder_common.model.instrument import InstrumentList
from dexorder_common.model.server_info import ServerInfo
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.history_messages import decode_instruments
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

CLOCK_MARGIN_NS = 60 * SECOND_NS
"""Largest difference between the clocks of relay and ingestor with which no snapshot is missed."""
A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


def forwarded(
    part: Callable[[AsyncClient], A], method: Callable[Concatenate[A, P], T]
) -> Callable[Concatenate[AsyncClient, P], T]:
    """Return a method of the client that calls a method of one of its parts."""

    @functools.wraps(method)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(part(self), *args, **kwargs)

    return call


class AsyncClient:
    """Connection to one relay. Use it as an async context manager, in the event loop that created it.

    Attributes:
        requests: Submit, follow, list and cancel requests.
        rows: Read the rows of requests and of tables.
        series: Coverage of the series, and its comparison with the tables.
        realtime: Subscriptions, and live trades and candles.
        receipts: Which rows a program has used, and why each hole is a hole.
        triggers: Conditions and patterns that the pipeline evaluates on live data.
        udfs: Users' functions on the stream.
    """

    def __init__(
        self,
        relay: str | None = None,
        catalog: tuple[str, Mapping[str, str]] | None = None,
        *,
        patience_seconds: float | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """Create a client; it connects at the first call.

        Args:
            relay: host:port; default ``DEXORDER_RELAY``, else 127.0.0.1:50051.
            catalog: Name and pyiceberg properties; default the ones that the relay announces, overridden by
                ``DEXORDER_CATALOG_<NAME>`` in the environment. If neither is given and the announced catalog is not a
                file of this machine, the tables are read through the relay.
            patience_seconds: Longest time without an answer of the relay before RelayUnreachable is raised; default
                ``DEXORDER_PATIENCE_SECONDS``, else 30 for a relay that has answered before, while a first call fails at
                once if the address refuses connections or is not a relay's.
            on_note: Called with a sentence on an event that is not an error: the relay can't be reached and the call is
                retried, or a snapshot has expired and a later one was read.
        """
        patience = connection.patience_seconds(patience_seconds)
        self._connection = RelayConnection(relay_address(relay), patience, on_note or (lambda _: None))
        self.requests = AsyncRequests(self._connection)
        self.rows = AsyncTableRows(self._connection, catalog)
        self.series = AsyncSeries(self._connection)
        self.realtime = AsyncRealtime(self._connection)
        self.receipts = AsyncReceipts(self._connection, self.rows, self.series)
        self._funding = AsyncPoints(datasets.FUNDING, self.requests, self.rows)
        self.triggers = AsyncTriggers(self._connection)
        self.udfs = AsyncUdfs(self._connection)

    @property
    def relay(self) -> str:
        """host:port of the relay."""
        return self._connection.address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.relay!r})"

    async def close(self) -> None:
        """Close the connection; requests continue."""
        await self._connection.close()

    def history(
        self,
        ticker: str | Iterable[str],
        period: str | int,
        since: Moment,
        until: Moment = "now",
        *,
        limit: int | None = None,
        request_id: str | None = None,
        client_id: str = "",
        refresh: bool = False,
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        parallel: int = PARALLEL,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Rows]:
        """Return the candles of ``[since, until)``; candles that are not in the table yet are fetched first.

        Args:
            ticker: ``BTC/USDT.BINANCE``; or several; their rows follow each other in this order.
            period: ``1h`` or seconds.
            since: ``now``, ``today``, ``-30d``, ``3 days ago``, ISO text, date, datetime (UTC without a zone), or
                seconds, milliseconds or nanoseconds since the epoch; rounded down to the period's grid.
            until: Like ``since``; exclusive; by default the end of the last closed candle.
            limit: Return only the first candles of each ticker.
            request_id: Repeating a call with the same id repeats the same request; default a new id. Of several
                tickers each request has this id with its number: ``ID-0001``.
            client_id: The caller, for ``list_requests``.
            refresh: Fetch the whole range from the exchange again; candles that have changed are replaced.
            on_progress: Called at each change; of several tickers with the progress of each.
            progress: Show progress below the cell of a notebook; by default if there is one.
            parallel: Largest number of tickers that are fetched or written at a time.
            timeout: Longest wait for the end, in seconds; None waits as long as the relay does.

        Returns:
            Rows of ``trading.ohlc``, ascending by ``open_time``; their number is the one that the relay counted.
            They are Arrow data: see ``Rows`` for pandas, polars and pyarrow.

        Raises:
            RequestRefused: The relay refuses the request; the message names the field and its value.
            HistoryError: The request ended without all rows; ``record.missing`` has the ranges.
            ManyFailed: The history of some tickers is incomplete; ``rows`` has the rows of the others.
            WaitEnded: ``timeout`` passed; the request continues under its id.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        names, is_one = ((ticker,), True) if isinstance(ticker, str) else (tuple(dict.fromkeys(ticker)), False)
        run_id = request_id or new_request_id()
        requests = [
            make_request(
                run_id if is_one else f"{run_id}-{number:04}",
                name,
                period,
                since,
                until,
                limit=limit,
                client_id=client_id,
                refresh=refresh,
            )
            for number, name in enumerate(names, 1)
        ]
        if not requests:
            raise errors.RequestRefused("ticker: no tickers are given; give at least one")
        # Not part of the coroutine: the output of another thread would appear below another cell of a notebook.
        report = _reporter(names, on_progress, progress)
        return self._history(requests, report, is_one=is_one, parallel=parallel, timeout=timeout)

    async def _history(
        self,
        requests: Sequence[HistoryRequest],
        report: Callable[[str, Progress], None],
        *,
        is_one: bool,
        parallel: int,
        timeout: float | None,
    ) -> Rows:
        first = requests[0]
        if is_one:
            with history_span(first):
                ended = await self.requests.fetch(first, on_progress=partial(report, first.ticker), timeout=timeout)
                return await self.rows.read(ended)
        try:
            async with asyncio.timeout(timeout):
                return await fetch_many(self, requests, parallel=parallel, on_progress=report)
        except TimeoutError:
            raise errors.WaitEnded(
                f"not all tickers were done in {timeout:g} s; their requests continue, {first.request_id} and others"
            ) from None

    async def fetch_each(
        self,
        requests: Iterable[HistoryRequest],
        *,
        parallel: int = PARALLEL,
        on_progress: Callable[[HistoryRequest, Progress], None] | None = None,
        on_accepted: Callable[[HistoryRequest], None] = lambda request: None,
    ) -> AsyncGenerator[tuple[HistoryRequest, Ended | errors.DexorderError], None]:
        """Submit many requests, and yield the end of each, or the error that refused it, as they come.

        They are submitted in batches, each of which is one call. A call that breaks is repeated with what is left of
        it; repeating the same requests repeats no work. A refusal by a quota is repeated until there is room.

        Args:
            parallel: Largest number of requests that are not over.
            on_progress: Called at changes of a request; the last call has the progress of its record. Without it the
                relay sends none.
            on_accepted: Called when a request is on the relay's disk.

        Raises:
            RelayUnreachable: The relay did not answer for ``patience_seconds``; requests that it has accepted continue.
        """
        batches = Batches(
            self._connection, self.requests, parallel=parallel, on_progress=on_progress, on_accepted=on_accepted
        )
        async with aclosing(batches.ends(requests)) as ends:
            async for request, result in ends:
                yield request, result

    async def snapshot_tickers(
        self, venue: str, *, request_id: str | None = None, client_id: str = "", timeout: float | None = None
    ) -> Rows:
        """Take a snapshot of all tickers of an exchange, wait until it is stored, and return it, by ticker.

        Raises:
            RequestRefused: The relay refuses the request; the message has its reason.
            HistoryError: The snapshot failed; the message has the exchange's reason.
            WaitEnded: ``timeout`` seconds passed; the request continues.
        """
        ended = await self.requests.snapshot_tickers(venue, request_id=request_id, client_id=client_id, timeout=timeout)
        check_ended(ended, partial=False)
        return await self.rows.snapshots(venue, max(0, ended.record.submitted_ns - CLOCK_MARGIN_NS))

    async def markets(self, venue: str) -> InstrumentList:
        """Return the instruments of a venue from its ingestors' last report; VenueUnknown before the first one."""
        try:
            request = pb.ListInstrumentsRequest(exchange=venue, page_size=1_000)
            pages = self._connection.pages(self._connection.stub.history.ListInstruments, request)
            parts = [decode_instruments(venue, answer) async for answer in pages]
        except errors.RequestUnknown as error:
            raise errors.VenueUnknown(f"venue {venue!r} is unknown: {error}") from None
        return parts[-1]._replace(markets=tuple(each for part in parts for each in part.markets))

    async def export(
        self,
        ticker: str,
        period: str | int,
        since: Moment,
        until: Moment = "now",
        *,
        to: str,
        folder: str | Path,
    ) -> Path:
        """Write the stored rows of a complete range in the format of a backtesting program; return the file.

        Args:
            period: ``trades`` in place of a period stands for these rows.
            to: ``freqtrade``, ``nautilus`` or ``hftbacktest``.
            folder: ``user_data/data/<exchange>`` of freqtrade, the folder of a ParquetDataCatalog, or any other.

        Raises:
            ExportFailed: The range is not complete, or the format can't have its values.
            RequestRefused: A value is invalid, or the format does not take such rows.
        """
        from dexorder.client.exports import export

        return await export(self.rows, self.series, ticker, period, since, until, to=to, folder=folder)

    async def sql(
        self, query: str, since: Moment | None = None, until: Moment | None = None, *, max_rows: int | None = None
    ) -> Rows:
        """Return the answer of a query in DuckDB's SQL over stored rows, read from the catalog or through the relay.

        A table is a series in quotes: ``SELECT max(high) FROM "BTC/USDT.BINANCE 1h"``; ``trades`` and ``funding`` stand
        in place of a period. The query can read only these tables. ``on_note`` is called for a series that is not
        complete.

        Args:
            query: One SELECT.
            since: Read no rows before this time, in all tables of the query.
            until: Read no rows from this time on.
            max_rows: Most rows of all tables; default 5,000,000. They are in memory.

        Raises:
            RequestRefused: The query or a table's name is invalid, or the tables have more rows.
        """
        from dexorder.client.sql import MAX_ROWS, run_sql

        most = MAX_ROWS if max_rows is None else max_rows
        note = self._connection.on_note
        return await run_sql(self.rows, self.series, query, since, until, max_rows=most, on_note=note)

    async def server_info(self) -> ServerInfo:
        """Return part, version, services, datasets, capabilities and limits of the relay.

        Raises:
            NotSupported: The relay is older than this call.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        return await self._connection.server_info()

    fetch = forwarded(lambda self: self.requests, AsyncRequests.fetch)
    submit = forwarded(lambda self: self.requests, AsyncRequests.submit)
    wait = forwarded(lambda self: self.requests, AsyncRequests.wait)
    get_request = forwarded(lambda self: self.requests, AsyncRequests.get)
    list_requests = forwarded(lambda self: self.requests, AsyncRequests.list)
    cancel = forwarded(lambda self: self.requests, AsyncRequests.cancel)
    notifications = forwarded(lambda self: self.requests, AsyncRequests.notifications)
    read = forwarded(lambda self: self.rows, AsyncTableRows.read)
    read_batches = forwarded(lambda self: self.rows, AsyncTableRows.batches)
    read_stored = forwarded(lambda self: self.rows, AsyncTableRows.stored)
    find_stored = forwarded(lambda self: self.rows, AsyncTableRows.find)
    trades = forwarded(lambda self: self.rows, AsyncTableRows.trades)
    udf_rows = forwarded(lambda self: self.rows, AsyncTableRows.udf)
    funding = forwarded(lambda self: self._funding, AsyncPoints.fetch)
    catalog = forwarded(lambda self: self.rows, AsyncTableRows.catalog)
    coverage = forwarded(lambda self: self.series, AsyncSeries.coverage)
    coverage_days = forwarded(lambda self: self.series, AsyncSeries.days)
    verify = forwarded(lambda self: self.series, AsyncSeries.verify)
    start_realtime = forwarded(lambda self: self.realtime, AsyncRealtime.start)
    stop_realtime = forwarded(lambda self: self.realtime, AsyncRealtime.stop)
    list_realtime = forwarded(lambda self: self.realtime, AsyncRealtime.list)
    live = forwarded(lambda self: self.realtime, AsyncRealtime.live)
    start_udf = forwarded(lambda self: self.udfs, AsyncUdfs.start)
    stop_udf = forwarded(lambda self: self.udfs, AsyncUdfs.stop)
    list_udfs = forwarded(lambda self: self.udfs, AsyncUdfs.list)
    udf_logs = forwarded(lambda self: self.udfs, AsyncUdfs.logs)


def _reporter(
    tickers: Sequence[str], on_progress: OnProgress | None, progress: bool | None
) -> Callable[[str, Progress], None]:
    """Return a function that takes the progress of a ticker, and shows it in a notebook."""
    view = ProgressView(tickers) if progress or (progress is None and is_notebook()) else None

    def report(ticker: str, now: Progress) -> None:
        if view is not None:
            view.update(ticker, now)
        if on_progress is not None:
            on_progress(now)

    return report
