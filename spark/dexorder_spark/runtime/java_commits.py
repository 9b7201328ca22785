"""Commits by Iceberg's Java to tables in a local folder, with files on disk before the catalog names them.

Java syncs no file that it writes. So here it commits to a separate catalog in a scratch folder, which has the table
as the caller has loaded it. Then the files that it has written are synced, and its snapshots are committed to the real
catalog, if the table there is still as it was loaded. To a warehouse elsewhere Java commits itself.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import CommitLost, commit_updates
from dexorder_common.lake.local_files import is_local, sync_file
from dexorder_spark.runtime.session import catalog_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_NAME = "dexorder_scratch"


@lru_cache(maxsize=1)
def _scratch_settings() -> CatalogSettings:
    folder = tempfile.mkdtemp(prefix="dexorder-catalog-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return CatalogSettings.local(Path(folder), _NAME)


def commit_by_java(session: SparkSession, table: Table, work: Callable[[str], T]) -> T:
    """Run ``work``, which commits to the table with Spark, and return its result.

    Args:
        table: As it was loaded.
        work: Takes the name under which Spark knows the catalog. It must remove no file that the table needs.

    Raises:
        CommitLost: Another writer of a local warehouse was faster; nothing has changed.
    """
    if not is_local(table.catalog.properties):
        return work(table.catalog.name)
    scratch = _with_table(session, table)
    result = work(_NAME)
    changed = scratch.load_table(table.name())
    try:
        _publish(table, changed)
    finally:
        _forget(scratch, table)
        for location in _own_metadata(table, changed):
            with suppress(Exception):  # maintenance removes it
                table.io.delete(location)
    return result


def expire_by_java(session: SparkSession, table: Table, snapshot_ids: list[int], work: Callable[[str], T]) -> T:
    """Run ``work``, which removes snapshots with Spark and then the files that only they need; return its result.

    In a local warehouse the catalog forgets the snapshots first. A file that is left behind after a crash is one that
    nothing refers to.

    Raises:
        CommitLost: Another writer of a local warehouse was faster; nothing has changed.
    """
    if not is_local(table.catalog.properties):
        return work(table.catalog.name)
    scratch = _with_table(session, table)
    _commit(table, RemoveSnapshotsUpdate.model_validate({"snapshot-ids": snapshot_ids}))
    try:
        return work(_NAME)
    finally:
        with suppress(Exception):  # maintenance removes it
            for location in _own_metadata(table, scratch.load_table(table.name())):
                table.io.delete(location)
        _forget(scratch, table)


def _with_table(session: SparkSession, table: Table) -> Catalog:
    """Return the scratch catalog, which Spark knows too, with the table as it was loaded."""
    settings = _scratch_settings()
    for key, value in catalog_conf(settings).items():
        session.conf.set(key, value)
    scratch = settings.load()
    scratch.create_namespace_if_not_exists(table.name()[:-1])
    _forget(scratch, table)  # of a call that has failed
    scratch.register_table(table.name(), table.metadata_location)
    return scratch


def _forget(scratch: Catalog, table: Table) -> None:
    with suppress(NoSuchTableError):
        scratch.drop_table(table.name())


def _publish(table: Table, changed: Table) -> None:
    known = {each.snapshot_id for each in table.metadata.snapshots}
    added = [each for each in changed.metadata.snapshots if each.snapshot_id not in known]
    if not added:
        return
    for location in (each for snapshot in added for each in written_files(table, snapshot)):
        sync_file(Path(unquote(urlsplit(location).path)))
    newest = SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": MAIN_BRANCH,
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": changed.metadata.current_snapshot_id,
        }
    )
    _commit(table, *(AddSnapshotUpdate(snapshot=each) for each in added), newest)


def _commit(table: Table, *updates: Any) -> None:
    unchanged = AssertRefSnapshotId.model_validate(
        {"ref": MAIN_BRANCH, "snapshot-id": table.metadata.current_snapshot_id}
    )
    try:
        commit_updates(table, updates, [unchanged])
    except CommitFailedException as error:
        raise CommitLost(f"{'.'.join(table.name())} has changed since it was read: {error}") from error


def written_files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Yield the locations of all files that were written for a snapshot."""
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status is ManifestEntryStatus.ADDED:
                    yield entry.data_file.file_path


def _own_metadata(table: Table, changed: Table) -> Iterator[str]:
    """Yield the metadata files that Java has written on the way."""
    known = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    for location in (changed.metadata_location, *(each.metadata_file for each in changed.metadata.metadata_log)):
        if location not in known:
            yield location
