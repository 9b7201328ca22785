"""Commits that succeed only if the table is as it was when it was loaded.

pyiceberg's own commits repeat a commit that lost against another writer, without another look at the table, and copy
the whole metadata many times. Here a commit is built from the loaded metadata as they are, and a lost one is raised, so
that the caller looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AssertTableUUID, TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _MergeAppendFiles, _OverwriteFiles

from dexorder_common.model.errors import Conflict

_MERGED_MANIFESTS = 16
_MERGED_BYTES = 256 * 1024
_REPLACED_BYTES = 32 * 1024
"""About a hundred files; a replacement of small files writes such a manifest again every few seconds."""


class CommitLost(Conflict):
    """Another writer has committed since the table was loaded. Nothing was committed; load the table and try again."""


class _Loaded(Transaction):
    """The table as it was loaded, without the copy of the metadata that each access to a transaction makes."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


class _Append(_MergeAppendFiles):
    """Append that merges small manifests because a look at the table reads every manifest of its partitions."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._merge_enabled = True
        self._min_count_to_merge = _MERGED_MANIFESTS
        self._target_size_bytes = _MERGED_BYTES


class _Overwrite(_OverwriteFiles):
    """Overwrite that evaluates one manifest at a time.

    pyiceberg does it in threads with one evaluator, which keeps the manifest that it evaluates in a field: a thread
    read the partitions of another one's manifest, and a file that is in the table was "missing".
    """

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        evaluate, turn = super()._build_manifest_evaluator(spec_id), Lock()

        def evaluate_alone(manifest: ManifestFile) -> bool:
            with turn:
                return evaluate(manifest)

        return evaluate_alone


class _Replace(_Overwrite):
    """Replacement of files by others with the same rows, which pyiceberg does not offer.

    It merges small manifests: a replacement comes after every few appends, and each leaves one to four of them.
    """

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        merging = _ManifestMergeManager[Any](_REPLACED_BYTES, 2, True, self)
        return merging.merge_manifests(manifests)

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - as it is overridden
        made = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **made.additional_properties)


def commit_files(
    table: Table,
    *,
    added: Sequence[DataFile] = (),
    removed: Sequence[DataFile] = (),
    properties: Mapping[str, str] | None = None,
    keeps_rows: bool = False,
) -> int:
    """Replace data files of the table by others in one snapshot; return its id. Without files it is an empty snapshot.

    Args:
        table: As it was looked at.
        properties: Go to the snapshot's summary.
        keeps_rows: The files have the same rows as the replaced ones, so readers of changes may skip the snapshot.

    Raises:
        CommitLost: The current snapshot is no longer the table's.
    """
    kind: Any = _Replace if keeps_rows else _Overwrite if removed else _Append
    operation = Operation.OVERWRITE if removed else Operation.APPEND
    change = kind(operation, _Loaded(table), table.io, snapshot_properties=dict(properties or {}))
    for file in added:
        change.append_data_file(file)
    for file in removed:
        change.delete_data_file(file)
    updates, requirements = change._commit()
    try:
        commit_updates(table, updates, requirements)
    except CommitFailedException as error:
        for path in (*change._written_manifests, *change._written_manifest_lists):
            table.io.delete(path)
        raise CommitLost(f"{'.'.join(table.name())} has changed since it was read: {error}") from error
    return int(change.snapshot_id)


def commit_updates(table: Table, updates: Iterable[TableUpdate], requirements: Iterable[TableRequirement] = ()) -> None:
    """Commit updates, and remove the metadata files that are older than the table's properties say.

    Raises:
        CommitFailedException: A requirement is not met, or another writer was faster. The table is unchanged.
    """
    unchanged = AssertTableUUID(uuid=table.metadata.table_uuid)
    committed = table.catalog.commit_table(table, (unchanged, *requirements), tuple(updates))
    with suppress(Exception):  # files that stay are removed as orphans
        table.catalog._delete_old_metadata(table.io, table.metadata, committed.metadata)


def remove_files(io: FileIO, files: Iterable[DataFile]) -> None:
    """Delete uncommitted files; maintenance removes files that cannot be deleted now."""
    for file in files:
        with suppress(Exception):
            io.delete(file.file_path)


def append_rows(table: Table, rows: pa.Table, properties: Mapping[str, str] | None = None) -> int:
    """Write rows to files and append them in one snapshot; return its id. CommitLost as in ``commit_files``."""
    files = list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))
    return commit_files(table, added=files, properties=properties)
