"""Services as separate processes, for tests that send signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dexorder.supervisor.orphan_guard import guarded
from tests.fixtures_gateway import until
from tests.paths import ROOT

START_SECONDS = STOP_SECONDS = 120.0


class ServiceProcess:
    """Process ``python -m MODULE`` that dies with this one; a context manager that kills it. For the main thread.

    Args:
        folder: Gets its log; nobody else's.
        environment: Variables beside our own.
    """

    def __init__(self, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = module.rpartition(".")[2]
        self.log_file = folder / f"{self.name}.log"
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*guarded(), sys.executable, "-m", module],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {**environment, "DEXORDER_LOG_FORMAT": "json"},
            )
        try:
            until(lambda: bool(self.logged("listening")) or self.process.poll() is not None, START_SECONDS, self.tail)
            assert self.process.poll() is None, self.tail()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def listens_at(self) -> str:
        """Return host:port of its gRPC server."""
        return str(self.logged("listening")[0]["address"])

    @property
    def lives(self) -> bool:
        """Return whether it runs."""
        return self.process.poll() is None

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log records of an event."""
        lines = self.log_file.read_text(errors="replace").split("\n")[:-1]
        records = (json.loads(line) for line in lines if line.startswith("{"))
        return [record for record in records if record.get("event") == event]

    def tail(self) -> str:
        """Return the last lines of its log, for the message of a failure."""
        return self.log_file.read_text(errors="replace")[-3000:]

    def begin_stop(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for the end of the process and return its exit status."""
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.tail()}") from None

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        self.begin_stop()
        return self.ended()

    def kill(self) -> None:
        """Send SIGKILL to the process without its children, unless it has ended."""
        self.process.kill()
        self.process.wait()
