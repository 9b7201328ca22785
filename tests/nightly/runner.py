"""What the rigs of campaigns run beside a test: threads that repeat a step, and processes that take orders as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from tests.paths import ROOT


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


class Worker:
    """Process ``python -m MODULE`` that reads an order a line from stdin and answers with a line; a context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, order: dict[str, Any]) -> None:
        """Send an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest order that has none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} has ended"
        return json.loads(line)

    def run(self, **order: Any) -> Any:
        """Send an order and return its answer."""
        self.send(order)
        return self.answer()

    def finish(self, seconds: float) -> str:
        """End stdin, wait for the process's end, and return what it printed."""
        output, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, self.process.args
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
