"""One run: its seed, loop, network, story and the checks that a scenario makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.simulation.loop import SECOND_NS, Process, SimulatedClock, SimulatedLoop
from tests.simulation.network import Network


class Broken(AssertionError):
    """A promise that a run has found broken; its text is one line, the story is the run's."""


@dataclass
class Run:
    """Everything of one run. Equal seeds and equal code give equal stories, line for line."""

    seed: int
    loop: SimulatedLoop = field(default_factory=SimulatedLoop)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.network = Network(self.loop, self.generator("network"), self.note)

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
        raise Broken(text)
