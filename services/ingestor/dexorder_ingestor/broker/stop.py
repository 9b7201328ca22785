"""Stop of a dispatch that runs until it is told to end."""

from __future__ import annotations

import asyncio

from dexorder_ingestor.broker.slots import DispatchEnd


class StopSignal:
    """Order to end a realtime dispatch; the first one counts."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._success = False
        self._message = ""

    @property
    def is_set(self) -> bool:
        """Whether the dispatch has to end."""
        return self._event.is_set()

    def set(self, *, success: bool, message: str = "") -> None:
        """Let the dispatch publish what is settled and end; ``success`` says that the relay asked for it."""
        if not self.is_set:
            self._success = success
            self._message = message
            self._event.set()

    async def wait(self) -> None:
        """Wait until the dispatch has to end."""
        await self._event.wait()

    def completion(self, dispatch_id: str) -> DispatchEnd:
        """Return the completion of a dispatch that has ended because of it."""
        return DispatchEnd(dispatch_id, success=self._success, message=self._message)
