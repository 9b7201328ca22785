"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

OUT_ENDINGS = (".parquet", ".csv")
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


def rows_json(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as JSON objects; times as UTC text, a value JSON has no number for as null."""
    return [{name: _plain(value) for name, value in row.items()} for row in rows.to_pylist()]


def rows_table(rows: pa.Table, most: int) -> Table:
    """At most ``most`` rows: all of them, or the first and the last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _SHOWN:
        table.add_column(name, justify="left" if name == "open_time" else "right", no_wrap=True)
    head = rows.num_rows if rows.num_rows <= most else (most + 1) // 2
    tail = 0 if rows.num_rows <= most else most - head
    for row in rows.select(_SHOWN).slice(0, head).to_pylist():
        table.add_row(*map(_text, row.values()))
    if head + tail < rows.num_rows:
        table.add_row(f"... {rows.num_rows - head - tail:,} more", *[""] * (len(_SHOWN) - 1))
    for row in rows.select(_SHOWN).slice(rows.num_rows - tail).to_pylist():
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


def check_out(file: Path | None) -> None:
    """Refuse a file whose ending names no format.

    Raises:
        ValueError: It is neither .parquet nor .csv, or its folder is not there.
    """
    if file is None:
        return
    if file.suffix.lower() not in OUT_ENDINGS:
        raise ValueError(f"--out {file} ends in neither {' nor '.join(OUT_ENDINGS)}")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"--out {file}: the folder {file.absolute().parent} is not there")


def write_out(rows: pa.Table, file: Path) -> None:
    """Write the rows as the file's ending says; the file appears complete or not at all."""
    import pyarrow.csv
    import pyarrow.parquet

    fresh = file.with_name(f".{file.name}.new")
    if file.suffix.lower() == ".csv":
        flat = [i for i, field in enumerate(rows.schema) if not pa.types.is_nested(field.type)]
        pyarrow.csv.write_csv(rows.select(flat), fresh)
    else:
        pyarrow.parquet.write_table(rows, fresh)
    fresh.replace(file)


def _width(stream: IO[str]) -> int | None:
    """A file or a pipe has no width that tables should be folded to."""
    return None if stream.isatty() else 200


def _plain(value: Any) -> Any:
    if hasattr(value, "astimezone"):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _text(value: Any) -> str:
    if hasattr(value, "astimezone"):
        return str(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return f"{value:,.8g}" if isinstance(value, float) else str(value)
