"""SQL catalog with loads and commits that cost about the same for any number of snapshots of a table.

pyiceberg parses a table's whole metadata at each load, and copies and serializes them at each commit. Here a load is
one query while no other process has committed, and a commit serializes only its own snapshot. Metadata are never
changed in place, so tables share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic_core import from_json
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import EMPTY_DICT, IcebergBaseModel, Identifier, Properties
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError

from dexorder_common.storage.durable_sqlite import leave_unsafe_wal

_CHEAP = (AddSnapshotUpdate, SetSnapshotRefUpdate, RemoveSnapshotRefUpdate)
"""Updates that leave schema and layout as they are, so that no copy has to be checked."""


def _sync_commits(connection: Any, _: object) -> None:
    """Have a commit synced, even with a rollback journal: FULL does not sync its deletion."""
    connection.execute("PRAGMA synchronous = EXTRA")


class LakeCatalog(SqlCatalog):
    """Catalog in SQLite or PostgreSQL that keeps the metadata of each table as it has last seen them."""

    def __init__(self, name: str, **properties: str) -> None:
        if (uri := properties.get("uri", "")).startswith("sqlite") and (database := make_url(uri).database):
            leave_unsafe_wal(Path(database))
        super().__init__(name, **properties)
        if self.engine.dialect.name == "sqlite" and Path(self.engine.url.database or "").is_file():
            event.listen(self.engine, "connect", _sync_commits)
            self.engine.dispose()  # the connection that it has opened
        self._kept: dict[Identifier, Table] = {}
        self._texts: dict[UUID, tuple[_JsonList, _JsonList]] = {}

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace; raise NamespaceAlreadyExistsError even if another writer has just created it."""
        try:
            super().create_namespace(namespace, properties)
        except IntegrityError as error:
            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates, as SqlCatalog does, and keep the metadata for the next load."""
        response = super().commit_table(table, requirements, updates)
        self._kept[table.name()] = Table(table.name(), response.metadata, response.metadata_location, table.io, self)
        return response

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        name = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        kept = self._kept.get(name)
        if kept is None or kept.metadata_location != orm_table.metadata_location:
            kept = self._kept[name] = self._read(name, orm_table.metadata_location, kept)
        return Table(name, kept.metadata, kept.metadata_location, kept.io, self)

    def _read(self, name: Identifier, location: str, kept: Table | None) -> Table:
        with self._load_file_io(location=location).new_input(location).open() as file:
            data = from_json(Compressor.get_compressor(location).stream_decompressor(file).read())
        known = {(each.snapshot_id, each.parent_snapshot_id): each for each in kept.metadata.snapshots} if kept else {}
        snapshots = [
            known.get((each["snapshot-id"], each.get("parent-snapshot-id"))) or Snapshot.model_validate(each)
            for each in data.pop("snapshots", None) or ()
        ]
        metadata = TableMetadataUtil.parse_obj(data).model_copy(update={"snapshots": snapshots})
        return Table(name, metadata, location, self._load_file_io(metadata.properties, location), self)

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None or not all(isinstance(each, _CHEAP) for each in updates):
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = _updated(current_table, updates)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(version)
        return StagedTable(table_identifier, metadata, location, current_table.io, self)

    def _write_metadata(self, metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:  # type: ignore[override]
        snapshots, log = self._texts.setdefault(metadata.table_uuid, (_JsonList(), _JsonList()))
        rest = metadata.model_dump_json(exclude={"snapshots", "snapshot_log"}).encode()
        parts = (
            rest[:-1],
            b',"snapshots":[',
            snapshots.of(metadata.snapshots),
            b'],"snapshot-log":[',
            log.of(metadata.snapshot_log),
            b"]}",
        )
        compressed = Compressor.get_compressor(metadata_path).bytes_compressor()
        with io.new_output(metadata_path).create() as file:
            for part in parts:
                file.write(compressed(part))


class _JsonList:
    """JSON of a list that mostly grows at its end, of which only new items are serialized."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._text = bytearray()

    def of(self, items: Sequence[IcebergBaseModel]) -> bytes:
        """Return the items' JSON, separated by commas."""
        known = len(self._items)
        if items[:known] != self._items:
            known = 0
            self._text.clear()
        for item in items[known:]:
            self._text += b"," if self._text else b""
            self._text += item.model_dump_json().encode()
        self._items = list(items)
        return bytes(self._text)


def _updated(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    context, metadata = _TableMetadataUpdateContext(), table.metadata
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    if context.has_changes():
        metadata = _update_table_metadata_log(metadata, table.metadata_location, table.metadata.last_updated_ms)
    return metadata
