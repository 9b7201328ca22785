"""``python -m services.gateway``: serve Kafka as KafkaPixy until SIGTERM."""

from __future__ import annotations

from services.common.config import load_settings
from services.common.lifecycle import run
from services.gateway.config import GatewaySettings
from services.gateway.server import main

if __name__ == "__main__":
    settings = load_settings(GatewaySettings)
    run("gateway", settings, lambda: main(settings))
