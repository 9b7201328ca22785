"""Merge of a partition's smallest data files into one, without Spark and in a fraction of a second.

Batches of trades leave a small file in each partition every few seconds, and claims of coverage one a minute. A reader
pays about as much for each of them as for a large one. Merged are the smallest files up to the first that is more than
``RATIO`` times as large as those before it together. So the number of files grows with the logarithm of their size, and
a row is written again about once for each of these steps.

Files are read and written while batches commit. Only the commit needs the table for itself: it is made on the table as
it is then, if that still has the files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from dexorder_common.lake.commit import commit_files, remove_files
from dexorder_common.lake.rewrite import rows_of
from dexorder_common.lake.tables import IcebergTable, writable

MIN_FILES = 3
RATIO = 16
Reduce = Callable[[pa.Table], pa.Table]
"""Returns rows that say the same in fewer."""


@dataclass(frozen=True)
class _Merge:
    """Files of a partition, and the files that replace them."""

    removed: tuple[DataFile, ...]
    added: tuple[DataFile, ...]


def count_to_merge(sizes: Iterable[int], max_bytes: int) -> int:
    """Return how many of the smallest files to merge, of which ``sizes`` are given in ascending order; 0 for none."""
    total = count = 0
    for size in sizes:
        if total + size > max_bytes or (count and size > RATIO * total):
            break
        total += size
        count += 1
    return count if count >= MIN_FILES else 0


def merge_small_files(
    catalog: Catalog,
    declared: IcebergTable,
    *,
    max_bytes: int,
    alone: Callable[[], AbstractContextManager[None]],
    reduce: Reduce | None = None,
) -> int:
    """Merge the smallest files of each partition in one commit; return by how many files the table has fewer.

    Args:
        max_bytes: Largest size of the files that become one.
        alone: Held during the commit to keep out other writers of this process.

    Raises:
        CommitLost: Another process was faster; the table is unchanged.
    """
    table = declared.load(catalog)
    chosen = _choose(table, max_bytes) if table is not None else []
    if table is None or not chosen:
        return 0
    merges: list[_Merge] = []
    try:
        for files in chosen:
            merges.append(_write(table, declared, files, reduce))
        with alone():
            return _commit(catalog.load_table(declared.name), merges)
    except BaseException:
        remove_files(table.io, (file for merge in merges for file in merge.added))
        raise


def _choose(table: Table, max_bytes: int) -> list[list[FileScanTask]]:
    """Return the files to merge, of each partition that has enough of them."""
    partitions = defaultdict[tuple[Any, ...], list[FileScanTask]](list)
    for task in table.scan().plan_files():
        # Deletes are for the compaction, which also writes files of an older partition spec again.
        if not task.delete_files and task.file.spec_id == table.metadata.default_spec_id:
            partitions[_values(task.file)].append(task)
    chosen = []
    for tasks in partitions.values():
        tasks.sort(key=lambda task: task.file.file_size_in_bytes)
        count = count_to_merge((task.file.file_size_in_bytes for task in tasks), max_bytes)
        chosen += [tasks[:count]] if count else []
    return chosen


def _values(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[place] for place in range(len(file.partition)))


def _write(table: Table, declared: IcebergTable, tasks: Sequence[FileScanTask], reduce: Reduce | None) -> _Merge:
    rows = pa.concat_tables([part for task in tasks for part in rows_of(table, task)])
    if reduce is not None:
        rows = reduce(rows)
    ordered = rows.sort_by([(name, "ascending") for name in declared.order_columns])
    added = tuple(_dataframe_to_data_files(writable(table.metadata), ordered, table.io))
    return _Merge(tuple(task.file for task in tasks), added)


def _commit(table: Table, merges: Sequence[_Merge]) -> int:
    """Commit the merges of files that are unchanged in the table; remove the files of the other merges."""
    intact = {task.file.file_path for task in table.scan().plan_files() if not task.delete_files}
    valid = [merge for merge in merges if intact.issuperset(file.file_path for file in merge.removed)]
    added = [file for merge in valid for file in merge.added]
    removed = [file for merge in valid for file in merge.removed]
    if removed:
        commit_files(table, added=added, removed=removed, keeps_rows=True)
    remove_files(table.io, (file for merge in merges if merge not in valid for file in merge.added))
    return len(removed) - len(added)
