"""Gateway that starts in 0.1 s as a fork of a warm process, for campaigns with hundreds of kills."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from services.common.config import split_address

READY_SECONDS = STOP_SECONDS = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CHANNELS = [f"services.gateway.events.channels.{name}" for name in ("email", "mobile_push", "web_push")]
_CONTEXT.set_forkserver_preload(
    ["services.gateway.server", "services.gateway.events.server", *_CHANNELS, "tests.integration.events.lives"]
)


class Forked:
    """Part of `tests.service_process.ServiceProcess` that campaigns need."""

    def __init__(self, folder: Path, environment: Mapping[str, str], address: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "gateway.log"
        self.process = _CONTEXT.Process(target=_live, args=(dict(environment), str(self.log_file)), daemon=True)
        self.process.start()
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                socket.create_connection(split_address(address), 1).close()
                return
            except OSError:
                assert self.process.is_alive() and time.monotonic() < deadline, self.tail()
                time.sleep(0.005)

    @property
    def lives(self) -> bool:
        """Return whether it runs."""
        return self.process.is_alive()

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log_file.read_text(errors="replace")[-3000:] if self.log_file.exists() else ""

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; return the exit status."""
        self.process.terminate()
        self.process.join(STOP_SECONDS)
        assert self.process.exitcode is not None, self.tail()
        return self.process.exitcode

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.join()


def _live(environment: dict[str, str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    runpy.run_module("services.gateway", run_name="__main__")
