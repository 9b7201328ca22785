"""Sinks of rows: JSON on stdout, a file, the printed table. Each keeps at most one batch in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from dexorder.runs import OUT_ENDINGS

CHUNK_ROWS = 1_000
"""Rows converted to Python values at once."""

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z


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
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        part = batch.slice(start, CHUNK_ROWS)
        columns = [_values(column) for column in part.columns]
        rows = [dict(zip(part.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
        yield orjson.dumps(rows, option=_JSON)[1:-1]


def _values(column: pa.Array[Any]) -> list[Any]:
    # Through numpy where that is exact: ten times faster than a Python object for each value.
    if pa.types.is_timestamp(column.type) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False).astype("datetime64[us]"))
    if pa.types.is_floating(column.type):
        return list(column.to_numpy(zero_copy_only=False).tolist())  # null becomes NaN, which JSON writes as null
    return column.to_pylist()


class FileRows:
    """Rows in a Parquet or CSV file, by its extension. See ``file_rows``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: Any = None
        self._columns: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. The first batch, which may be empty, determines the columns."""
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_batch(batch.select(self._columns))

    def close(self) -> None:
        """Write the end of the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow.csv
        import pyarrow.parquet

        is_csv = self._file.suffix.lower() == ".csv"
        self._columns = [i for i, field in enumerate(schema) if not (is_csv and pa.types.is_nested(field.type))]
        schema = pa.schema([schema.field(i) for i in self._columns])
        fresh = _fresh(self._file)
        return pyarrow.csv.CSVWriter(fresh, schema) if is_csv else pyarrow.parquet.ParquetWriter(fresh, schema)


@contextmanager
def file_rows(file: Path) -> Iterator[FileRows]:
    """Yield a sink to a file that appears, complete, when the block succeeds, and not at all when it fails."""
    rows = FileRows(file)
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


def check_out(out: Path | None, *, many: bool = False) -> None:
    """Raise ValueError if the extension of ``--out`` is unknown or its parent folder does not exist.

    With ``many`` tickers a name without a known extension is a folder, which may not exist yet.
    """
    if out is None:
        return
    formats = " or ".join(OUT_ENDINGS)
    if out.suffix.lower() not in OUT_ENDINGS:
        if not many:
            raise ValueError(f"--out {out}: unknown extension; use {formats}")
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is not a folder and has an unknown extension; use a folder or {formats}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: folder {out.absolute().parent} does not exist; create it first")


def _fresh(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
