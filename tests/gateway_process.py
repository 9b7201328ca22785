"""Gateways as separate processes, for tests that send signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gateway_thread import GatewayUser
from tests.rig.processes import ServiceProcess

StartProcess = Callable[..., "GatewayProcess"]


class GatewayProcess(ServiceProcess, GatewayUser):
    """Process ``python -m dexorder_gateway`` that dies with this one.

    Args:
        folder: Gets its log; nobody else's.
        settings: As in GatewaySettings.
    """

    def __init__(self, folder: Path, kafka: str, **settings: Any) -> None:
        values = {
            "kafka": kafka,
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "topics": "",
            "new_group_start": "earliest",
            **settings,
        }
        environment = {f"DEXORDER_GATEWAY_{name.upper()}": str(value) for name, value in values.items()}
        super().__init__("dexorder_gateway", folder, environment)
        self.connect(self.listens_at)

    def ended(self) -> int:
        """Wait for the end of the process and return its exit status."""
        try:
            return super().ended()
        finally:
            self._channel.close()

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        super().kill()
        self._channel.close()
