"""A batch's candles as data files of the table, written by the workers that decode them.

So a candle never passes through Java, and an append has only to commit what is there already. Nobody sees a file before
that. What is never committed, by a crash, is an orphan that the caretaker removes.
"""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, WriteTask
from pyiceberg.table.metadata import TableMetadata

from spark.pipeline.columns import CANDLE, CANDLE_DDL, DECODED, FILE_KIND, KEY
from spark.tables.ohlc import decode_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BUFFERED_ROWS = 1_000_000
"""Candles a worker holds before it writes them."""
_CONSTANT = KEY[:2]
"""Columns that are the same in a whole page."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Layout:
    """What a worker must know of a table; goes to it with its task."""

    metadata: TableMetadata
    io: FileIO

    @staticmethod
    def of(table: Table) -> Layout:
        """Of a table, without its history, which grows."""
        nothing: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        return Layout(table.metadata.model_copy(update=nothing), table.io)


class Writer:
    """Gathers pages and writes them, a file a partition, in the order of their keys."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._schema = layout.metadata.schema()
        self._spec = layout.metadata.spec()
        self._file_schema = self._schema.select(*CANDLE.names)
        sources = [(field.transform, self._schema.find_field(field.source_id)) for field in self._spec.fields]
        self._transforms = [(source.name, how.pyarrow_transform(source.field_type)) for how, source in sources]
        self._ends_tell = all(
            source.name in _CONSTANT or (source.name == "open_time" and how.preserves_order) for how, source in sources
        )
        self._pages: dict[Key, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._numbers = itertools.count()
        self._id = uuid.uuid4()
        self.written: list[DataFile] = []

    def add(self, page: pa.RecordBatch) -> None:
        """Take a page's candles, at least one: of one ticker and period, in the order of time."""
        for key, part in self._cut(page):
            self._pages.setdefault(key, []).append(part)
        self._rows += page.num_rows
        if self._rows >= MAX_BUFFERED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        tasks = [self._task(key, parts) for key, parts in self._pages.items()]
        self._pages = {}
        self._rows = 0
        for file in write_file(self._layout.io, self._layout.metadata, iter(tasks)):
            self.written.append(file)

    def _task(self, key: Key, parts: list[pa.RecordBatch]) -> WriteTask:
        parts.sort(key=lambda part: tuple(part.column(name)[0].as_py() for name in KEY))
        values = [PartitionFieldValue(field, value) for field, value in zip(self._spec.fields, key, strict=True)]
        return WriteTask(
            write_uuid=self._id,
            task_id=next(self._numbers),
            schema=self._file_schema,
            record_batches=pa.Table.from_batches(parts).combine_chunks().to_batches(),
            partition_key=PartitionKey(values, self._spec, self._schema) if values else None,
        )

    def _cut(self, page: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """The page by partitions, whose rows follow each other."""
        if self._ends_tell:
            first, last = self._keys(page.take(pa.array([0, page.num_rows - 1])))
            if first == last:
                yield first, page
                return
        keys, start = self._keys(page), 0
        for index, (before, after) in enumerate(pairwise(keys), 1):
            if before != after:
                yield before, page.slice(start, index - start)
                start = index
        yield keys[-1], page.slice(start)

    def _keys(self, rows: pa.RecordBatch) -> list[Key]:
        columns = [transform(rows.column(name)).to_pylist() for name, transform in self._transforms]
        return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def stage(layout: Layout) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: batches of ``RAW`` to control rows, and a row for each file that holds the candles."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = Writer(layout)
        try:
            yield from decode_batches(batches, writer.add)
            writer.flush()
        except BaseException:
            remove(layout.io, writer.written)
            raise
        if writer.written:
            yield _rows(writer.written)

    return run


def _rows(files: Sequence[DataFile]) -> pa.RecordBatch:
    rows = [{"kind": FILE_KIND, "file": pickle.dumps(file)} for file in files]
    return pa.RecordBatch.from_pylist(rows, schema=DECODED)


def unpack(data: bytes) -> DataFile:
    """The file of a row of `stage`, which our own worker has packed."""
    file: DataFile = pickle.loads(data)  # noqa: S301
    return file


def append(table: Table, files: Sequence[DataFile]) -> None:
    """Commit files as they are."""
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        for file in files:
            snapshot.append_data_file(file)


def remove(io: FileIO, files: Iterable[DataFile]) -> None:
    """Delete files that nothing refers to; one that can't be is left to the caretaker."""
    for file in files:
        with suppress(Exception):
            io.delete(file.file_path)


def read_columns(io: FileIO, files: Iterable[DataFile], columns: Sequence[str]) -> pa.Table:
    """Some columns of ``CANDLE`` of the files."""
    schema = pa.schema([CANDLE.field(name) for name in columns])
    return pa.concat_tables([_read(io, file.file_path, columns).cast(schema) for file in files])


def frame(session: SparkSession, layout: Layout, files: Sequence[DataFile]) -> DataFrame:
    """Files that are not committed, read by Spark's workers; columns of ``CANDLE``."""
    io = layout.io

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from _read(io, str(path), CANDLE.names).cast(CANDLE).to_batches()

    paths = pa.table({"path": [file.file_path for file in files]})
    return session.createDataFrame(paths, "path string").mapInArrow(read, CANDLE_DDL)


def _read(io: FileIO, path: str, columns: Sequence[str]) -> pa.Table:
    with io.new_input(path).open() as file:
        found: pa.Table = pq.read_table(cast(Any, file), columns=list(columns))  # it takes any file that can seek
    return found.select(list(columns))
