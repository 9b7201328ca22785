"""Rows of a file or of stdin as points for a UDF, and points as rows to print."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from os import SEEK_END
from pathlib import Path
from typing import IO, Any

from arro3.core import DataType, RecordBatch
from arro3.io import infer_csv_schema, read_csv, read_parquet

from dexorder.errors import DexorderError
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import iso, parse_time
from dexorder_udf.points import Batch, Point, Value

TIME_COLUMNS = ("open_time", "time", "time_ns", "timestamp", "date")
GROUP_COLUMNS = ("ticker", "symbol", "exchange", "period", "period_seconds")
"""Columns whose values are tags and dimensions, where a file has them and nothing else is asked for."""
_ROWS = 5_000
_READ_BYTES = 65_536


class TableError(DexorderError):
    """The input can't be read, or its rows can't be points."""


def read_rows(source: str, stdin: IO[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a Parquet, CSV or JSON lines file, or of JSON lines on stdin for ``-``, some at a time.

    Times of Arrow types are nanoseconds since 1970.

    Raises:
        TableError: It can't be read.
    """
    try:
        if source == "-":
            yield from _json_lines(_arrived(stdin), "stdin")
        elif source.endswith(".parquet"):
            _check_parquet(Path(source))
            yield from map(_arrow_rows, read_parquet(source, batch_size=_ROWS))
        elif source.endswith(".csv"):
            yield from map(_arrow_rows, read_csv(source, _csv_schema(source), has_header=True, batch_size=_ROWS))
        elif source.endswith((".jsonl", ".ndjson")):
            with Path(source).open("rb") as file:
                yield from _json_lines(_arrived(file), source)
        else:
            raise TableError(f"--input {source}: use .parquet, .csv, .jsonl, .ndjson, or - for JSON lines on stdin")
    except TableError:
        raise
    except Exception as error:  # arro3 lacks an error class for unreadable files
        raise TableError(f"--input {source}: {error}") from None


@dataclass
class PointMaker:
    """Rule that makes points of rows.

    Attributes:
        time: Column of the time; empty takes the first of TIME_COLUMNS.
        by: Columns that become tags and dimensions; empty takes the ones in GROUP_COLUMNS. All others become fields.
        name: Name of the points.
    """

    time: str = ""
    by: Sequence[str] = ()
    name: str = ""

    def point(self, row: Mapping[str, Any]) -> Point:
        """Return a row as a point; null values become no field.

        Raises:
            TableError: The row lacks a time, or has a value that a point cannot carry.
        """
        time = self.time or next((each for each in TIME_COLUMNS if each in row), "")
        if row.get(time) is None:
            raise TableError(
                f"no column {time or ' or '.join(TIME_COLUMNS)} with a time in a row; its columns: {', '.join(row)}"
            )
        by = [each for each in (self.by or GROUP_COLUMNS) if row.get(each) is not None]
        tags: dict[str, str] = {}
        for each in by:
            seconds = row[each] if each == "period_seconds" else None
            if seconds in PERIODS:
                tags["period"] = PERIODS[seconds]
            else:
                tags[each] = str(row[each])
        fields = {key: _value(key, value) for key, value in row.items() if value is not None and key not in (time, *by)}
        return Point(_time_ns(time, row[time]), tags, fields, self.name, tuple(tags))


def json_row(output: Point | Batch) -> dict[str, Any]:
    """Return an output as a JSON object; numbers that JSON lacks are text, as protobuf writes them."""
    if isinstance(output, Batch):
        points = [{"time": iso(each.time_ns), "tags": each.tags, "fields": _plain(each)} for each in output.points]
        return {"name": output.name, "tags": output.tags, "tmax": iso(output.tmax_ns), "points": points}
    row = {"time": iso(output.time_ns), "name": output.name, "group": output.group}
    return row | {"tags": output.tags, "fields": _plain(output)}


def _plain(point: Point) -> dict[str, Value]:
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else _NOT_FINITE[str(value)]
        for key, value in point.fields.items()
    }


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _arrived(source: IO[Any]) -> Iterator[list[bytes]]:
    """Yield whole lines as they arrive, so a writer that waits after each line gets its answer."""
    stream: Any = getattr(source, "buffer", source)
    rest = b""
    while data := stream.read1(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield lines
    yield [rest]


def _json_lines(arrived: Iterable[list[bytes]], name: str) -> Iterator[list[dict[str, Any]]]:
    number = 0
    for lines in arrived:
        rows: list[dict[str, Any]] = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TableError(f"{name}, line {number}: {error}") from None
            if not isinstance(row, dict):
                raise TableError(f"{name}, line {number}: not a JSON object")
            rows.append(row)
        if rows:
            yield rows


def _check_parquet(file: Path) -> None:
    # arro3 panics at one that is cut off.
    with file.open("rb") as data:
        start, end = data.read(4), data.seek(0, SEEK_END)
        data.seek(max(end - 4, 0))
        if not start == data.read(4) == b"PAR1":
            raise TableError(f"--input {file}: not a whole Parquet file")


def _csv_schema(source: str) -> Any:
    schema = infer_csv_schema(source, has_header=True)  # of all lines: a later one may have a fraction or a text
    if not schema.names:
        raise TableError(f"--input {source}: the file is empty")
    return schema


def _arrow_rows(batch: RecordBatch) -> list[dict[str, Any]]:
    columns = []
    for column in batch.columns:
        kind = column.type
        if DataType.is_timestamp(kind):
            column = column.cast(DataType.timestamp("ns", tz=kind.tz)).cast(DataType.int64())
        elif DataType.is_date(kind):
            column = column.cast(DataType.timestamp("ns")).cast(DataType.int64())
        columns.append(column.to_pylist())
    return [dict(zip(batch.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _time_ns(column: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        # seconds, milliseconds, microseconds or nanoseconds since 1970, by their size
        for limit, unit_ns in ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3)):
            if abs(value) < limit:
                return value * unit_ns
        return value
    if isinstance(value, dt.datetime | dt.date):
        value = value.isoformat()
    try:
        return parse_time(str(value), column)
    except InvalidRequest as error:
        raise TableError(f"column {error}") from None


def _value(column: str, value: Any) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return float(value)
    raise TableError(f"column {column}: {value!r:.80} is not a number, text or bool")
