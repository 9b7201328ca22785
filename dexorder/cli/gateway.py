"""``dexorder gateway``: the gateway alone, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.common.config import load_settings
from services.common.rpc import lifecycle
from services.gateway.config import GatewaySettings
from services.gateway.server import main


def run(pixy_config: Path | None) -> None:
    """Until SIGTERM or Ctrl-C. Settings that can't be used end the process, each with its line."""
    given: dict[str, Any] = {} if pixy_config is None else {"pixy_config": pixy_config}
    settings = load_settings(GatewaySettings, **given)
    lifecycle.run("gateway", settings, lambda: main(settings))
