"""Where rows go, batch by batch: JSON on stdout, a file, the table that is printed. None keeps more than one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import orjson
import pyarrow as pa

from dexorder.runs import OUT_ENDINGS

CHUNK_ROWS = 1_000
"""Rows turned into Python values at once."""

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z


class RowSink(Protocol):
    """Takes rows, in order."""

    def write(self, batch: pa.RecordBatch) -> None:
        """The next rows."""


class JsonRows:
    """One JSON object on a stream: the given fields, then ``rows``. Complete only after ``finish``."""

    def __init__(self, stream: IO[bytes], head: dict[str, Any]) -> None:
        self._stream = stream
        self._opening = orjson.dumps(head, option=_JSON | orjson.OPT_INDENT_2).removesuffix(b"\n}")
        self._opening += b',\n  "rows": [\n'
        self._between = b""

    def write(self, batch: pa.RecordBatch) -> None:
        """The rows as objects; times as UTC text, a value JSON has no number for as null."""
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

    def _begin(
        self,
    ) -> None:  # only now: until the first batch is there, it may turn out that there are no rows to give
        self._stream.write(self._opening)
        self._opening = b""


def json_chunks(batch: pa.RecordBatch) -> Iterator[bytes]:
    """JSON objects of the rows, comma-separated, ``CHUNK_ROWS`` in a piece; no piece is empty."""
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        part = batch.slice(start, CHUNK_ROWS)
        columns = [_values(column) for column in part.columns]
        rows = [dict(zip(part.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
        yield orjson.dumps(rows, option=_JSON)[1:-1]


def _values(column: pa.Array[Any]) -> list[Any]:
    # Through numpy where that is exact: ten times as fast as a Python object for each value.
    if pa.types.is_timestamp(column.type) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False).astype("datetime64[us]"))
    if pa.types.is_floating(column.type):
        return list(column.to_numpy(zero_copy_only=False).tolist())  # null becomes NaN, which JSON writes as null
    return column.to_pylist()


class FileRows:
    """Rows in a file of the kind its ending names. See ``file_rows``."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: Any = None
        self._columns: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append; the first batch, which may be empty, says which columns there are."""
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_batch(batch.select(self._columns))

    def close(self) -> None:
        """Write what a file of its kind ends with."""
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
    """A file that appears complete when the block ends well, and not at all otherwise."""
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
    """Keeps the first and the last of the rows, ``most`` together, for the table that is printed."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self._head_size = (most + 1) // 2
        self._tail_size = most // 2
        self.head: pa.Table | None = None
        """The first half, of an odd number the larger one; None before the first batch."""
        self.tail: pa.Table | None = None
        """The last half, without any row of the first."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep what may be among the ends."""
        rows = pa.Table.from_batches([batch])
        room = self._head_size - (self.head.num_rows if self.head is not None else 0)
        self.head = _joined(self.head, rows.slice(0, room))
        tail = _joined(self.tail, rows.slice(room))
        self.tail = tail.slice(max(tail.num_rows - self._tail_size, 0))
        self.count += batch.num_rows


def _joined(before: pa.Table | None, rows: pa.Table) -> pa.Table:
    return rows if before is None else pa.concat_tables([before, rows])


def check_out(out: Path | None, *, many: bool = False) -> None:
    """Refuse an ``--out`` that can't be written.

    Args:
        out: None is fine.
        many: For many tickers; a name without an ending of ours is then a folder, which may be absent.

    Raises:
        ValueError: The ending names no format of ours, or the folder it is to lie in is not there.
    """
    if out is None:
        return
    if out.suffix.lower() not in OUT_ENDINGS:
        if not many:
            raise ValueError(f"--out {out} ends in neither {' nor '.join(OUT_ENDINGS)}")
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is no folder and ends in neither {' nor '.join(OUT_ENDINGS)}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.absolute().parent} is not there")


def _fresh(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
