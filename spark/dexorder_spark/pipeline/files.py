"""Rows of a batch as data files of the table, written by the workers that decode them.

Rows never pass through Java, and an append only commits files that exist already. A file is invisible until it is
committed. After a crash, uncommitted files are orphans, which maintenance removes.
"""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, WriteTask
from pyiceberg.table.metadata import TableMetadata

from dexorder_common.lake.commit import remove_files
from dexorder_common.lake.tables import writable
from dexorder_spark.pipeline.controls import DECODED, FILE_KIND, LETTERS_KIND, NO_RULES, Rules
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.records.dead_letters import LetterLayout, LetterWriter, without_history
from dexorder_spark.tables.table import PageTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_BUFFERED_ROWS = 1_000_000
"""Rows that a worker buffers before it writes them."""
_PartitionValues: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class FileLayout:
    """Everything a worker must know of a table to write its files; sent with each task."""

    table: PageTable
    metadata: TableMetadata
    io: FileIO

    @staticmethod
    def of(table: PageTable, target: Table) -> FileLayout:
        """Return the layout of ``target``."""
        return FileLayout(table, writable(without_history(target.metadata)), target.io)


class FileWriter:
    """Buffer of pages, written as one file per partition, in the table's order but for pages that overlap."""

    def __init__(self, layout: FileLayout, columns: Sequence[str] | None = None) -> None:
        """Write files with these columns; by default the declared ones."""
        self._layout = layout
        table = layout.table
        self._schema = layout.metadata.schema()
        self._spec = layout.metadata.spec()
        self._file_schema = self._schema.select(*(columns or table.columns))
        sources = [(field.transform, self._schema.find_field(field.source_id)) for field in self._spec.fields]
        self._transforms = [(source.name, how.pyarrow_transform(source.field_type)) for how, source in sources]
        # Rows of a page are ordered by time within a series. So a page whose first and last row are in one partition is
        # in that partition as a whole.
        self._is_monotonic = all(
            source.name in table.series_columns or (source.name == table.time_column and how.preserves_order)
            for how, source in sources
        )
        self._pages: dict[_PartitionValues, list[pa.RecordBatch]] = {}
        self._unsorted: set[_PartitionValues] = set()
        self._rows = 0
        self._numbers = itertools.count()
        self._id = uuid.uuid4()
        self.written: list[DataFile] = []

    def add(self, page: pa.RecordBatch) -> None:
        """Buffer a page's rows, at least one, which are in the table's order."""
        for values, part in self._cut(page):
            self._pages.setdefault(values, []).append(part)
        self._rows += page.num_rows
        if self._rows >= MAX_BUFFERED_ROWS:
            self.flush()

    def add_many(self, rows: pa.RecordBatch) -> None:
        """Buffer rows of many series, at least one, in any order; their files are sorted when they are written."""
        places: dict[_PartitionValues, list[int]] = {}
        for number, values in enumerate(self._partition_values(rows)):
            places.setdefault(values, []).append(number)
        for values, numbers in places.items():
            part = rows if len(numbers) == rows.num_rows else rows.take(pa.array(numbers))
            self._pages.setdefault(values, []).append(part)
            self._unsorted.add(values)
        self._rows += rows.num_rows
        if self._rows >= MAX_BUFFERED_ROWS:
            self.flush()

    def add_all(self, rows: pa.Table) -> None:
        """Buffer rows of any series, in any order."""
        table = self._layout.table
        ordered = rows.sort_by([(name, "ascending") for name in table.order_columns]).combine_chunks()
        series = ordered.select(list(table.series_columns)).to_pylist() if table.series_columns else []
        ends = [n for n in range(1, len(series)) if series[n] != series[n - 1]]
        for start, end in pairwise([0, *ends, len(ordered)]):
            for page in ordered.slice(start, end - start).to_batches():
                self.add(page)

    def flush(self) -> None:
        """Write the buffered pages."""
        tasks = [self._task(values, parts) for values, parts in self._pages.items()]
        self._pages = {}
        self._unsorted = set()
        self._rows = 0
        for file in write_file(self._layout.io, self._layout.metadata, iter(tasks)):
            self.written.append(file)

    def _task(self, values: _PartitionValues, parts: list[pa.RecordBatch]) -> WriteTask:
        order = self._layout.table.order_columns
        parts.sort(key=lambda part: tuple(part.column(name)[0].as_py() for name in order))
        rows = pa.Table.from_batches(parts)
        if values in self._unsorted:
            rows = rows.sort_by([(name, "ascending") for name in order])
        fields = [PartitionFieldValue(field, value) for field, value in zip(self._spec.fields, values, strict=True)]
        return WriteTask(
            write_uuid=self._id,
            task_id=next(self._numbers),
            schema=self._file_schema,
            record_batches=rows.combine_chunks().to_batches(),
            partition_key=PartitionKey(fields, self._spec, self._schema) if fields else None,
        )

    def _cut(self, page: pa.RecordBatch) -> Iterator[tuple[_PartitionValues, pa.RecordBatch]]:
        """Cut the page into runs of rows of one partition."""
        if self._is_monotonic:
            first, last = self._partition_values(page.take(pa.array([0, page.num_rows - 1])))
            if first == last:
                yield first, page
                return
        values = self._partition_values(page)
        start = 0
        for index, (before, after) in enumerate(pairwise(values), 1):
            if before != after:
                yield before, page.slice(start, index - start)
                start = index
        yield values[-1], page.slice(start)

    def _partition_values(self, rows: pa.RecordBatch) -> list[_PartitionValues]:
        columns = [transform(rows.column(name)).to_pylist() for name, transform in self._transforms]
        return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


@dataclass(frozen=True)
class Stage:
    """Work of the tasks of a batch, sent to each of them."""

    layout: FileLayout
    letters: LetterLayout
    rules: Rules = NO_RULES

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn batches of ``RAW`` into control rows, and a row for each written file; a function for ``mapInArrow``."""
        writer, letters = FileWriter(self.layout), LetterWriter(self.letters, now_ns=self.rules.now_ns)
        try:
            yield from decode_batches(
                self.layout.table, batches, writer.add, letters.add, self.rules, take_many=writer.add_many
            )
            writer.flush()
            letters.flush()
        except BaseException:
            remove_files(self.layout.io, [*writer.written, *letters.written])
            raise
        files = [(FILE_KIND, file) for file in writer.written] + [(LETTERS_KIND, file) for file in letters.written]
        if files:
            rows = [{"kind": kind, "file": pickle.dumps(file)} for kind, file in files]
            yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def unpack(data: bytes) -> DataFile:
    """Return the file of a row of `Stage.run`, which a worker of this driver has pickled."""
    file: DataFile = pickle.loads(data)  # noqa: S301
    return file


def read_columns(layout: FileLayout, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    """Read some columns of the files."""
    schema = layout.table.arrow_of(tuple(columns))
    return pa.concat_tables([_read(layout.io, file.file_path, columns).cast(schema) for file in files])


def frame(session: SparkSession, layout: FileLayout, files: Sequence[DataFile]) -> DataFrame:
    """Return uncommitted files as a frame that Spark's workers read."""
    schema = layout.table.iceberg.arrow

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                yield from _read(layout.io, str(path), schema.names).cast(schema).to_batches()

    paths = pa.table({"path": [file.file_path for file in files]})
    return session.createDataFrame(paths, "path string").mapInArrow(read, layout.table.iceberg.ddl)


def _read(io: FileIO, path: str, columns: Sequence[str]) -> pa.Table:
    with io.new_input(path).open() as file:
        found: pa.Table = pq.read_table(cast(Any, file), columns=list(columns))  # it takes any file that can seek
    return found.select(list(columns))
