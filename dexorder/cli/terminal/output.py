"""Printing: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dexorder_common.model.periods import count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso

_PADDING = re.compile(r"[ \t]+(?=\n)")


class SafeConsole(Console):
    """Console that prints other people's text as it is: markup is text, and control characters are escapes.

    Ids and the texts of exchanges must not move the cursor, change a colour or hide a part of a line. Rich renders
    every line, cell and bar with ``render``, so that no text passes by it.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render with `escaped` text; what Rich itself sends to the terminal is not text."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escaped(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def stdout() -> Console:
    """Return the console for results; created at each use, as stdout may have been redirected."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for progress and explanations."""
    return _console(sys.stderr)


class _WithoutPadding:
    """Stream that drops blanks at the ends of lines, with which Rich fills the last column of a table."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", "utf-8")

    def write(self, text: str) -> int:
        """Write text; a line arrives whole."""
        return self._stream.write(_PADDING.sub("", text))

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def _console(stream: IO[str]) -> Console:
    file: Any = stream if stream.isatty() else _WithoutPadding(stream)
    return SafeConsole(file=file, highlight=False, soft_wrap=True, markup=False, emoji=False, width=_width(stream))


def escaped(text: str) -> str:
    """Return text with escapes for control characters, except for ends of lines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def print_failure(error: Exception | str) -> None:
    """Print why the command failed in one line on stderr."""
    stderr().print(f"dexorder: {error}")


def print_json(value: Any) -> None:
    """Print one JSON value, indented."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Print one JSON value in one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def safe(cell: str | Text) -> Text:
    """Return text of a cell. Rich measures its width before the console escapes it."""
    return cell if isinstance(cell, Text) else Text(escaped(cell))


def plain_table(columns: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Return a table of text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(safe, row))
    return table


def fields_table(lines: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a table of the names and values of one record."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(*map(safe, line))
    return table


def range_cells(span: TimeRange, period_seconds: int) -> tuple[str, str, str]:
    """Return a range as cells: its start, its end and the number of its periods."""
    return iso(span.start_ns), iso(span.end_ns), f"{count_periods(span, period_seconds):,}"


def _width(stream: IO[str]) -> int | None:
    """Return the width for a file or a pipe, so that tables are not folded; None for a terminal."""
    return None if stream.isatty() else 200
