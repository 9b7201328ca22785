"""Blocking client: the async client on an event loop in a thread.

So there is one implementation, and the client also works where an event loop is running, as in a notebook.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from dexorder.client.async_client import AsyncClient
from dexorder.client.realtime import AsyncRealtime
from dexorder.client.receipts import AsyncReceipts
from dexorder.client.requests import AsyncRequests
from dexorder.client.series import AsyncSeries
from dexorder.client.table_rows import AsyncTableRows
from dexorder.client.triggers import AsyncTriggers
from dexorder.client.udfs import AsyncUdfs
from dexorder.errors import DexorderError

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Event loop in a thread, on which blocking callers run coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dexorder-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine; DexorderError if the client is closed."""
        if self.is_closed:
            work.close()
            raise DexorderError("the client is closed: make another, or use it inside its `with` block")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: the coroutine must end too
            future.cancel()
            raise

    def iterate(self, values: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the values of an async generator; close it when the caller stops."""
        alone = asyncio.Lock()  # after Ctrl-C the last call may still be ending
        try:
            while (value := self.run(_next(values, alone))) is not None:
                yield value
        finally:
            if not self.is_closed:
                self.run(_close(values, alone))

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return self._loop.is_closed()

    def close(self) -> None:
        """End the loop and the thread."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingPart(Generic[A]):
    """Part of the async client for blocking callers: its methods, which wait for their results."""

    def __init__(self, part: A, loop: LoopThread) -> None:
        self._part = part
        self._loop = loop


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingPart[A], P], T]:
    """Return a method that calls an async one and waits for its result."""

    @functools.wraps(method)
    def call(self: BlockingPart[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._part, *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingPart[A], P], Iterator[T]]:
    """Return a method that calls one which returns an async generator, and yields its values."""

    @functools.wraps(method)
    def call(self: BlockingPart[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(method(self._part, *args, **kwargs))

    return call


class BlockingRequests(BlockingPart[AsyncRequests]):
    """Requests of one relay; see AsyncRequests."""

    fetch = waiting(AsyncRequests.fetch)
    submit = waiting(AsyncRequests.submit)
    snapshot_tickers = waiting(AsyncRequests.snapshot_tickers)
    wait = waiting(AsyncRequests.wait)
    get = waiting(AsyncRequests.get)
    list = waiting(AsyncRequests.list)
    cancel = waiting(AsyncRequests.cancel)
    notifications = iterating(AsyncRequests.notifications)


class BlockingTableRows(BlockingPart[AsyncTableRows]):
    """Rows of the tables; see AsyncTableRows."""

    read = waiting(AsyncTableRows.read)
    batches = iterating(AsyncTableRows.batches)
    stored = waiting(AsyncTableRows.stored)
    find = waiting(AsyncTableRows.find)
    trades = waiting(AsyncTableRows.trades)
    udf = waiting(AsyncTableRows.udf)
    points = waiting(AsyncTableRows.points)
    snapshots = waiting(AsyncTableRows.snapshots)
    snapshot_id = waiting(AsyncTableRows.snapshot_id)
    catalog = waiting(AsyncTableRows.catalog)


class BlockingSeries(BlockingPart[AsyncSeries]):
    """Coverage of the series; see AsyncSeries."""

    coverage = waiting(AsyncSeries.coverage)
    days = waiting(AsyncSeries.days)
    verify = waiting(AsyncSeries.verify)


class BlockingRealtime(BlockingPart[AsyncRealtime]):
    """Subscriptions and live market data; see AsyncRealtime."""

    start = waiting(AsyncRealtime.start)
    stop = waiting(AsyncRealtime.stop)
    list = waiting(AsyncRealtime.list)
    live = iterating(AsyncRealtime.live)


class BlockingReceipts(BlockingPart[AsyncReceipts]):
    """Receipts of one relay; see AsyncReceipts."""

    make = waiting(AsyncReceipts.make)
    verify = waiting(AsyncReceipts.verify)
    list = waiting(AsyncReceipts.list)
    drop = waiting(AsyncReceipts.drop)


class BlockingTriggers(BlockingPart[AsyncTriggers]):
    """Triggers of one relay; see AsyncTriggers."""

    add = waiting(AsyncTriggers.add)
    add_many = waiting(AsyncTriggers.add_many)
    edit = waiting(AsyncTriggers.edit)
    pause = waiting(AsyncTriggers.pause)
    resume = waiting(AsyncTriggers.resume)
    remove = waiting(AsyncTriggers.remove)
    list = waiting(AsyncTriggers.list)
    events = iterating(AsyncTriggers.events)
    test = waiting(AsyncTriggers.test)


class BlockingUdfs(BlockingPart[AsyncUdfs]):
    """UDFs of one relay; see AsyncUdfs."""

    start = waiting(AsyncUdfs.start)
    stop = waiting(AsyncUdfs.stop)
    list = waiting(AsyncUdfs.list)
    logs = waiting(AsyncUdfs.logs)


class Client(BlockingPart[AsyncClient]):
    """Connection to one relay. Threads may share a client.

    It has the methods and parts of AsyncClient. They wait for the result, and call ``on_progress`` in another thread.

    >>> client = Client()  # Client("host:50051"), DEXORDER_RELAY, or the suite on this machine
    >>> client.history(["BTC/USDT.SIM"], "1h", "2024-01-01", "2024-01-02T06:00", request_id="two").num_rows
    30
    >>> client.get_request("two-0001").row_count
    30
    >>> for notification in client.notifications("HISTORY_READY:two-0001"):
    ...     print(notification.status, notification.row_count)
    ...     break # the stream is endless
    OK 30
    >>> client.close()
    """

    def __init__(
        self,
        relay: str | None = None,
        catalog: tuple[str, Mapping[str, str]] | None = None,
        *,
        patience_seconds: float | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """See AsyncClient."""

        async def connect() -> AsyncClient:
            return AsyncClient(relay, catalog, patience_seconds=patience_seconds, on_note=on_note)

        loop = LoopThread()
        super().__init__(loop.run(connect()), loop)
        self.requests = BlockingRequests(self._part.requests, loop)
        self.rows = BlockingTableRows(self._part.rows, loop)
        self.series = BlockingSeries(self._part.series, loop)
        self.realtime = BlockingRealtime(self._part.realtime, loop)
        self.receipts = BlockingReceipts(self._part.receipts, loop)
        self.triggers = BlockingTriggers(self._part.triggers, loop)
        self.udfs = BlockingUdfs(self._part.udfs, loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.relay!r}{', closed' if self._loop.is_closed else ''})"

    def close(self) -> None:
        """Close the connection; requests continue."""
        if not self._loop.is_closed:
            self._loop.run(self._part.close())
            self._loop.close()

    @property
    def relay(self) -> str:
        """host:port of the relay."""
        return self._part.relay

    history = waiting(AsyncClient.history)
    snapshot_tickers = waiting(AsyncClient.snapshot_tickers)
    markets = waiting(AsyncClient.markets)
    export = waiting(AsyncClient.export)
    sql = waiting(AsyncClient.sql)
    server_info = waiting(AsyncClient.server_info)
    fetch = waiting(AsyncClient.fetch)
    submit = waiting(AsyncClient.submit)
    wait = waiting(AsyncClient.wait)
    get_request = waiting(AsyncClient.get_request)
    list_requests = waiting(AsyncClient.list_requests)
    cancel = waiting(AsyncClient.cancel)
    fetch_each = iterating(AsyncClient.fetch_each)
    notifications = iterating(AsyncClient.notifications)
    read = waiting(AsyncClient.read)
    read_batches = iterating(AsyncClient.read_batches)
    read_stored = waiting(AsyncClient.read_stored)
    find_stored = waiting(AsyncClient.find_stored)
    trades = waiting(AsyncClient.trades)
    funding = waiting(AsyncClient.funding)
    catalog = waiting(AsyncClient.catalog)
    coverage = waiting(AsyncClient.coverage)
    coverage_days = waiting(AsyncClient.coverage_days)
    verify = waiting(AsyncClient.verify)
    start_realtime = waiting(AsyncClient.start_realtime)
    stop_realtime = waiting(AsyncClient.stop_realtime)
    list_realtime = waiting(AsyncClient.list_realtime)
    live = iterating(AsyncClient.live)
    start_udf = waiting(AsyncClient.start_udf)
    stop_udf = waiting(AsyncClient.stop_udf)
    list_udfs = waiting(AsyncClient.list_udfs)
    udf_logs = waiting(AsyncClient.udf_logs)
    udf_rows = waiting(AsyncClient.udf_rows)


async def _next(values: AsyncIterator[T], alone: asyncio.Lock) -> T | None:
    async with alone:
        return await anext(values, None)


async def _close(values: AsyncGenerator[T, None], alone: asyncio.Lock) -> None:
    async with alone:
        await values.aclose()
