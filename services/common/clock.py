"""Time as a dependency: drivers pass a clock in, rules take ``now_ns``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: the wall's for records people read, a monotonic one for leases and timeouts."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch; may jump."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clock."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since boot."""
        return time.monotonic_ns()


class ManualClock:
    """A clock that stands still until it is told to move; for tests."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = 0

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, as set."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds advanced so far."""
        return self._monotonic_ns

    def advance(self, ns: int) -> None:
        """Move both times on by ``ns`` nanoseconds."""
        self._wall_ns += ns
        self._monotonic_ns += ns
