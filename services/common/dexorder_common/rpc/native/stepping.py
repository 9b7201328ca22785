"""Coroutines that run at once, inside the caller, and become a Task only where they first wait.

Most calls never wait, and a Task costs a turn of the event loop. Python 3.12 has eager tasks for this; this module does
it on 3.11.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented under "Extending asyncio"
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class _StandIn:
    """What `asyncio.current_task` returns until there is a Task; ``asyncio.timeout`` and TaskGroup keep it."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def cancel(self, msg: Any = None) -> bool:
        return self.task is not None and self.task.cancel(msg)

    def cancelling(self) -> int:
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        return 0 if self.task is None else self.task.uncancel()


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine that has run up to its first wait; a Task takes over what it waits for."""

    __slots__ = ("_awaited", "_coroutine", "_is_first")

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._is_first = True

    def send(self, value: Any) -> Any:
        if self._is_first:
            self._is_first = False
            return self._awaited
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._is_first = False
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return (yield from self._coroutine.__await__())


def begin(
    coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, context: Context
) -> tuple[T | None, asyncio.Task[T] | None]:
    """Run a coroutine up to its first wait; return its result, or the Task that goes on with it.

    Call it where no task runs: in a callback of the event loop.
    """
    stand_in: Any = _StandIn()
    _enter_task(loop, stand_in)
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration as end:
        return end.value, None
    finally:
        _leave_task(loop, stand_in)
    stand_in.task = task = asyncio.Task(_Begun(coroutine, awaited), loop=loop, context=context)
    return None, task
