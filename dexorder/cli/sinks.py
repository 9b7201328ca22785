"""Sinks of rows: JSON, a file or stdout, the printed table. Each keeps at most one batch in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import orjson
import pyarrow as pa

from dexorder.runs import FORMATS, STDOUT, OutputOptions, file_format

CHUNK_ROWS = 1_000
"""Rows converted to Python values at once."""

_JSON = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z


class JsonRows:
    """One JSON object on a stream: the given fields, then ``rows``. It is complete only after ``finish``."""

    def __init__(self, stream: IO[bytes], head: dict[str, Any]) -> None:
        self._stream = stream
        self._opening = orjson.dumps(head, option=_JSON | orjson.OPT_INDENT_2).removesuffix(b"\n}")
        self._opening += b',\n  "rows": [\n'
        self._between = b""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows as objects, with times as UTC text and numbers that JSON cannot express as null."""
        self._begin()
        for chunk in json_chunks(batch):
            self._stream.write(self._between)
            self._stream.write(chunk)
            self._between = b",\n"

    def finish(self) -> None:
        """Close the array and the object."""
        self._begin()
        self._stream.write(b"\n]}\n")
        self._stream.flush()

    def _begin(self) -> None:
        # Not written before the first batch, as reading may fail until then.
        self._stream.write(self._opening)
        self._opening = b""


def json_chunks(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield the rows as comma-separated JSON objects, at most ``CHUNK_ROWS`` at a time; no part is empty."""
    for rows in _row_chunks(batch):
        yield orjson.dumps(rows, option=_JSON)[1:-1]


def _row_chunks(batch: pa.RecordBatch) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        part = batch.slice(start, CHUNK_ROWS)
        columns = [_values(column) for column in part.columns]
        yield [dict(zip(part.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array[Any]) -> list[Any]:
    # Without numpy, which a client need not have. Without a zone, as orjson would look up each value's.
    times = pa.types.is_timestamp(column.type)
    return (column.cast(pa.timestamp("us")) if times else column).to_pylist()


class _JsonLines:
    """Writer of one JSON object a line, with the methods of pyarrow's writers."""

    def __init__(self, target: Path | IO[bytes]) -> None:
        self._stream = target.open("wb") if isinstance(target, Path) else target
        self._owned = isinstance(target, Path)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows, with values as in ``--json``."""
        for rows in _row_chunks(batch):
            self._stream.writelines(orjson.dumps(row, option=_JSON | orjson.OPT_APPEND_NEWLINE) for row in rows)

    def close(self) -> None:
        """Write the end."""
        if self._owned:
            self._stream.close()


class FileRows:
    """Rows in a file or a stream in one of the formats. See ``file_rows``."""

    def __init__(self, row_format: str, target: Path | IO[bytes]) -> None:
        self._format = row_format
        self._target = target
        self._writer: Any = None
        self._columns: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. The first batch, which may be empty, determines the columns."""
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_batch(batch.select(self._columns))

    def close(self) -> None:
        """Write the end of the rows."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow.csv
        import pyarrow.parquet

        is_csv = self._format == "csv"
        self._columns = [i for i, field in enumerate(schema) if not (is_csv and pa.types.is_nested(field.type))]
        schema = pa.schema([schema.field(i) for i in self._columns])
        match self._format:
            case "csv":
                return pyarrow.csv.CSVWriter(self._target, schema)
            case "jsonl":
                return _JsonLines(self._target)
            case "arrow" if isinstance(self._target, Path):
                return pa.ipc.new_file(str(self._target), schema)
            case "arrow":
                return pa.ipc.new_stream(
                    pa.PythonFile(cast(Any, self._target), mode="w"), schema
                )  # a reader of a pipe can't look for the end of a file
            case _:
                return pyarrow.parquet.ParquetWriter(self._target, schema)


@contextmanager
def file_rows(options: OutputOptions, file: Path | None = None) -> Iterator[FileRows]:
    """Yield a sink to ``file``, by default the one of the options.

    A file appears, complete, when the block succeeds, and not at all when it fails. What is written to stdout stays.
    """
    file = file or options.out
    assert file is not None
    if file == STDOUT:
        rows = FileRows(options.row_format, sys.stdout.buffer)
        yield rows
        rows.close()
        sys.stdout.buffer.flush()
        return
    rows = FileRows(options.row_format, _fresh(file))
    try:
        try:
            yield rows
        finally:
            rows.close()
        if _fresh(file).exists():
            _fresh(file).replace(file)
    finally:
        _fresh(file).unlink(missing_ok=True)


class Ends:
    """First and last rows, at most ``limit`` together, for the printed table."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._head_size = (limit + 1) // 2
        self._tail_size = limit // 2
        self.head: pa.Table | None = None
        """First half, the larger one of an odd limit; None before the first batch."""
        self.tail: pa.Table | None = None
        """Last half, without rows of the first; None before the first batch."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep the rows that may be among the first or last."""
        rows = pa.Table.from_batches([batch])
        room = self._head_size - (self.head.num_rows if self.head is not None else 0)
        self.head = _joined(self.head, rows.slice(0, room))
        tail = _joined(self.tail, rows.slice(room))
        self.tail = tail.slice(max(tail.num_rows - self._tail_size, 0))
        self.count += batch.num_rows


def _joined(before: pa.Table | None, rows: pa.Table) -> pa.Table:
    return rows if before is None else pa.concat_tables([before, rows])


def check_out(options: OutputOptions, *, many: bool = False) -> None:
    """Raise ValueError if ``--out`` can't be written or ``--format`` is unknown.

    With ``many`` tickers a name without a known extension is a folder, which may not exist yet.
    """
    out, known = options.out, ", ".join(FORMATS)
    if options.format is not None and options.format not in FORMATS:
        raise ValueError(f"--format {options.format}: unknown format; use one of {known}")
    if out is None:
        if options.format is not None:
            raise ValueError("--format is that of --out; add --out FILE, or --out - for stdout")
        return
    if out == STDOUT:
        _check_stdout(options)
        return
    if file_format(out) is None:
        endings = " or ".join(f".{each}" for each in FORMATS)
        if not many and options.format is None:
            raise ValueError(f"--out {out}: unknown extension; use {endings}, or add --format")
        if many and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is not a folder and has an unknown extension; use a folder or {endings}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: folder {out.absolute().parent} does not exist; create it first")


def _check_stdout(options: OutputOptions) -> None:
    if options.as_json:
        raise ValueError("--out - and --json both write to stdout; use --format jsonl for rows as JSON")
    if options.row_format in ("arrow", "parquet") and sys.stdout.isatty():
        raise ValueError(f"--out -: {options.row_format} is binary; redirect stdout, or use --format csv")


def _fresh(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
