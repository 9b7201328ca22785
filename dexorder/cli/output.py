"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table

from dexorder.cli.sinks import Ends

_SHOWN = ("open_time", "open", "high", "low", "close", "volume")


def stdout() -> Console:
    """For results; made when used, so that a redirected stdout is the one written to."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=_width(sys.stdout))


def stderr() -> Console:
    """For progress and explanations."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True, width=_width(sys.stderr))


def print_json(value: Any) -> None:
    """One JSON value on stdout, indented."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def rows_table(ends: Ends) -> Table:
    """The rows that were kept, and how many lie between."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _SHOWN:
        table.add_column(name, justify="left" if name == "open_time" else "right", no_wrap=True)
    head, tail = ends.head, ends.tail
    assert head is not None and tail is not None  # an answer has at least one batch
    for row in head.select(_SHOWN).to_pylist():
        table.add_row(*map(_text, row.values()))
    if between := ends.count - head.num_rows - tail.num_rows:
        table.add_row(f"... {between:,} more", *[""] * (len(_SHOWN) - 1))
    for row in tail.select(_SHOWN).to_pylist():
        table.add_row(*map(_text, row.values()))
    return table


def plain_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table of text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _width(stream: IO[str]) -> int | None:
    """A file or a pipe has no width that tables should be folded to."""
    return None if stream.isatty() else 200


def _text(value: Any) -> str:
    if hasattr(value, "astimezone"):
        return str(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return f"{value:,.8g}" if isinstance(value, float) else str(value)
