"""A semaphore whose waiting clients take turns.

A client that wants a thousand pieces at once delays another client by the running piece and one more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from dexorder_common.model.errors import Exhausted
from dexorder_common.rpc.identity import current_client

RETRY_SECONDS = 1.0
T = TypeVar("T")


class FairSemaphore:
    """Limit on the pieces of work at a time, with a queue for each client; belongs to one event loop."""

    def __init__(self, places: int, max_waiting: int | None = None) -> None:
        """Create it with free places; at most ``max_waiting`` pieces of a client wait, None for any number."""
        self._free = places
        self._max_waiting = max_waiting
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client, in the order in which clients get a place."""

    @asynccontextmanager
    async def place(self, client_id: str) -> AsyncIterator[None]:
        """Hold a place while the block runs; wait for it after one piece of each other client that waits.

        Raises:
            Exhausted: Too many pieces of this client wait.
        """
        await self._take(client_id)
        try:
            yield
        finally:
            self._leave()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a function in a thread, in the turn of the caller of the current RPC; Exhausted as ``place``."""
        async with self.place(current_client()):
            return await asyncio.to_thread(work)

    async def _take(self, client_id: str) -> None:
        if self._free:
            self._free -= 1
            return
        pieces = self._waiting.setdefault(client_id, deque())
        if self._max_waiting is not None and len(pieces) >= self._max_waiting:
            raise Exhausted(
                f"{len(pieces)} calls of client_id {client_id!r} wait for their turn; repeat this one when some have "
                "been answered",
                retry_seconds=RETRY_SECONDS,
            )
        place = asyncio.get_running_loop().create_future()
        pieces.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(client_id, place)
            else:  # it was given the place in the same moment
                self._leave()
            raise

    def _forget(self, client_id: str, place: asyncio.Future[None]) -> None:
        """Remove a cancelled piece, unless its turn has come since."""
        pieces = self._waiting.get(client_id)
        if pieces and place in pieces:
            pieces.remove(place)
            if not pieces:
                del self._waiting[client_id]

    def _leave(self) -> None:
        """Give a place to the next client; the client's other pieces go to the end of the order."""
        while self._waiting:
            client_id = next(iter(self._waiting))
            pieces = self._waiting.pop(client_id)
            place = pieces.popleft()
            if pieces:
                self._waiting[client_id] = pieces
            if not place.done():  # it was not cancelled a moment ago
                place.set_result(None)
                return
        self._free += 1
