"""Locks that give the tables one writer: one driver per checkpoint, and in it one batch or step at a time."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from services.common.clock import Clock, SystemClock
from services.common.model.errors import Conflict

log = structlog.get_logger(__name__)
_PAUSE_S = 0.2


class WriterLock:
    """Lock that lets either a batch or one step of maintenance commit to the tables, never both.

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


@contextmanager
def checkpoint_lock(checkpoint: str, *, timeout_seconds: float = 60.0) -> Iterator[Callable[[int], None]]:
    """Hold a lock on ``<checkpoint>.lock``; yield a function that records this driver's JVM for the next driver.

    Two drivers would append rows unknown to each other. The JVM of a killed driver survives for a moment and may finish
    a commit, so the next driver waits for its end. Checkpoints outside local files are not locked: there the cluster
    starts one driver.

    Raises:
        Conflict: Another driver holds the lock, or the previous driver's JVM does not end.
    """
    path = checkpoint.removeprefix("file://")
    if "://" in path:
        yield lambda pid: None
        return
    lock = Path(f"{path}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another driver uses the checkpoint; it holds {lock}") from None
        file.seek(0)
        _await_end_of(file.read().strip(), timeout_seconds)

        def record_jvm(pid: int) -> None:
            file.truncate(0)
            file.write(str(pid))
            file.flush()

        yield record_jvm


def _await_end_of(pid: str, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while pid and _is_java(pid):
        if time.monotonic() >= deadline:
            raise Conflict(f"the previous driver's JVM, process {pid}, still uses the checkpoint")
        log.info("waiting for the end of the previous driver's JVM", pid=pid)
        time.sleep(_PAUSE_S)


def _is_java(pid: str) -> bool:
    """Return whether the process runs and is a JVM; the id may have been reused."""
    try:
        return "java" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False
