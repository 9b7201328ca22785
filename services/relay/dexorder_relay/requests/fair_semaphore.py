"""A semaphore whose waiting clients take turns.

A client that wants a thousand pieces at once delays another client by the running piece and one more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSemaphore:
    """Limit on the pieces of work at a time, with a queue for each client; belongs to one event loop."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client, in the order in which clients get a place."""

    @asynccontextmanager
    async def place(self, client_id: str) -> AsyncIterator[None]:
        """Hold a place while the block runs; wait for it after one piece of each other client that waits."""
        await self._take(client_id)
        try:
            yield
        finally:
            self._leave()

    async def _take(self, client_id: str) -> None:
        if self._free:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client_id, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given the place in the same moment
                self._leave()
            raise

    def _leave(self) -> None:
        """Give a place to the next client; the client's other pieces go to the end of the order."""
        while self._waiting:
            client_id = next(iter(self._waiting))
            pieces = self._waiting.pop(client_id)
            place = pieces.popleft()
            if pieces:
                self._waiting[client_id] = pieces
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
