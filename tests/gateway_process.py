"""Gateways as processes of their own, for tests that send signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from dexorder.supervisor import child
from tests.fixtures_gateway import GatewayUser, until

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = STOP_SECONDS = 120.0
StartProcess = Callable[..., "GatewayProcess"]


class GatewayProcess(GatewayUser):
    """``python -m services.gateway``, which dies with us.

    Args:
        folder: Gets its log; nobody else's.
        settings: As in GatewaySettings.
    """

    def __init__(self, folder: Path, kafka: str, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "gateway.log"
        values = {
            "kafka": kafka, "listen": "127.0.0.1:0", "metrics_listen": "", "topics": "", "new_group_start": "earliest",
            **settings,
        }  # fmt: skip
        environment = {f"DEXORDER_GATEWAY_{name.upper()}": str(value) for name, value in values.items()}
        command = [sys.executable, "-I", "-S", child.__file__, str(os.getpid())]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "services.gateway"], cwd=ROOT, stdout=log, stderr=log,
                env=os.environ | environment | {"DEXORDER_LOG_FORMAT": "json"},
            )  # fmt: skip
        try:
            until(lambda: bool(self.logged("listening")) or self.process.poll() is not None, START_SECONDS, self.tail)
            assert self.process.poll() is None, self.tail()
            self.connect(self.logged("listening")[0]["address"])
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log's records of that event."""
        lines = self.log_file.read_text(errors="replace").split("\n")[:-1]
        records = (json.loads(line) for line in lines if line.startswith("{"))
        return [record for record in records if record.get("event") == event]

    def tail(self) -> str:
        """The end of its log, for the message of a failure."""
        return self.log_file.read_text(errors="replace")[-3000:]

    def begin_stop(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait until the process is over; its exit status."""
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the gateway does not end\n{self.tail()}") from None
        finally:
            self._channel.close()

    def stop(self) -> int:
        """SIGTERM, and wait for the end; the exit status."""
        self.begin_stop()
        return self.ended()

    def kill(self) -> None:
        """SIGKILL; does nothing to one that has ended."""
        self.process.kill()
        self.process.wait()
        self._channel.close()
