"""Options and arguments that several commands have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dexorder.cli.terminal.known_tickers import complete_ticker

_ONE_HYPHEN = re.compile(r"\A-(?=[A-Za-z]{2})")


class GoFlags(TyperCommand):
    """Command that passes flags of a Go program on: ``-name``, which would be the short options n, a, m and e."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give each such flag the second hyphen, with which it is one name."""
        return super().parse_args(ctx, [_ONE_HYPHEN.sub("--", each, count=1) for each in args])


def example(*lines: str) -> str:
    """Return the end of a command's help: commands to copy, each on its own line."""
    return "\b\n" + "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def choices(*names: str) -> Callable[[str], list[str]]:
    """Return the completion of a value that is one of ``names``."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_period(incomplete: str) -> list[str]:
    """Return the names of periods that start with this text."""
    from dexorder_common.model.periods import PERIOD_SECONDS

    return [name for name in PERIOD_SECONDS if name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", "-j", help="Print one JSON value to stdout")]
JsonLines = Annotated[bool, typer.Option("--json", "-j", help="Print one JSON object per line")]
Relay = Annotated[
    str | None,
    typer.Option(
        "--relay", "-r", help="host:port of the relay; default DEXORDER_RELAY, else the suite on this machine"
    ),
]
Ticker = Annotated[
    str,
    typer.Argument(
        help="SYMBOL.VENUE, for example BTC/USDT.BINANCE", show_default=False, autocompletion=complete_ticker
    ),
]
Period = Annotated[
    str, typer.Argument(help="Name (1m, 1h, 1d ...) or seconds", show_default=False, autocompletion=complete_period)
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", "-s", help="-30d, 2024-01-31, today, '3 days ago', ISO 8601 or seconds; rounded down to the period"
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", "-u", help="Like --since; exclusive; history: the last closed candle by default"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress")]
Plot = Annotated[Path | None, typer.Option("--plot", help="FILE.html for an interactive chart")]
Chart = Annotated[bool, typer.Option("--chart", help="Draw the candles in the terminal")]
Rows = Annotated[int, typer.Option("--rows", min=0, help="Number of rows to print")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File for the rows: .parquet, .csv, .jsonl, .arrow; - is stdout"),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format of --out: csv, jsonl, arrow, parquet; default: by its extension, csv on stdout",
        autocompletion=choices("csv", "jsonl", "arrow", "parquet"),
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="Write a file for freqtrade, nautilus or hftbacktest into the folder --out",
        autocompletion=choices("freqtrade", "nautilus", "hftbacktest"),
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of them")]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Exit after so many of them")]
Dir = Annotated[
    Path | None, typer.Option("--dir", "-d", help="Folder of the suite; default DEXORDER_DIR, else ./dexorder-data")
]


def split_periods(text: str) -> list[str]:
    """Return the names in a list that is separated by commas."""
    return [each.strip() for each in text.split(",") if each.strip()]
