"""``python -m dexorder.services.gateway``: serve KafkaPixy, and user events if they have an outbox, until SIGTERM."""

from __future__ import annotations

from dexorder.services.common.config import load_settings
from dexorder.services.common.rpc.lifecycle import run
from dexorder.services.gateway.config import GatewaySettings
from dexorder.services.gateway.events.config import EventsSettings
from dexorder.services.gateway.server import main

if __name__ == "__main__":
    settings, events = load_settings(GatewaySettings), load_settings(EventsSettings)
    run("gateway", settings, lambda: main(settings, events))
