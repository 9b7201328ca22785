"""Rows of a table in the key ranges of a batch, and the decision which rows of the batch are new.

The driver reads the version columns of the files that may have such rows. That is worth it up to ``MAX_READ_BYTES``;
above, Spark compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.table import FileScanTask, Table

from dexorder_spark.pipeline.known_manifests import KnownManifests
from dexorder_spark.pipeline.ranges import ScanRange, row_filter
from dexorder_spark.tables.table import PageTable

_MANIFESTS = KnownManifests()
MAX_READ_BYTES = 64 * 1024 * 1024
"""Bytes of data files that the driver reads, and that it rewrites, for one batch."""


@dataclass(frozen=True)
class FoundFile:
    """A data file of the table with rows in the ranges of a batch; ``rows`` has their version columns."""

    task: FileScanTask
    rows: pa.Table


@dataclass(frozen=True)
class RowChange:
    """Difference that a batch makes to a table.

    Attributes:
        new: Positions of the batch's rows to write, ascending.
        replaced: By position among the found files, the keys of rows that the batch replaces.
    """

    new: npt.NDArray[np.int64]
    replaced: dict[int, pa.Table]


def difference(table: PageTable, staged: pa.Table, found: Sequence[FoundFile]) -> RowChange:
    """Compare a batch's rows, given by their version columns, with the table's rows.

    A row of the batch is new if its key is not in the table, or is there with a smaller version.
    """
    positions = latest(table, staged)
    rows = staged.take(positions).append_column("position", pa.array(positions))
    both = rows.join(_present(table, found), list(table.key), join_type="inner", right_suffix="_found").combine_chunks()
    newer = is_newer(both, table.version)
    stale = both.filter(pc.invert(newer)).column("position").to_numpy()
    replaced = both.filter(newer)
    numbers = replaced.column("file").to_numpy()
    return RowChange(
        np.setdiff1d(positions, stale),
        {int(n): replaced.filter(pa.array(numbers == n)).select(list(table.key)) for n in np.unique(numbers)},
    )


def _present(table: PageTable, found: Sequence[FoundFile]) -> pa.Table:
    """Return the version columns of all found rows, with the position of their file as column ``file``."""
    schema = table.arrow_of(table.version_columns)
    parts = [schema.empty_table(), *(file.rows.cast(schema) for file in found)]
    files = np.repeat(np.arange(len(found)), [file.rows.num_rows for file in found])
    return pa.concat_tables(parts).append_column("file", pa.array(files, pa.int64()))


def is_newer(both: pa.Table, version: tuple[str, ...]) -> Any:
    """Return for each row whether its version columns are larger than those ending in ``_found``, in their order."""
    if not version:
        return pa.repeat(False, both.num_rows)
    name, *rest = version
    columns: tuple[Any, Any] = both.column(name), both.column(f"{name}_found")
    staged, found = (pc.fill_null(column, 0) for column in columns)
    newer = pc.greater(staged, found)
    return pc.or_(newer, pc.and_(pc.equal(staged, found), is_newer(both, tuple(rest)))) if rest else newer


def find(table: PageTable, target: Table, ranges: Sequence[ScanRange]) -> list[FoundFile] | None:
    """Return the files with rows in the ranges; None if that takes reading more than ``MAX_READ_BYTES``.

    Files with bounds outside every range are not opened; there is at least one range. The bounds of a file that several
    dispatches share include keys that the file does not have.
    """
    wanted = row_filter(table, ranges)
    tasks = list(_MANIFESTS.plan(table, target, ranges, wanted))
    if size_of(tasks) > MAX_READ_BYTES:
        matching = expression_to_pyarrow(bind(target.schema(), wanted, case_sensitive=True))
        if sum(_matching_bytes(target, task, matching) for task in tasks) > MAX_READ_BYTES:
            return None
    files = [FoundFile(task, read_rows(target, task, table.version_columns, wanted)) for task in tasks]
    return [file for file in files if file.rows.num_rows]


def size_of(tasks: Iterable[FileScanTask]) -> int:
    """Return the bytes of the tasks' data files."""
    return sum(task.file.file_size_in_bytes for task in tasks)


def _matching_bytes(target: Table, task: FileScanTask, matching: pc.Expression) -> int:
    """Return the bytes of the row groups that may have matching rows."""
    with target.io.new_input(task.file.file_path).open() as file:
        fragment: Any = ds.ParquetFileFormat().make_fragment(cast(Any, file))
        groups = fragment.subset(filter=matching).row_groups
        return sum(group.total_byte_size for group in groups)


def read_rows(
    target: Table, task: FileScanTask, columns: Sequence[str], wanted: BooleanExpression | None = None
) -> pa.Table:
    """Return some columns of a file's rows that are not deleted and match the filter."""
    schema = target.schema().select(*columns)
    scan = ArrowScan(target.metadata, target.io, schema, wanted or AlwaysTrue())
    found: pa.Table = scan.to_table([FileScanTask(task.file, task.delete_files)])
    return found.select(list(columns))


def latest(table: PageTable, staged: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions of the rows with the largest version of each key, ascending.

    Rows with one key and version are copies of one row, of which the first is taken.
    """
    position = np.arange(len(staged))
    numbered = staged.append_column("position", pa.array(position))
    order: list[Any] = [(name, "ascending") for name in table.key]
    order += [*((name, "descending") for name in table.version), ("position", "ascending")]
    ordered = numbered.take(pc.sort_indices(numbered, sort_keys=order)).combine_chunks()
    is_first = np.ones(len(ordered), dtype=np.bool_)
    if len(ordered) > 1:
        keys = (ordered.column(name).combine_chunks() for name in table.key)
        same = [pc.equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False) for key in keys]
        is_first[1:] = ~np.logical_and.reduce(same)
    return np.sort(ordered.column("position").to_numpy()[is_first])
