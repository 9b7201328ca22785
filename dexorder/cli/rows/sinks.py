"""Sinks of rows: JSON, a file or stdout, the printed table. Each keeps at most one batch in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from dexorder.cli.rows.file_writers import JSON_OPTIONS, Writer, open_writer, row_chunks
from dexorder.cli.rows.options import STDOUT, OutputOptions
from dexorder.rows.table import Rows


class JsonRows:
    """One JSON object on a stream: the given fields, then ``rows``. It is complete only after ``finish``."""

    def __init__(self, stream: IO[bytes], head: dict[str, Any]) -> None:
        self._stream = stream
        self._opening = orjson.dumps(head, option=JSON_OPTIONS | orjson.OPT_INDENT_2).removesuffix(b"\n}")
        self._opening += b',\n  "rows": [\n'
        self._between = b""

    def write(self, rows: Rows) -> None:
        """Write rows as objects, with times as UTC text and numbers that JSON cannot express as null."""
        self._begin()
        for chunk in row_chunks(rows):
            self._stream.write(self._between)
            self._stream.write(orjson.dumps(chunk, option=JSON_OPTIONS)[1:-1])
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


class FileRows:
    """Rows in a file or on stdout in one of the formats. See ``file_rows``."""

    def __init__(self, row_format: str, target: Path | IO[bytes]) -> None:
        self._format = row_format
        self._target = target
        self._stream: IO[bytes] | None = None
        self._writer: Writer | None = None

    def write(self, rows: Rows) -> None:
        """Append rows. The first ones, of which there may be none, determine the columns."""
        if self._writer is None:
            is_file = isinstance(self._target, Path)
            self._stream = self._target.open("wb") if isinstance(self._target, Path) else self._target
            self._writer = open_writer(self._format, self._stream, rows.schema, is_pipe=not is_file)
        self._writer.write(rows)

    def close(self) -> None:
        """Write the end of the rows."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._stream is not None and self._stream is not self._target:
                self._stream.close()


@contextmanager
def file_rows(options: OutputOptions, file: Path | None = None) -> Iterator[FileRows]:
    """Yield a sink to ``file``, by default the one of the options.

    A file appears, complete, when the block succeeds, and not at all when it fails. Output on stdout stays.
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
        self.head: Rows | None = None
        """First half, the larger one of an odd limit; None before the first batch."""
        self.tail: Rows | None = None
        """Last half, without rows of the first; None before the first batch."""

    def write(self, rows: Rows) -> None:
        """Keep the rows that may be among the first or last."""
        room = self._head_size - (self.head.num_rows if self.head is not None else 0)
        self.head = _joined(self.head, rows.slice(0, room))
        tail = _joined(self.tail, rows.slice(room))
        self.tail = tail.slice(max(tail.num_rows - self._tail_size, 0))
        self.count += rows.num_rows


def _joined(before: Rows | None, rows: Rows) -> Rows:
    return rows if before is None else Rows.concat([before, rows])


def _fresh(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
