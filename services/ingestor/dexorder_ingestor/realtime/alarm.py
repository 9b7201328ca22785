"""Alarm of a task that waits for a time, and is woken earlier only if there is something to do before it.

To wake a task costs more than to handle a message, so whoever changes the state asks first whether that is needed.
"""

from __future__ import annotations

import asyncio

from dexorder_common.model.times import SECOND_NS


class Alarm:
    """Alarm of one task. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self.at_ns = 0
        """Time at which the task wakes up by itself."""
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the task, or let its next `wait` return at once."""
        self._event.set()

    def reset(self) -> None:
        """Forget earlier calls of `ring`; the task looks for work after this."""
        self._event.clear()

    async def wait(self, wait_ns: int, *, now_ns: int) -> bool:
        """Wait for a time; return whether `ring` ended it."""
        self.at_ns = now_ns + wait_ns
        try:
            async with asyncio.timeout(wait_ns / SECOND_NS):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
