"""Entry point of the relay: ``python -m services.relay``."""

from __future__ import annotations

from functools import partial

from services.common.config import load_settings
from services.common.lake.catalog import CatalogSettings
from services.common.rpc.lifecycle import run
from services.relay.config import RelaySettings
from services.relay.server import serve


def main() -> None:
    """Read the environment and serve until SIGTERM."""
    settings, catalog = load_settings(RelaySettings), load_settings(CatalogSettings)
    run("relay", settings, partial(serve, settings, catalog))


if __name__ == "__main__":
    main()
