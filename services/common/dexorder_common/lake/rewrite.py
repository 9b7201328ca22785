"""Replacement of rows in a table by copy-on-write, committed by compare-and-swap.

Files are read and copied batch by batch: pyiceberg's scans read far ahead, and a compacted file would need hundreds of
megabytes. The commit is refused if anyone has committed since the table was loaded: the caller loads it again
and decides again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    _combine_positional_deletes,
    _dataframe_to_data_files,
    _read_all_delete_files,
    _to_requested_schema,
    expression_to_pyarrow,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table

from dexorder_common.lake.commit import CommitLost, commit_files, remove_files

BATCH_ROWS = 65_536


def read_rows(table: Table, where: BooleanExpression) -> pa.Table:
    """Return all columns of the rows of the table's current snapshot that match."""
    wanted = _arrow(table, where)
    parts = [rows.filter(wanted) for task in _files(table, where) for rows in rows_of(table, task)]
    return pa.concat_tables([table.schema().as_arrow().empty_table(), *parts], promote_options="permissive")


def replace_rows(table: Table, where: BooleanExpression, rows: pa.Table, properties: Mapping[str, str]) -> None:
    """Replace the rows of the table's current snapshot that match ``where`` by ``rows``, in one commit.

    Args:
        table: Just loaded.
        rows: All columns of the table; held in memory.
        properties: Added to the snapshot's summary.

    Raises:
        CommitLost: Another writer has committed since ``table`` was loaded; the table is unchanged.
    """
    wanted = _arrow(table, where)
    replaced = [task for task in _files(table, where) if any(len(part.filter(wanted)) for part in rows_of(table, task))]
    written: list[DataFile] = []
    try:
        for task in replaced:
            written += _copy(table, task.file, (part.filter(~wanted) for part in rows_of(table, task)))
        if rows.num_rows:
            written += _dataframe_to_data_files(table.metadata, rows, table.io)
        removed = [task.file for task in replaced]
        commit_files(table, added=written, removed=removed, properties=properties)
    except CommitLost:
        remove_files(table.io, written)
        raise


def _arrow(table: Table, where: BooleanExpression) -> pc.Expression:
    return expression_to_pyarrow(bind(table.schema(), where, case_sensitive=True))


def _files(table: Table, where: BooleanExpression) -> list[FileScanTask]:
    """Return the files that may have rows that match."""
    return list(table.scan(row_filter=where).plan_files())


def rows_of(table: Table, task: FileScanTask) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not deleted, in batches, with the ids of their columns."""
    schema, model = table.schema(), FileFormatFactory.get(FileFormat.PARQUET)
    deleted = _read_all_delete_files(table.io, [task]).get(task.file.file_path)
    with table.io.new_input(task.file.file_path).open() as source:
        file = pq.ParquetFile(cast(Any, source))  # it takes any file that can seek
        own, first = pyarrow_to_schema(file.schema_arrow, table.metadata.name_mapping(), True), 0
        for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
            last = first + len(batch)
            rows = batch.take(_combine_positional_deletes(deleted, first, last)) if deleted else batch
            first = last
            found = _to_requested_schema(
                schema, own, rows, include_field_ids=True, format_model=model, allow_timestamp_tz_mismatch=True
            )
            yield pa.Table.from_batches([found])


def _copy(table: Table, file: DataFile, parts: Iterable[pa.Table]) -> list[DataFile]:
    """Write rows as one file of the same partition; none without rows."""
    rows = (part for part in parts if len(part))
    first = next(rows, None)
    if first is None:
        return []
    if file.spec_id != table.metadata.default_spec_id:  # one commit writes files of one partition spec
        return list(_dataframe_to_data_files(table.metadata, pa.concat_tables([first, *rows]), table.io))
    path = f"{file.file_path.rpartition('/')[0]}/{uuid.uuid4()}.parquet"
    output = table.io.new_output(path)
    writer = FileFormatFactory.get(FileFormat.PARQUET).create_writer(output, table.schema(), table.properties)
    with writer:
        for part in chain((first,), rows):
            writer.write(part)
    copied = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        file_size_in_bytes=len(output),
        sort_order_id=None,
        spec_id=file.spec_id,
        equality_ids=None,
        key_metadata=None,
        **writer.result().to_serialized_dict(),
    )
    return [copied]
