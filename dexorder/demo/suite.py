"""The demonstration's suite: ``dexorder up`` on free ports in a separate process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

from dexorder.cli.terminal import output
from dexorder.errors import SuiteFailed
from dexorder.supervisor.orphan_guard import guarded
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import ports_in_use
from dexorder.supervisor.state import PartState, read_state

READY_SECONDS = 240.0
STOP_SECONDS = 120.0
TAIL_LINES = 15
MARKER = "DEXORDER_DEMO_RUN"
"""Environment variable that every process of the demo inherits; it identifies processes that are left behind."""


@contextmanager
def running_suite(options: SuiteOptions, marker: str) -> Iterator[None]:
    """Run ``dexorder up`` for the block, which starts when all are ready; SuiteFailed if they do not start or stop."""
    command = [*guarded(), sys.executable, "-m", "dexorder", "up", "--dir", str(options.directory)]
    command += ["--base-port", str(options.ports.relay)]
    # In its own session, so that Ctrl-C reaches only this process, which then stops the suite in order.
    suite = subprocess.Popen(command, env={**os.environ, MARKER: marker}, start_new_session=True)
    try:
        wait_ready(suite, options)
        yield
    finally:
        if suite.poll() is None:
            suite.send_signal(signal.SIGTERM)
        try:
            suite.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            suite.kill()  # its orphan guard kills the rest
            suite.wait()
            raise SuiteFailed(f"the suite did not stop within {STOP_SECONDS:g} s and was killed") from None


def wait_ready(suite: subprocess.Popen[bytes], options: SuiteOptions) -> None:
    """Wait until every part is ready; fail as soon as one is failing."""
    deadline = time.monotonic() + READY_SECONDS
    parts: Mapping[str, PartState] = {}
    while time.monotonic() < deadline:
        if (code := suite.poll()) is not None:
            raise SuiteFailed(f"`dexorder up` ended with exit code {code}")
        now = read_state(options.directory)
        parts = now.parts if now is not None and now.pid == suite.pid else {}
        if len(parts) == len(options.parts) and all(part.state == "ready" for part in parts.values()):
            return
        if failing := [name for name, part in parts.items() if part.state == "failing"]:
            show_logs(options, failing)
            raise SuiteFailed(f"{', '.join(failing)} can't run: {parts[failing[0]].detail}")
        time.sleep(0.1)
    late = {name: part for name, part in parts.items() if part.state != "ready"}
    show_logs(options, tuple(late))
    reasons = "; ".join(f"{name}: {part.detail or part.state}" for name, part in late.items())
    raise SuiteFailed(f"not ready after {READY_SECONDS:g} s: {reasons}")


def show_logs(options: SuiteOptions, parts: tuple[str, ...] | list[str]) -> None:
    """Show the last lines of the parts' logs on stderr."""
    for name in parts:
        with suppress(FileNotFoundError):
            lines = (options.directory / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
            say(f"--- last lines of {name}'s log")
            for line in lines[-TAIL_LINES:]:
                say(f"    {line}")


def free_base_port() -> int:
    """Return the start of a block of free ports below the ephemeral range."""
    for _ in range(200):
        base = random.randrange(15_000, 30_000, len(fields(Ports)))  # noqa: S311 - no secret
        if not ports_in_use(SuiteOptions(Path(), Ports.from_base(base))):
            return base
    raise SuiteFailed("found no block of free ports between 15000 and 30000")


def processes_marked(marker: str) -> list[int]:
    """Return the processes with the marker in their environment; none on a system without /proc."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def say(text: str) -> None:
    """Print a line on stderr, in order with the command's own output there."""
    output.stderr().print(text, markup=False)
