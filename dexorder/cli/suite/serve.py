"""``dexorder serve PART``: one part of the suite in this process."""

from __future__ import annotations

import runpy
import sys

import typer

from dexorder.cli.terminal.reporting import missing_package
from dexorder.errors import DexorderError

PARTS = {
    "relay": ("dexorder_relay", "relay"),
    "ingestor": ("dexorder_ingestor", "ingestor"),
    "gateway": ("dexorder_gateway", "gateway"),
    "udsource": ("dexorder_udsource", "udsource"),
    "spark": ("dexorder_spark", "driver"),
    "sim": ("dexorder_exchange_sim", "ingestor"),
}
"""Module of each part, which ``python -m`` runs as well, and the extra of the package that brings what it imports."""


def serve(part: str) -> None:
    """Run the part until SIGTERM; invalid settings end the process, with one line for each.

    Raises:
        typer.BadParameter: There is no such part.
        DexorderError: A package that the part imports is not installed.
    """
    if part not in PARTS:
        raise typer.BadParameter(f"{part!r} is not one of {', '.join(PARTS)}", param_hint="PART")
    module, extra = PARTS[part]
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if (advice := missing_package(error, extra)) is None:
            raise
        raise DexorderError(f"the {part} can't run: {advice}") from None
