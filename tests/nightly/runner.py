"""What the rigs of campaigns run beside a test: threads that repeat a step; and the memory of processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self


class Loop:
    """Thread that repeats ``step`` until it is stopped, then runs ``last``; its error fails the test."""

    PAUSE_S = 0.02

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)
        self._error: BaseException | None = None

    def step(self) -> None:
        """Run one iteration."""
        raise NotImplementedError

    def last(self) -> None:
        """Run at the end."""

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
            self.last()
        except BaseException as error:
            self._error = error

    def pause(self) -> None:
        """Wait for a moment, or until the thread is stopped."""
        self._stopping.wait(self.PAUSE_S)

    def start(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def check(self) -> None:
        """Raise if the thread has failed."""
        assert self._error is None, self._error

    def stop(self) -> None:
        """Stop the thread, wait for its end, and raise if it has failed."""
        self._stopping.set()
        self._thread.join()
        self.check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
