"""A value that arrives later, for one coroutine, which continues at once inside `set_result`.

An `asyncio.Future` has its waiter called in the next turn of the event loop, one callback for each future. Here a
callback that settles many records answers all their calls, and one write carries the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InlineFuture(Generic[T]):
    """Awaitable by one coroutine, of a Task or of the native transport; settle it in a callback of the event loop."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_error", "_is_done", "_loop", "_result")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._result: Any = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._loop

    def done(self) -> bool:
        """Return whether it has a result or an error, or was cancelled."""
        return self._is_done

    def set_result(self, result: T) -> None:
        """Continue the coroutine, now."""
        self._result = result
        self._land()

    def set_exception(self, error: BaseException) -> None:
        """Raise an error in the coroutine, now."""
        self._error = error
        self._land()

    def cancel(self, msg: Any = None) -> bool:
        """Raise CancelledError in the coroutine, in the next turn; False if it is too late."""
        if self._is_done:
            return False
        self._is_done, self._error = True, asyncio.CancelledError(msg)
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
        return True

    def result(self) -> T:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Take the continuation; asyncio's Task and `InlineTask` call it once, before the result is set."""
        self._callback, self._context = callback, context

    def _land(self) -> None:
        self._is_done = True
        if self._callback is None or self._context is None:
            return
        try:
            self._context.run(self._callback, self)
        except Exception as error:  # of one call; the others of the same callback continue
            self._loop.call_exception_handler({"message": "a call failed after its wait", "exception": error})

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()
