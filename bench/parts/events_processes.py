"""Processes of ``bench.events``: a gateway, the raw references, the peers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.parts.events_load import Measured
from bench.parts.pixy_processes import Server, running
from tests.paths import ROOT
from tests.rig.events_gateway import EventsGateway, Keys

MUCH = {"soft_events_per_second": 1e9, "hard_events_per_second": 1e9, "queued_events": 1_000_000_000}


def gateway(folder: Path) -> EventsGateway:
    """Return a gateway without CURVE and quotas, not started, that tolerates slow sessions."""
    keys = Keys(folder / "keys")
    keys.local(quota=MUCH)
    keys.write()
    return EventsGateway(
        folder,
        keys,
        curve=False,
        log_level="info",
        session_queue=10_000_000,
        sessions_per_user=1_000,
        jwt_max_seconds=100_000,
    )


class Raw:
    """Process of a raw reference, and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.address = process.stdout.readline().strip()
        self.server = Server(self.address, process.pid)

    def say(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def raw(kind: str, folder: Path) -> Iterator[Raw]:
    """Run one of the raw references."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.parts.events_raw", kind, str(folder)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Raw(process)
    finally:
        process.kill()
        process.communicate()


class Load:
    """Process of the peers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, job: str, **order: Any) -> None:
        """Begin a job; `end` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **order}) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Return its next line; empty if it has ended, with the reason on stderr."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> Measured:
        """Return the result of the job."""
        answer = self.line()
        if not answer:
            raise AssertionError("the peers' process failed")
        return Measured(**json.loads(answer))

    def run(self, job: str, **order: Any) -> Measured:
        """Begin a job and wait for its result."""
        self.begin(job, **order)
        return self.end()


@contextmanager
def load() -> Iterator[Load]:
    """Run peers that wait for jobs."""
    with running("-m", "bench.parts.events_load") as process:
        yield Load(process)
