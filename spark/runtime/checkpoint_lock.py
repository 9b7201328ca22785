"""Lock that gives a checkpoint to one driver. Two drivers would append rows that neither of them can see yet.

The JVM of a killed driver survives for a moment and may finish a commit. So the lock's file records its process id, and
the next driver waits for its end. Checkpoints outside local files are not locked: there the cluster starts one driver.
"""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from services.common.model.errors import Conflict

log = structlog.get_logger(__name__)
_PAUSE_S = 0.2


class CheckpointLock:
    """Context manager that holds a lock on ``<checkpoint>.lock``."""

    def __init__(self, checkpoint: str, *, timeout_seconds: float = 60.0) -> None:
        path = checkpoint.removeprefix("file://")
        self._path = None if "://" in path else Path(f"{path}.lock")
        self._patience_seconds = timeout_seconds
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Acquire the lock.

        Raises:
            Conflict: Another driver holds it, or the previous driver's JVM does not end.
        """
        if self._path is None:
            return self
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            self._await_end_of(self._file.read().strip())
        except BlockingIOError:
            self._file.close()
            raise Conflict(f"another driver uses the checkpoint; it holds {self._path}") from None
        except Conflict:
            self._file.close()
            raise
        return self

    def record_jvm(self, pid: int) -> None:
        """Record this driver's JVM for the next driver."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(str(pid))
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _await_end_of(self, pid: str) -> None:
        deadline = time.monotonic() + self._patience_seconds
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
