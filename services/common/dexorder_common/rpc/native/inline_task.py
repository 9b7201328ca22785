"""Coroutines that run at once, inside the caller, and continue inside the callbacks of their futures.

A Task costs two turns of the event loop in addition to its futures' turns: one to start, one to report its end.
`InlineTask` drives a coroutine by asyncio's own protocol for futures and needs neither: a call that waits for one
future continues in that future's callback and is answered there. While it runs, `asyncio.current_task` returns the
`InlineTask`, so timeouts and TaskGroups work in it.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented under "Extending asyncio"
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Ended = Callable[[Any, BaseException | None], None]
"""Takes the result of a coroutine, or what it has raised."""


class InlineTask(Generic[T]):
    """A coroutine that has waited at least once; of a Task it has what code inside of it uses."""

    # Values of most coroutines, which end at once.
    _awaited: asyncio.Future[Any] | None = None
    _cancels = 0
    _must_cancel = False
    _message: Any = None
    _is_done = False

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, context: Context, ended: Ended
    ) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._context = context
        self._ended = ended

    def done(self) -> bool:
        """Return whether the coroutine has ended."""
        return self._is_done

    def cancel(self, msg: Any = None) -> bool:
        """Raise CancelledError where the coroutine waits; False if it has ended."""
        if self._is_done:
            return False
        self._cancels += 1
        if self._awaited is None or not self._awaited.cancel(msg):
            self._must_cancel, self._message = True, msg
        return True

    def cancelling(self) -> int:
        """Return how often it was cancelled, less the calls of `uncancel`."""
        return self._cancels

    def uncancel(self) -> int:
        """Take one `cancel` back, because its cause handles it; return `cancelling`."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._loop

    def get_coro(self) -> Coroutine[Any, Any, T]:
        """Return the coroutine."""
        return self._coroutine

    def get_name(self) -> str:
        """Return a name for logs."""
        return getattr(self._coroutine, "__qualname__", "call")

    def first(self) -> tuple[bool, T | None]:
        """Run up to the first wait; return whether the coroutine has ended, and its result. Its error is raised."""
        _enter_task(self._loop, self)  # type: ignore[arg-type]
        try:
            awaited = self._context.run(self._coroutine.send, None)
        except StopIteration as end:
            self._is_done = True
            if self._must_cancel:
                raise asyncio.CancelledError(self._message) from None
            return True, end.value
        except BaseException:
            self._is_done = True
            raise
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]
        self._wait_for(awaited)
        return False, None

    def _next(self, _: Any = None) -> None:
        """Go on after a wait, in our context; the future gives its result, or raises its error, in the coroutine."""
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        self._awaited = None
        if self._must_cancel:
            self._must_cancel, error = False, asyncio.CancelledError(self._message)
        _enter_task(self._loop, self)  # type: ignore[arg-type]
        try:
            awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as end:
            result, failure = end.value, None
        except BaseException as raised:
            result, failure = None, raised
        else:
            self._wait_for(awaited)
            return
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]
        self._is_done = True
        if failure is None and self._must_cancel:
            result, failure = None, asyncio.CancelledError(self._message)
        self._ended(result, failure)
        if isinstance(failure, KeyboardInterrupt | SystemExit):
            raise failure

    def _wait_for(self, awaited: Any) -> None:
        if getattr(awaited, "_asyncio_future_blocking", None):
            awaited._asyncio_future_blocking = False
            self._awaited = awaited
            awaited.add_done_callback(self._next, context=self._context)
            if self._must_cancel and awaited.cancel(self._message):
                self._must_cancel = False
        elif awaited is None:  # a bare yield
            self._loop.call_soon(self._next, context=self._context)
        else:
            wrong = RuntimeError(f"a handler awaited {awaited!r}, which is not a future")
            self._loop.call_soon(self._step, wrong, context=self._context)
