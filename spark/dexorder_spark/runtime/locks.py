"""Locks that let one batch or one step of maintenance at a time commit to a table in a driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dexorder_common.clock import Clock, SystemClock


class WriterLock:
    """Lock that lets either a batch or one step of maintenance commit to a table, never both.

    A batch waits for at most one step, the running one; a step waits for every batch that has arrived, so batches have
    priority. Under load a step acquires the lock between two batches, while Spark writes its commit log.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._free = threading.Condition()
        self._batches = 0
        self._busy = False
        self._idle_since_ns = self._clock.monotonic_ns()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold the lock for one micro-batch."""
        with self._free:
            self._batches += 1
            self._free.wait_for(lambda: not self._busy)
            self._busy = True
        try:
            yield
        finally:
            with self._free:
                self._batches -= 1
                self._busy = False
                self._idle_since_ns = self._clock.monotonic_ns()
                self._free.notify_all()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Hold the lock for one bounded step of maintenance."""
        with self._free:
            self._free.wait_for(lambda: not self._busy and not self._batches)
            self._busy = True
        try:
            yield
        finally:
            with self._free:
                self._busy = False
                self._free.notify_all()

    def idle_ns(self) -> int:
        """Return the nanoseconds since the last batch ended; 0 while one runs or waits."""
        with self._free:
            return 0 if self._batches else self._clock.monotonic_ns() - self._idle_since_ns


class WriterLocks:
    """Lock of each table, by name."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._locks: dict[str, WriterLock] = {}
        self._creating = threading.Lock()

    def of(self, name: str) -> WriterLock:
        """Return the table's lock, always the same one."""
        with self._creating:
            return self._locks.setdefault(name, WriterLock(self._clock))
