"""Writers of rows in the formats of ``--out``, to a binary stream. Each keeps a bounded part of the rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from io import RawIOBase
from queue import Queue
from threading import Thread
from typing import IO, Any, Protocol

import orjson
from arro3.core import DataType, RecordBatch, RecordBatchReader, Schema
from arro3.io import write_ipc, write_ipc_stream, write_parquet

from dexorder.cli.rows.csv_text import csv_header, csv_lines
from dexorder.rows.columns import Column
from dexorder.rows.table import Rows

ROW_GROUP_ROWS = 131_072
"""Rows of a row group of Parquet, about as many as DuckDB reads at once; they are in memory until it is written."""
CHUNK_ROWS = 1_000
"""Rows converted to Python values at once."""
JSON_OPTIONS = orjson.OPT_NAIVE_UTC | orjson.OPT_UTC_Z


class Writer(Protocol):
    """Writer of one file."""

    def write(self, rows: Rows) -> None:
        """Append rows, which have the columns of the first ones."""

    def close(self) -> None:
        """Write the end; the stream stays open."""


def open_writer(row_format: str, stream: IO[bytes], schema: Schema, *, is_pipe: bool) -> Writer:
    """Return a writer in one of the formats for rows with these columns."""
    match row_format:
        case "csv":
            return _Csv(stream, schema)
        case "jsonl":
            return _JsonLines(stream)
        case "arrow":
            # A reader of a pipe can't look for the end of a file.
            write = write_ipc_stream if is_pipe else write_ipc
            return _Pulled(partial(write, compression=None), stream, schema)  # not every reader knows LZ4, the default
        case _:
            write = partial(write_parquet, compression="snappy", max_row_group_size=ROW_GROUP_ROWS)
            return _Pulled(write, stream, schema)


def row_chunks(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows as values for JSON, at most ``CHUNK_ROWS`` at a time; no part is empty."""
    for start in range(0, rows.num_rows, CHUNK_ROWS):
        part = rows.slice(start, CHUNK_ROWS)
        columns = [_json_values(column) for column in part.columns]
        yield [dict(zip(part.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_values(column: Column) -> list[Any]:
    # Times without a zone, as orjson would look up each value's.
    kind = column.type
    return (column.cast(DataType.timestamp("us")) if DataType.is_timestamp(kind) else column).to_pylist()


class _Csv:
    """CSV without columns of lists and structures, which it can't express."""

    def __init__(self, stream: IO[bytes], schema: Schema) -> None:
        self._stream = stream
        self._columns = [
            name for name, kind in zip(schema.names, schema.types, strict=True) if not DataType.is_nested(kind)
        ]
        stream.write(csv_header(self._columns))

    def write(self, rows: Rows) -> None:
        columns = rows.select(self._columns)
        for start in range(0, rows.num_rows, CHUNK_ROWS):
            self._stream.write(csv_lines(columns.slice(start, CHUNK_ROWS)))

    def close(self) -> None:
        pass


class _JsonLines:
    """One JSON object a line, with values as in ``--json``."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, rows: Rows) -> None:
        for chunk in row_chunks(rows):
            self._stream.writelines(orjson.dumps(row, option=JSON_OPTIONS | orjson.OPT_APPEND_NEWLINE) for row in chunk)

    def close(self) -> None:
        pass


class _Pulled:
    """Format with a function in arro3 that takes all batches from an iterator. It runs in a thread, a batch behind."""

    def __init__(self, write_all: Callable[[RecordBatchReader, Any], None], stream: IO[bytes], schema: Schema) -> None:
        self._schema = schema
        self._batches: Queue[RecordBatch | None] = Queue(maxsize=1)
        self._target = _Target(stream)
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, args=(write_all,), name="dexorder-writer", daemon=True)
        self._thread.start()

    def write(self, rows: Rows) -> None:
        for batch in RecordBatchReader.from_stream(rows):
            self._batches.put(batch.with_schema(self._schema))
            self._check()

    def close(self) -> None:
        self._batches.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if failure := self._target.failure or self._failure:
            raise failure

    def _run(self, write_all: Callable[[RecordBatchReader, Any], None]) -> None:
        batches = self._received()
        try:
            write_all(RecordBatchReader.from_batches(self._schema, batches), self._target)
        except BaseException as error:  # the caller raises it
            self._failure = error
        for _ in batches:  # so that the caller never waits for a thread that has ended
            pass

    def _received(self) -> Iterator[RecordBatch]:
        while (batch := self._batches.get()) is not None:
            yield batch


class _Target(RawIOBase):
    """Stream for arro3. It keeps a failure, because arro3 prints a panic of Rust if a stream raises."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                self._stream.write(data)
            except OSError as error:
                self.failure = error
        return len(data)

    def flush(self) -> None:
        pass
