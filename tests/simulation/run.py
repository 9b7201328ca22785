"""One run: its seed, loop, network, story and the checks that a scenario makes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import structlog

from tests.simulation.loop import SECOND_NS, Process, SimulatedClock, SimulatedLoop
from tests.simulation.network import Network

_OBJECTS_BEFORE_A_COLLECTION = 100_000


class Broken(AssertionError):
    """A promise that a run has found broken; its text is one line, the story is the run's."""

    story: Sequence[str] = ()


@dataclass
class Run:
    """Everything of one run. Equal seeds and equal code give equal stories, line for line."""

    seed: int
    loop: SimulatedLoop = field(default_factory=SimulatedLoop)
    story: list[str] = field(default_factory=list)
    broken: Broken | None = None
    """The first promise that did not hold; a task that finds one ends, and whoever runs the loop raises it."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.network = Network(self.loop, self.generator("network"), self.generator("repeated calls"), self.note)

    def generator(self, purpose: str) -> Random:
        """Return a generator for one purpose, so that one part's draws do not move another's."""
        return Random(f"{self.seed} {purpose}")

    def clock(self, process: Process) -> SimulatedClock:
        """Return the clock of a process."""
        return SimulatedClock(self.loop, process)

    def note(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.loop.now_ns / SECOND_NS:12.3f} {text}")

    def fail(self, text: str) -> None:
        """Record that a promise is broken, and stop the run."""
        self.note(f"BROKEN: {text}")
        if self.broken is None:
            self.broken = Broken(text)
            self.broken.story = self.story
        raise self.broken


@contextmanager
def silence() -> Iterator[None]:
    """Drop all log lines of the suite and look for garbage rarely: both cost a sixth of a run, and bring nothing."""
    before, thresholds = structlog.get_config(), gc.get_threshold()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.set_threshold(_OBJECTS_BEFORE_A_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        structlog.configure(**before)
