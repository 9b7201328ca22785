"""Outputs of a UDF as files: rows of Parquet, CSV, Arrow or JSON lines, and an HTML page with a line for each field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from arro3.core import Array, DataType, Table

from dexorder.cli.rows.options import OutputOptions, check_options
from dexorder.cli.rows.sinks import file_rows
from dexorder.errors import DexorderError, RequestRefused
from dexorder.rows.table import Rows
from dexorder_udf.points import Batch, Point, Value

MOST_ROWS = 5_000_000
"""Rows of a file, which are in memory until its columns are known: every field of every point."""


def output_options(out: Path | None, plot: Path | None) -> OutputOptions:
    """Return the options; RequestRefused if a file can't be written."""
    options = OutputOptions(out=out, plot=plot)
    try:
        check_options(options)
    except ValueError as error:
        raise RequestRefused(str(error)) from None
    return options


class OutputTable:
    """Outputs as rows with a time, a name, and a column for each tag and field. A field is null where it is missing."""

    def __init__(self) -> None:
        self._rows: list[Point] = []
        self._names: list[str] = []

    def add(self, outputs: Sequence[Point | Batch]) -> None:
        """Take outputs. The outputs of a batch carry its name and its tags too."""
        for point, name in flat(outputs):
            if len(self._rows) >= MOST_ROWS:
                raise DexorderError(f"--out takes at most {MOST_ROWS:,} rows; use --json and redirect stdout")
            self._rows.append(point)
            self._names.append(name)

    def rows(self) -> Rows:
        """Return all rows."""
        tags = sorted({name for point in self._rows for name in point.tags})
        fields = sorted({name for point in self._rows for name in point.fields})
        columns = {
            "time": Array([point.time_ns // 1_000 for point in self._rows], DataType.int64()),
            "name": Array(self._names, DataType.string()),
        }
        columns["time"] = columns["time"].cast(DataType.timestamp("us", tz="UTC"))
        for tag in tags:
            columns[_fresh(tag, columns)] = Array([point.tags.get(tag) for point in self._rows], DataType.string())
        for field in fields:
            columns[_fresh(field, columns)] = _column([point.fields.get(field) for point in self._rows])
        return Rows(Table.from_pydict(columns))

    def save(self, options: OutputOptions) -> None:
        """Write the files that the options name."""
        rows = self.rows()
        if options.out is not None:
            with file_rows(options) as sink:
                sink.write(rows)
        if options.plot is not None:
            from dexorder.charts.lines import write_lines

            write_lines(dict(self._lines()), options.plot)

    def _lines(self) -> Iterator[tuple[str, list[tuple[int, float]]]]:
        lines: dict[str, list[tuple[int, float]]] = {}
        for point in self._rows:
            group = point.tags.get("ticker") or ",".join(point.tags.values())
            for field, value in point.fields.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    lines.setdefault(f"{group} {field}".strip(), []).append((point.time_ns, float(value)))
        yield from islice(lines.items(), 50)


def flat(outputs: Sequence[Point | Batch]) -> Iterator[tuple[Point, str]]:
    """Yield the points with their names."""
    for each in outputs:
        if isinstance(each, Batch):
            for point in each.points:
                yield Point(point.time_ns, {**each.tags, **point.tags}, point.fields), each.name
        else:
            yield each, each.name


def _fresh(name: str, taken: dict[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _column(values: Sequence[Value | None]) -> Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and float in kinds:
        return Array([None if value is None else float(value) for value in values], DataType.float64())
    for kind, made in ((int, DataType.int64()), (bool, DataType.bool())):
        if kinds == {kind}:
            return Array(list(values), made)
    return Array([None if value is None else str(value) for value in values], DataType.string())
