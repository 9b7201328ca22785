"""Thread with an event loop for sockets, and the handover of their messages to the main loop.

ccxt.pro parses everything that a socket has buffered in one turn of its loop. While more messages arrive than the
process can handle, these turns take seconds. In the main loop, no record would be produced and no heartbeat sent in
this time. Between threads, Python switches every 5 ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import uvloop

T = TypeVar("T")
_MAX_TAKEN = 16
"""Messages of one call: with dozens of markets, a turn of the loop takes some milliseconds."""


class Received(NamedTuple):
    """Trades of one message as ccxt has them, and the time at which it was parsed."""

    received_ns: int
    rows: list[Any]


class SocketThread:
    """Event loop in a thread; it runs until `close`."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function in the thread, without a result."""
        self._loop.call_soon_threadsafe(call)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread; return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


class Handover:
    """Messages from the thread to one task of the loop that creates the object.

    At most ``max_messages`` wait; the others are dropped, and the feed finds the gap.
    """

    def __init__(self, *, max_messages: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._messages: deque[Received] = deque()
        self._max_messages = max_messages
        self.dropped = 0
        """Number of messages that found no room so far."""
        self._failure: Exception | None = None
        self._is_woken = False

    # --- in the thread

    def put(self, message: Received) -> None:
        """Add a message."""
        if len(self._messages) < self._max_messages:
            self._messages.append(message)
        else:
            self.dropped += 1
        self._wake()

    def fail(self, error: Exception) -> None:
        """Let `take` raise an error after the messages so far."""
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:  # else a call is on its way: one for many messages
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._news.set)

    # --- in the loop

    async def take(self) -> list[Received]:
        """Wait for messages and return them; raise the error of `fail`. Other tasks run before it returns again."""
        if self._messages:
            await asyncio.sleep(0)
        while True:
            self._news.clear()
            self._is_woken = False  # before the messages are looked at: a later one wakes again
            if count := min(len(self._messages), _MAX_TAKEN):
                return [self._messages.popleft() for _ in range(count)]
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            await self._news.wait()
