"""Replacement of rows in a table by copy-on-write, committed by compare-and-swap.

Files that contain rows to replace are copied without them, batch by batch, so that a file of any size needs the memory
of a few batches. The commit is refused if anyone has committed since the table was loaded: the caller loads it again
and decides anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression, Not
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, _read_all_delete_files, _to_requested_schema
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update import AssertTableUUID

from services.common.model.errors import Conflict


def replace_rows(
    catalog: Catalog, table: Table, where: BooleanExpression, rows: pa.Table, properties: Mapping[str, str]
) -> None:
    """Replace the rows of the table's current snapshot that match ``where`` by ``rows``, in one commit.

    Args:
        table: Just loaded.
        rows: All columns of the table; held in memory.
        properties: Added to the snapshot's summary.

    Raises:
        Conflict: Another writer has committed since ``table`` was loaded; nothing has changed.
    """
    tasks = list(table.scan(row_filter=where).plan_files())
    replaced = [task for task in tasks if next(_batches(table, task, where), None) is not None]
    written: list[DataFile] = []
    try:
        for task in replaced:
            written += _copy(table, task.file, _batches(table, task, Not(where)))
        if rows.num_rows:
            written += _dataframe_to_data_files(table.metadata, rows, table.io)
        replace_files(catalog, table, [task.file for task in replaced], written, properties)
    except Conflict:
        _remove(table.io, written)
        raise


def replace_files(
    catalog: Catalog,
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[DataFile],
    properties: Mapping[str, str],
) -> None:
    """Commit files in place of others; Conflict if the table has changed since it was loaded."""
    change = table.transaction()
    snapshot = change.update_snapshot(snapshot_properties=dict(properties)).overwrite()
    for file in removed:
        snapshot.delete_data_file(file)
    for file in added:
        snapshot.append_data_file(file)
    updates, requirements = snapshot._commit()  # the transaction's own commit would try again without a new look
    try:
        catalog.commit_table(table, (*requirements, AssertTableUUID(uuid=table.metadata.table_uuid)), updates)
    except CommitFailedException as error:
        snapshot._clean_all_uncommitted()
        raise Conflict(f"{'.'.join(table.name())} has changed since it was loaded") from error


def _batches(table: Table, task: FileScanTask, where: BooleanExpression) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that match and are not deleted."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), where)
    # its public methods read a whole file before they return the first batch
    return scan._record_batches_from_scan_tasks_and_deletes([task], _read_all_delete_files(table.io, [task]))


def _copy(table: Table, file: DataFile, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write batches as one file of the same partition; none without rows."""
    rows = iter(batches)
    first = next(rows, None)
    if first is None:
        return []
    if file.spec_id != table.metadata.default_spec_id:  # one commit writes files of one partition spec
        return list(_dataframe_to_data_files(table.metadata, pa.Table.from_batches([first, *rows]), table.io))
    schema, model = table.schema(), FileFormatFactory.get(FileFormat.PARQUET)
    path = f"{file.file_path.rpartition('/')[0]}/{uuid.uuid4()}.parquet"
    output = table.io.new_output(path)
    with model.create_writer(output, schema, table.properties) as writer:
        for batch in chain((first,), rows):
            found = _to_requested_schema(schema, schema, batch, include_field_ids=True, format_model=model)
            writer.write(pa.Table.from_batches([found]))
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


def _remove(io: FileIO, files: Iterable[DataFile]) -> None:
    """Delete files that no commit names; maintenance removes those that cannot be deleted now."""
    for file in files:
        with suppress(Exception):
            io.delete(file.file_path)
