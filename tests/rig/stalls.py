"""A machine that stops: while a test runs, all its processes stand still for some seconds, as on a host without a core.

    .venv/bin/python -m pytest -p tests.rig.stalls ...

A test that fails only then depends on how fast the machine is. Each test that runs long enough is stopped once, at a
moment drawn from the seed; ``DEXORDER_STALL_SECONDS`` and ``DEXORDER_STALL_SEED`` set how long and which.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

SECONDS = float(os.environ.get("DEXORDER_STALL_SECONDS", "3"))
SEED = os.environ.get("DEXORDER_STALL_SEED", "0")
MOMENTS = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds after a test's start at which it may be stopped."""


class Stalls:
    """Plugin of a process that runs tests; its helper process stops it and all that it has started."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        self._helper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterable[None]:
        """Tell the helper when a test begins and ends."""
        self._tell(item.nodeid.partition("@")[0])
        try:
            return (yield)
        finally:
            self._tell("")

    def pytest_unconfigure(self) -> None:
        """End the helper."""
        if self._helper.stdin is not None:
            self._helper.stdin.close()
        self._helper.wait()

    def _tell(self, running: str) -> None:
        if self._helper.stdin is not None:
            self._helper.stdin.write(f"{running}\n".encode())
            self._helper.stdin.flush()


def pytest_configure(config: pytest.Config) -> None:
    """Stall what runs tests: each of xdist's workers, or this process if there are none."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Stalls())


def stall(tests: int) -> None:
    """Read from standard input which test begins, or an empty line when one ends; stop the tests' process once in each.

    Args:
        tests: The process that runs them.
    """
    due_s: float | None = None
    rest = b""
    while True:
        wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        if select([0], [], [], wait_s)[0]:
            read = os.read(0, 65_536)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            if lines:
                due_s = time.monotonic() + moment_of(lines[-1].decode()) if lines[-1] else None
        elif due_s is not None:
            due_s = None
            stand_still(tests)


def moment_of(test: str) -> float:
    """Return after how many seconds a test is stopped."""
    return random.Random(f"{SEED} {test}").choice(MOMENTS)


def stand_still(root: int) -> None:
    """Stop a process and its descendants, but for this one, for SECONDS."""
    stopped = [each for each in (root, *descendants(root)) if each != os.getpid()]
    for signal_, pause_s in ((signal.SIGSTOP, SECONDS), (signal.SIGCONT, 0.0)):
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal_)
        time.sleep(pause_s)


def descendants(root: int) -> list[int]:
    """Return the processes below a process."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            children[int((folder / "stat").read_text().rpartition(")")[2].split()[1])].append(int(folder.name))
    found, at = [root], 0
    while at < len(found):
        found += children[found[at]]
        at += 1
    return found[1:]


if __name__ == "__main__":
    stall(int(sys.argv[1]))
