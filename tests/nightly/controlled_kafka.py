"""Broker that a campaign stops and starts again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.rig.kafka import RunningKafka
from tests.rig.processes import free_block


class ControlledKafka:
    """Broker without a supervisor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        port = free_block(2)  # ports that no other process gets while Kafka is down
        self.broker = RunningKafka(folder, (port, port + 1))

    @property
    def address(self) -> str:
        """``bootstrap.servers``; does not change."""
        return self.broker.bootstrap

    def kill(self) -> None:
        self.broker.stop(signal.SIGKILL)

    def start(self) -> float:
        self.broker = RunningKafka(self._folder, (self.broker.port, self.broker.port + 1))
        return time.monotonic()

    def freeze(self) -> None:
        self.broker.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> float:
        self.broker.process.send_signal(signal.SIGCONT)
        return time.monotonic()

    @property
    def modes(self) -> dict[str, tuple[Callable[[], None], Callable[[], float]]]:
        """Two ways to stop and to resume it; resuming returns the monotonic second at which it was available."""
        return {"SIGSTOP": (self.freeze, self.thaw), "SIGKILL": (self.kill, self.start)}
