"""Printing and writing of rows as the options of ``history`` and ``read`` ask for it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC
from typing import Any

from rich import box
from rich.table import Table

from dexorder.cli.rows.options import STDOUT, OutputOptions
from dexorder.cli.rows.sinks import Ends, FileRows, JsonRows, file_rows
from dexorder.cli.terminal import output
from dexorder.rows.table import Rows

_SHOWN = ("open_time", "open", "high", "low", "close", "volume")


async def print_rows(options: OutputOptions, batches: AsyncIterator[Rows], head: dict[str, Any], summary: str) -> None:
    """Write the rows where the options say, with ``head`` beside them in JSON and ``summary`` below them in text.

    If the rows themselves go to stdout, the text goes to stderr.
    """
    err, is_piped = output.stderr(), options.out == STDOUT
    out = err if is_piped else output.stdout()
    ends = Ends(options.rows)
    kept: list[Rows] | None = [] if options.chart or options.plot else None  # a chart needs all rows at once
    with ExitStack() as files:
        sinks: list[Ends | FileRows | JsonRows] = [ends]
        if options.out is not None:
            sinks.append(files.enter_context(file_rows(options)))
        if options.as_json:
            sinks.append(printed := JsonRows(sys.stdout.buffer, head))
        async for batch in batches:
            for sink in sinks:
                sink.write(batch)
            if kept is not None:
                kept.append(batch)
        if options.as_json:
            printed.finish()
    whole = None if kept is None else Rows.concat(kept)
    if not options.as_json:
        if options.rows and not is_piped:
            out.print(_rows_table(ends))
        if options.chart and whole is not None:
            from dexorder.charts.text import candle_chart

            out.print(candle_chart(whole, width=min(out.width, 110)))
        out.print(summary)
    if options.out is not None and not is_piped:
        err.print(f"rows: {options.out}")
    if options.plot is not None and whole is not None:
        from dexorder.charts.html import write_html

        write_html(whole, options.plot)
        err.print(f"chart: {options.plot}")


def print_table(
    options: OutputOptions,
    rows: Rows,
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], tuple[str, ...]],
    times: Sequence[str],
    summary: str,
) -> None:
    """Write rows of a dataset without periods where the options say, as JSON or as a table of their ``cells``.

    Args:
        times: Columns of times, which JSON has as ISO text.
        summary: Printed on stderr below the table.
    """
    is_piped = options.out == STDOUT
    if options.out is not None:
        with file_rows(options) as sink:
            sink.write(rows)
        if not is_piped:
            output.stderr().print(f"rows: {options.out}")
    values = rows.to_pylist()
    if options.as_json:
        iso_times = [{name: row[name] and row[name].isoformat() for name in times} for row in values]
        output.print_json([row | each for row, each in zip(values, iso_times, strict=True)])
        return
    if not is_piped:
        output.stdout().print(output.plain_table(columns, map(cells, values)))
    output.stderr().print(summary)


def _rows_table(ends: Ends) -> Table:
    """Return a table of the kept rows, with the number of rows between them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _SHOWN:
        table.add_column(name, justify="left" if name == "open_time" else "right", no_wrap=True)
    head, tail = ends.head, ends.tail
    assert head is not None and tail is not None  # every result has at least one batch
    for row in head.select(_SHOWN).to_pylist():
        table.add_row(*map(_text, row.values()))
    if between := ends.count - head.num_rows - tail.num_rows:
        table.add_row(f"... {between:,} more")
    for row in tail.select(_SHOWN).to_pylist():
        table.add_row(*map(_text, row.values()))
    return table


def _text(value: Any) -> str:
    if hasattr(value, "astimezone"):
        return str(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return f"{value:,.8g}" if isinstance(value, float) else str(value)
