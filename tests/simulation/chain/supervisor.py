"""Starts processes and starts them again; ends and freezes them, at any time or at a commit point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.simulation.loop import SECOND_NS, WORLD, Process
from tests.simulation.run import Run

Main = Callable[[Process], Coroutine[Any, Any, None]]
FREEZE_BREAKS_SECONDS = 12.0
"""A connection to a process that is frozen for so long is lost."""


class Supervisor:
    """All processes of a run by name.

    Attributes:
        death_share: Probability of a kill at each commit point.
        on_end: Called when a process has ended.
        lives: Starts so far, by name.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.death_share = 0.0
        self.on_end: Callable[[Process], None] = lambda process: None
        self.before_start: Callable[[str], None] = lambda name: None
        self.lives: dict[str, int] = {}
        self._random: Random = run.generator("supervisor")
        self._mains: dict[str, tuple[Main, int]] = {}
        self._living: dict[str, Process] = {}

    def start(self, name: str, main: Main, *, skew_ns: int = 0) -> None:
        """Start a process whose wall clock is wrong by ``skew_ns``."""
        self._mains[name] = main, skew_ns
        self._begin(name)

    def generator(self, process: Process) -> Random:
        """Return the generator of this life of a process."""
        return self.run.generator(f"{process.name} {self.lives[process.name]}")

    def kill(self, name: str, why: str) -> None:
        """End a process now; it starts again after a while."""
        process = self._living.pop(name, None)
        if process is None:
            return
        self.run.note(f"{name} is killed {why}")
        self.run.loop.kill(process)
        self._end(process)

    async def moment(self, process: Process, what: str) -> None:
        """Perhaps end a process at a point that matters; then this does not return."""
        if process.is_alive and self._random.random() < self.death_share:
            self.kill(process.name, what)
        if not process.is_alive:
            never: asyncio.Future[None] = self.run.loop.create_future()
            await never

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a process for a while."""
        process = self._living.get(name)
        if process is None or process.is_frozen:
            return
        self.run.note(f"{name} is frozen for {seconds:.0f} s")
        self.run.loop.freeze(process)
        if seconds > FREEZE_BREAKS_SECONDS:
            self._later(FREEZE_BREAKS_SECONDS, lambda: self.on_end(process))
        self._later(seconds, lambda: self._thaw(process))

    def names(self) -> list[str]:
        """Return the names of living processes."""
        return list(self._living)

    def _thaw(self, process: Process) -> None:
        if process.is_alive:
            self.run.note(f"{process.name} continues")
            self.run.loop.thaw(process)

    def _begin(self, name: str) -> None:
        main, skew_ns = self._mains[name]
        self.before_start(name)
        self.lives[name] = self.lives.get(name, 0) + 1
        process = self._living[name] = Process(name, skew_ns=skew_ns)
        self.run.note(f"{name} starts")
        task = self.run.loop.spawn(process, main(process))
        task.add_done_callback(lambda done: self._returned(process, done))

    def _returned(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.is_alive:
            error = None if task.cancelled() else task.exception()
            self._living.pop(process.name, None)
            self.run.note(f"{process.name} ends by itself: {causes(error)}")
            self.run.loop.kill(process)
            self._end(process)

    def _end(self, process: Process) -> None:
        self.on_end(process)
        self._later(self._random.uniform(0.5, 20.0), lambda: self._begin(process.name))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        self.run.loop.spawn(WORLD, wait())


def seconds_of(run: Run) -> float:
    """Return the time of a run in seconds."""
    return run.loop.now_ns / SECOND_NS


def causes(error: BaseException | None) -> str:
    """Return an error, or those in a group, as text."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(causes, error.exceptions))
    return f"{type(error).__name__}: {error}" if error else "it is done"
