"""Blocking client: the async client on an event loop in a thread.

So there is one implementation, and the client also works where an event loop is running, as in a notebook.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from dexorder.client.async_client import AsyncClient
from dexorder.client.ended import Ended
from dexorder.client.live import LiveUpdate
from dexorder.client.triggers import Triggers
from dexorder_common.model.history import Notification

if TYPE_CHECKING:
    from dexorder.rows.table import Rows

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return a method of Client that calls a method of AsyncClient and waits for its result."""

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call


class Client:
    """Connection to one relay. Threads may share a client.

    The methods are those of AsyncClient. They wait for the result, and call ``on_progress`` in another thread.

    >>> client = Client()  # Client("host:50051"), DEXORDER_RELAY, or the suite on this machine
    >>> client.history(["BTC/USDT.SIM"], "1h", "2024-01-01", "2024-01-02T06:00", request_id="two").num_rows
    30
    >>> client.get_request("two-0001").row_count
    30
    >>> for notification in client.notifications("HISTORY_READY:two-0001"):
    ...     print(notification.status, notification.row_count)
    ...     break  # the stream has no end
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

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dexorder-client", daemon=True)
        self._thread.start()
        self._client = self._run(connect())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; requests continue."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def relay(self) -> str:
        """host:port of the relay."""
        return self._client.relay

    @property
    def triggers(self) -> Triggers:
        """See AsyncClient.triggers."""
        return Triggers(self._client.triggers, self._run, self._iterate)

    history = _blocking(AsyncClient.history)
    fetch = _blocking(AsyncClient.fetch)
    submit = _blocking(AsyncClient.submit)
    wait = _blocking(AsyncClient.wait)
    read = _blocking(AsyncClient.read)
    read_stored = _blocking(AsyncClient.read_stored)
    find_stored = _blocking(AsyncClient.find_stored)
    get_request = _blocking(AsyncClient.get_request)
    list_requests = _blocking(AsyncClient.list_requests)
    cancel = _blocking(AsyncClient.cancel)
    markets = _blocking(AsyncClient.markets)
    coverage = _blocking(AsyncClient.coverage)
    verify = _blocking(AsyncClient.verify)
    catalog = _blocking(AsyncClient.catalog)
    start_realtime = _blocking(AsyncClient.start_realtime)
    stop_realtime = _blocking(AsyncClient.stop_realtime)
    list_realtime = _blocking(AsyncClient.list_realtime)
    trades = _blocking(AsyncClient.trades)
    snapshot_tickers = _blocking(AsyncClient.snapshot_tickers)
    start_udf = _blocking(AsyncClient.start_udf)
    stop_udf = _blocking(AsyncClient.stop_udf)
    list_udfs = _blocking(AsyncClient.list_udfs)
    udf_logs = _blocking(AsyncClient.udf_logs)

    def live(
        self,
        tickers: str | Iterable[str],
        periods: Iterable[str | int] = (),
        *,
        trades: bool = True,
        running: bool = True,
        keep_all: bool = False,
    ) -> Iterator[LiveUpdate]:
        """See AsyncClient.live."""
        return self._iterate(self._client.live(tickers, periods, trades=trades, running=running, keep_all=keep_all))

    def notifications(self, topic: str, *, after: int = 0) -> Iterator[Notification]:
        """See AsyncClient.notifications."""
        return self._iterate(self._client.notifications(topic, after=after))

    def read_batches(self, ended: Ended, *, partial: bool = False) -> Iterator[Rows]:
        """See AsyncClient.read_batches."""
        return self._iterate(self._client.read_batches(ended, partial=partial))

    def _iterate(self, values: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the values of an async generator; close it when the caller stops."""
        alone = asyncio.Lock()  # after Ctrl-C the last call may still be ending
        try:
            while (value := self._run(_next(values, alone))) is not None:
                yield value
        finally:
            if not self._loop.is_closed():
                self._run(_close(values, alone))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: the coroutine must end too
            future.cancel()
            raise


async def _next(values: AsyncIterator[T], alone: asyncio.Lock) -> T | None:
    async with alone:
        return await anext(values, None)


async def _close(values: AsyncGenerator[T, None], alone: asyncio.Lock) -> None:
    async with alone:
        await values.aclose()
