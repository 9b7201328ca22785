"""Entry point of the relay: ``python -m dexorder.services.relay``."""

from __future__ import annotations

from functools import partial

from dexorder.services.common.config import load_settings
from dexorder.services.common.lake.catalog import CatalogSettings
from dexorder.services.common.rpc.lifecycle import run
from dexorder.services.relay.config import RelaySettings
from dexorder.services.relay.server import serve


def main() -> None:
    """Read the environment and serve until SIGTERM."""
    settings, catalog = load_settings(RelaySettings), load_settings(CatalogSettings)
    run("relay", settings, partial(serve, settings, catalog))


if __name__ == "__main__":
    main()
