"""The ``dexorder`` command: its entry point, and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value to stdout")]
Relay = Annotated[
    str | None, typer.Option(help="host:port of the relay; default DEXORDER_RELAY, else the suite on this machine")
]
Ticker = Annotated[str, typer.Argument(help="SYMBOL.VENUE, for example BTC/USDT.BINANCE")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line")]


def main() -> None:
    """Run the command of this process. Exits with the command's exit code."""
    from dexorder.cli.app import app  # deferred: a module that imports helpers of the package does not need the command

    app()
