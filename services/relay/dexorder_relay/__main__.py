"""Entry point of the relay: ``python -m dexorder_relay``."""

from __future__ import annotations

from functools import partial

from dexorder_common.config import load_settings
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.rpc.lifecycle import run
from dexorder_relay.config import RelaySettings
from dexorder_relay.server import serve


def main() -> None:
    """Read the environment and serve until SIGTERM."""
    settings, catalog = load_settings(RelaySettings), load_settings(CatalogSettings)
    run("relay", settings, partial(serve, settings, catalog))


if __name__ == "__main__":
    main()
