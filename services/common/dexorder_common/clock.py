"""Clocks: drivers receive one, pure rules take ``now_ns``. Random waits between attempts, from a generator."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Protocol


class Clock(Protocol):
    """Source of wall time, for records that people read, and of monotonic time, for leases and timeouts."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch; may jump."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary start; never decreases."""


class SystemClock:
    """Clock of the machine."""

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds since boot."""
        return time.monotonic_ns()


class ManualClock:
    """Clock that moves only when told to; for tests."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = 0

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch, as set."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Return the nanoseconds that it has advanced."""
        return self._monotonic_ns

    def advance(self, ns: int) -> None:
        """Advance both times by ``ns`` nanoseconds."""
        self._wall_ns += ns
        self._monotonic_ns += ns


class Attempt(Protocol):
    """tenacity's state of a repeated call."""

    attempt_number: int


_DOUBLINGS = 60


def random_wait(random: Random, first_seconds: float, longest_seconds: float) -> Callable[[Attempt], float]:
    """Return the waits for tenacity: each is random, below a limit that doubles from ``first_seconds`` on."""

    def wait(attempt: Attempt) -> float:
        doubled = first_seconds * 2.0 ** min(attempt.attempt_number - 1, _DOUBLINGS)
        return random.uniform(0.0, min(longest_seconds, doubled))

    return wait
