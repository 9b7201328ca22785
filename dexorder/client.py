"""Blocking client: the async client on an event loop in a thread.

So there is one implementation, and the client also works where an event loop is running, as in a notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

import pyarrow as pa

from dexorder.aio import AsyncClient, Ended, OnProgress, OnVerification
from dexorder.request import Moment
from services.common.model.coverage import Coverage, VerificationResult
from services.common.model.history import HistoryRequest, RequestRecord, RequestState
from services.common.model.instrument import InstrumentList

T = TypeVar("T")


class Client:
    """Connection to one relay. Every method calls AsyncClient's and waits. Threads may share a client."""

    def __init__(
        self,
        relay: str | None = None,
        catalog: tuple[str, Mapping[str, str]] | None = None,
        *,
        patience_seconds: float = 30.0,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        """See AsyncClient."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dexorder-client", daemon=True)
        self._thread.start()
        self._client = self._run(_made(relay, catalog, patience_seconds, on_note))

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

    def history(
        self,
        ticker: str,
        period: str | int,
        since: Moment,
        until: Moment,
        *,
        limit: int | None = None,
        request_id: str | None = None,
        client_id: str = "",
        refresh: bool = False,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """See AsyncClient.history. ``on_progress`` is called in another thread."""
        return self._run(
            self._client.history(
                ticker,
                period,
                since,
                until,
                limit=limit,
                request_id=request_id,
                client_id=client_id,
                refresh=refresh,
                on_progress=on_progress,
                timeout=timeout,
            )
        )

    def submit(self, request: HistoryRequest) -> str:
        """See AsyncClient.submit."""
        return self._run(self._client.submit(request))

    def wait(self, request_id: str, *, on_progress: OnProgress | None = None, timeout: float | None = None) -> Ended:
        """See AsyncClient.wait."""
        return self._run(self._client.wait(request_id, on_progress=on_progress, timeout=timeout))

    def read(self, ended: Ended) -> pa.Table:
        """See AsyncClient.read."""
        return self._run(self._client.read(ended))

    def read_batches(self, ended: Ended) -> Iterator[pa.RecordBatch]:
        """See AsyncClient.read_batches."""
        batches = self._client.read_batches(ended)
        while (batch := self._run(_next(batches))) is not None:
            yield batch

    def get_request(self, request_id: str) -> RequestRecord:
        """See AsyncClient.get_request."""
        return self._run(self._client.get_request(request_id))

    def list_requests(
        self, client_id: str = "", *, state: RequestState | None = None, limit: int = 100
    ) -> list[RequestRecord]:
        """See AsyncClient.list_requests."""
        return self._run(self._client.list_requests(client_id, state=state, limit=limit))

    def cancel(self, request_id: str) -> RequestRecord:
        """See AsyncClient.cancel."""
        return self._run(self._client.cancel(request_id))

    def markets(self, venue: str) -> InstrumentList:
        """See AsyncClient.markets."""
        return self._run(self._client.markets(venue))

    def coverage(
        self,
        ticker: str,
        period: str | int,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        detail: bool = False,
    ) -> Coverage:
        """See AsyncClient.coverage."""
        return self._run(self._client.coverage(ticker, period, since, until, detail=detail))

    def verify(
        self,
        ticker: str,
        period: str | int,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        repair: bool = False,
        on_progress: OnVerification | None = None,
    ) -> VerificationResult:
        """See AsyncClient.verify. ``on_progress`` is called in another thread."""
        return self._run(self._client.verify(ticker, period, since, until, repair=repair, on_progress=on_progress))

    def catalog(self) -> tuple[str, dict[str, str]]:
        """See AsyncClient.catalog."""
        return self._run(self._client.catalog())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: the coroutine must end too
            future.cancel()
            raise


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _made(
    relay: str | None,
    catalog: tuple[str, Mapping[str, str]] | None,
    patience_seconds: float,
    on_note: Callable[[str], None] | None,
) -> AsyncClient:
    return AsyncClient(relay, catalog, patience_seconds=patience_seconds, on_note=on_note)
