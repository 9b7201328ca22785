"""An event loop whose clock moves only when nothing can run now; processes on it can be killed, frozen and skewed.

The suite's own coroutines run on it unchanged: ``asyncio.sleep``, timeouts, task groups and ``to_thread`` take virtual
time. One heap of due times, one generator of random numbers and one thread make a run a function of its seed.

A `Process` stands for an operating system's process. Each callback belongs to the process that scheduled it (a context
variable, which tasks inherit). A killed process executes nothing more, not even ``finally``; a frozen one executes what
is due when it continues.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
SECOND_NS = 1_000_000_000
START_WALL_NS = 1_700_000_000 * SECOND_NS
_AWAITS_AT_THE_END = 20
_STEPS_OF_AN_INSTANT = 100_000


class Spinning(AssertionError):
    """Tasks wake each other without end, and no time passes."""


class ProcessEnded(Exception):
    """The process was killed before it answered."""


class Process:
    """A process: what it runs ends with it. Its wall clock may be wrong, its monotonic clock is the loop's."""

    def __init__(self, name: str, *, skew_ns: int = 0) -> None:
        self.name = name
        self.skew_ns = skew_ns
        self.is_alive = True
        self.is_frozen = False
        self.held: list[Due] = []
        """Callbacks that became due while it is frozen."""
        self.peers: set[asyncio.Future[Any]] = set()
        """Answers that others expect of it; they fail when it is killed."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Kept to the end of the run: a collected coroutine would execute its ``finally``."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


WORLD = Process("world")
"""Owner of callbacks that no part of the suite has scheduled: faults, the exchange, the test."""
CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=WORLD)


class Due:
    """A callback that is due, with what asyncio uses of a handle; theirs takes three times as long to make and run."""

    __slots__ = ("callback", "context", "is_cancelled", "process", "values", "when_seconds")

    def __init__(
        self,
        callback: Callable[..., Any],
        values: tuple[Any, ...],
        context: contextvars.Context,
        when_seconds: float = 0.0,
    ) -> None:
        self.callback = callback
        self.values = values
        self.context = context
        self.process: Process = context.get(CURRENT, WORLD)
        self.is_cancelled = False
        self.when_seconds = when_seconds

    def cancel(self) -> None:
        """Never call it."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Return whether it is never called."""
        return self.is_cancelled

    def when(self) -> float:
        """Return the loop's time at which it is due."""
        return self.when_seconds


class SimulatedClock:
    """`dexorder_common.clock.Clock` of one process."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def wall_ns(self) -> int:
        """Return virtual nanoseconds since the epoch, as wrong as the process's clock."""
        return START_WALL_NS + self._loop.now_ns + self._process.skew_ns

    def monotonic_ns(self) -> int:
        """Return virtual nanoseconds since the start of the run."""
        return self._loop.now_ns


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order of their due times; among equal times in the order of scheduling."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self._last_instant_steps = 0
        self.errors: list[dict[str, Any]] = []
        """What asyncio reported: exceptions of callbacks and of tasks that nobody awaited."""
        self._ready: deque[Due] = deque()
        self._timers: list[tuple[int, int, Due]] = []
        self._order = count()
        self._processes: list[Process] = []
        self._is_running = False

    # ---- processes

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as the first task of a process, or as another one."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, process)
        if process not in self._processes:
            self._processes.append(process)
        return context.run(self.create_task, work)

    def kill(self, process: Process) -> None:
        """End a process at once, as SIGKILL does."""
        process.is_alive = False
        process.held.clear()
        for answer in process.peers:
            if not answer.done():
                answer.set_exception(ProcessEnded(f"{process.name} ended during the call"))
        process.peers.clear()

    def freeze(self, process: Process) -> None:
        """Stop a process, as SIGSTOP does."""
        process.is_frozen = True

    def thaw(self, process: Process) -> None:
        """Continue a frozen process; what was due meanwhile runs now, in order."""
        process.is_frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    # ---- running

    def run_until(self, done: Callable[[], bool], *, limit_ns: int) -> bool:
        """Run until a condition holds; return False if the time or all work is over first."""
        self._is_running = True
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=lambda generator: None)  # one of a killed process executes nothing more
        try:
            return self._run(done, limit_ns)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            self._is_running = False

    def _run(self, done: Callable[[], bool], limit_ns: int) -> bool:
        ready, errors = self._ready, (SystemExit, KeyboardInterrupt)
        while not done():
            if not ready and not self._advance(limit_ns):
                return done()
            due = ready.popleft()
            process = due.process
            if due.is_cancelled or not process.is_alive:
                continue
            if process.is_frozen:
                process.held.append(due)
                continue
            self.steps += 1
            if self.steps > self._last_instant_steps + _STEPS_OF_AN_INSTANT:
                last = getattr(due.callback, "__self__", due.callback)  # the task of a step
                raise Spinning(f"{process.name} does not wait, last in {last!r}")
            try:
                due.context.run(due.callback, *due.values)
            except errors:
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"a callback failed: {due.callback!r}", "exception": error})
        return True

    def _advance(self, limit_ns: int) -> bool:
        """Move the clock to the next due time, whose callbacks are ready then; return False at the limit."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if not timers or timers[0][0] > limit_ns:
            self.now_ns = max(self.now_ns, limit_ns)
            return False
        due_ns = timers[0][0]
        self._last_instant_steps = self.steps
        self.now_ns = max(self.now_ns, due_ns)
        while timers and timers[0][0] == due_ns:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def close(self) -> None:
        """End all tasks; what they do meanwhile is no part of the run."""
        tasks = [task for process in [*self._processes, WORLD] for task in process.tasks]
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of generators that end where they wait
        for process in self._processes:
            process.is_alive = False
            process.tasks.clear()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _end(task.get_coro())
        sys.unraisablehook = hook
        WORLD.is_alive = True
        WORLD.tasks.clear()
        self._ready.clear()
        self._timers.clear()

    # ---- what asyncio calls

    def time(self) -> float:
        return self.now_ns / SECOND_NS

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Due:
        due = Due(callback, args, context or contextvars.copy_context())
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Due:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Due:
        due = Due(callback, args, context or contextvars.copy_context(), when)
        due_ns = max(self.now_ns, round(when * SECOND_NS))
        heapq.heappush(self._timers, (due_ns, next(self._order), due))
        return due

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.run(CURRENT.get) if context is not None else CURRENT.get()
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run a function of a thread at once, and return its result in the next step."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except BaseException as error:
            self.call_soon(_unless_done(future.set_exception, future), error)
        else:
            self.call_soon(_unless_done(future.set_result, future), result)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False


def _end(coroutine: Any) -> None:
    """Close a coroutine, again for each await in its ``finally``."""
    for _ in range(_AWAITS_AT_THE_END):
        try:
            coroutine.close()
        except BaseException:  # a task group that ends has one of these
            continue
        return


def _unless_done(act: Callable[[Any], None], future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def run(value: Any) -> None:
        if not future.done():
            act(value)

    return run
