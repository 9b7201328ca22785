"""Histories of many tickers at once: each has its own request, and a failure does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dexorder import errors
from dexorder.client.requests import history_span
from dexorder_common.model.history import HistoryRequest, Progress

if TYPE_CHECKING:
    from dexorder.client.async_client import AsyncClient
    from dexorder.rows.table import Rows

PARALLEL = 64
"""Requests of one run that are not over, by default, as of ``dexorder history``. Most of them wait for the table: a
batch takes seconds to commit, and an exchange answers for several tickers a second."""
READ_AT_ONCE = 8
"""Requests of one run whose rows are read at a time."""
QUOTA_SECONDS = 2.0
"""Wait before a submission that exceeded the quota is repeated, unless a request of this run ends before."""


class SharedQuota:
    """Submits the requests of one run: one that exceeds the caller's quota waits until another has ended."""

    def __init__(self, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._ended = asyncio.Event()

    def ended(self) -> None:
        """Say that a request of the run has ended."""
        self._ended.set()

    async def submit(self, client: AsyncClient, request: HistoryRequest) -> None:
        """Submit a request, when there is room for it."""
        while True:
            self._ended.clear()
            try:
                await client.submit(request)
                return
            except errors.QuotaReached as error:
                self._on_note(f"{error}; waiting until a request ends")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), QUOTA_SECONDS)


async def fetch_many(
    client: AsyncClient,
    requests: Sequence[HistoryRequest],
    *,
    parallel: int,
    on_note: Callable[[str], None],
    on_progress: Callable[[str, Progress], None],
) -> Rows:
    """Return the rows of all requests in their order, ``parallel`` of which run at a time.

    Raises:
        ManyFailed: Some ended without all of their rows, when all have ended; it has the errors and the other rows.
        RelayUnreachable: The relay did not answer, so that all would fail.
    """
    from dexorder.rows.table import Rows

    quota, left = SharedQuota(on_note), iter(enumerate(requests))
    found: dict[int, Rows] = {}
    failed: dict[str, errors.DexorderError] = {}

    async def work(left: Iterator[tuple[int, HistoryRequest]]) -> None:
        for index, request in left:
            try:
                with history_span(request):
                    await quota.submit(client, request)
                    ended = await client.wait(request.request_id, on_progress=partial(on_progress, request.ticker))
                    found[index] = await client.read(ended)
            except errors.RelayUnreachable:
                raise
            except errors.DexorderError as error:
                failed[request.ticker] = error
            quota.ended()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(requests))):
                group.create_task(work(left))
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    rows = Rows.concat(found[index] for index in sorted(found)) if found else None
    if failed:
        raise errors.ManyFailed(failed, rows)
    assert rows is not None
    return rows
