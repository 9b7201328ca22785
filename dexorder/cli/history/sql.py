"""``dexorder sql``: a query over stored rows."""

from __future__ import annotations

import sys
from typing import Any

from dexorder.cli.rows.options import STDOUT, OutputOptions
from dexorder.cli.rows.sinks import JsonRows, file_rows
from dexorder.cli.terminal import output
from dexorder.client.blocking import Client


def sql(
    query: str, since: str | None, until: str | None, max_rows: int, options: OutputOptions, relay: str | None
) -> None:
    """Print the answer as a table or JSON, or write it to a file."""
    text = sys.stdin.read() if query == "-" else query
    with Client(relay, on_note=lambda note: output.stderr().print(note)) as client:
        found = client.sql(text, since, until, max_rows=max_rows)
    if options.out is not None:
        with file_rows(options) as sink:
            sink.write(found)
    if options.as_json:
        printed = JsonRows(sys.stdout.buffer, {"row_count": found.num_rows})
        printed.write(found)
        printed.finish()
    elif options.out != STDOUT:
        shown = found.slice(0, options.rows)
        rows = ([_text(value) for value in row.values()] for row in shown.to_pylist())
        output.stdout().print(output.plain_table(found.column_names, rows))
        if more := found.num_rows - shown.num_rows:
            output.stderr().print(f"{more:,} more rows; --rows prints more, --out writes all")


def _text(value: Any) -> str:
    return "" if value is None else str(value)
