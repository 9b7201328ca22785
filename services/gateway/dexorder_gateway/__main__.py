"""``python -m dexorder_gateway``: serve KafkaPixy, and user events if they have an outbox, until SIGTERM."""

from __future__ import annotations

from dexorder_common.config import load_settings
from dexorder_common.rpc.lifecycle import run
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.server import main

if __name__ == "__main__":
    settings, events = load_settings(GatewaySettings), load_settings(EventsSettings)
    run("gateway", settings, lambda: main(settings, events))
