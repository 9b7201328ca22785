"""Printing and writing of rows as the options of ``history`` and ``read`` ask for it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from dexorder.cli.history.runs import STDOUT, OutputOptions
from dexorder.cli.rows.sinks import Ends, FileRows, JsonRows, check_out, file_rows
from dexorder.cli.terminal import output
from dexorder.rows.table import Rows


def check_options(options: OutputOptions, *, many: bool = False) -> None:
    """Raise ValueError if a file can't be written or two options contradict each other."""
    check_out(options, many=many)
    if options.plot is not None and options.plot.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--plot {options.plot}: unknown extension; use .html")
    if options.as_json and options.chart:
        raise ValueError("--chart can't be combined with --json; use --plot FILE.html")


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
            out.print(output.rows_table(ends))
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
