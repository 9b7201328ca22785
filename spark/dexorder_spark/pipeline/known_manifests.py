"""Manifests of the tables, each decoded once: the driver looks at a table for each batch, which adds one manifest.

pyiceberg decodes all manifests of a table and evaluates its filter for each file at every look. Here the bounds of the
files are compared with the ranges of the batch first, and only files that may have such rows come to pyiceberg's
filter. A manifest never changes. One that a table does not name any more is forgotten at the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.types import IntegerType, LongType, StringType, TimestampType, TimestamptzType

from dexorder_spark.pipeline.ranges import Bounds, ScanRange
from dexorder_spark.tables.table import PageTable

MAX_KEPT_FILES = 20_000
"""Files of one table that are kept, about 60 MB; the manifests of others are decoded at each look."""
_COMPARED = (IntegerType, LongType, StringType, TimestampType, TimestamptzType)


class _KnownFile(NamedTuple):
    """A live file of a manifest."""

    entry: ManifestEntry
    series: tuple[Bounds, ...]
    opens_us: Bounds

    def may_have(self, ranges: Sequence[ScanRange]) -> bool:
        """Return whether it may have rows of a range, or is a file of deleted rows."""
        if self.entry.data_file.content is not DataFileContent.DATA:
            return True
        return any(each.may_be_in(self.series, self.opens_us) for each in ranges)


class _FoundManifest(ManifestFile):
    """A manifest with some of its entries."""

    found: list[ManifestEntry]

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        """Return the live entries that were found."""
        assert discard_deleted
        return self.found


class KnownManifests:
    """Plans looks at tables, one at a time for each table."""

    def __init__(self) -> None:
        self._kept: dict[UUID, dict[str, list[_KnownFile]]] = {}

    def plan(
        self, table: PageTable, target: Table, ranges: Sequence[ScanRange], row_filter: BooleanExpression
    ) -> Iterable[FileScanTask]:
        """Return the files of the current snapshot that may have rows of the ranges, as a scan of pyiceberg would."""
        snapshot = target.current_snapshot()
        if snapshot is None:
            return []
        found = []
        for manifest, files in self._read(table, target, snapshot.manifests(target.io)):
            made = _FoundManifest(*manifest._data)
            made.found = [each.entry for each in files if each.may_have(ranges)]
            found += [made] * bool(made.found)
        if not any(each.data_file.content is DataFileContent.DATA for made in found for each in made.found):
            return []
        return ManifestGroupPlanner(target.metadata, target.io, row_filter).plan_files(found)

    def _read(
        self, table: PageTable, target: Table, manifests: Sequence[ManifestFile]
    ) -> Iterator[tuple[ManifestFile, list[_KnownFile]]]:
        key, schema = target.metadata.table_uuid, target.schema()
        before, kept, left = self._kept.get(key, {}), dict[str, list[_KnownFile]](), MAX_KEPT_FILES
        self._kept[key] = kept
        for manifest in manifests:
            path = manifest.manifest_path
            if (files := before.get(path)) is None:
                entries = manifest.fetch_manifest_entry(target.io, discard_deleted=True)
                files = [_known(each, table, schema) for each in entries]
            if len(files) <= left:
                kept[path], left = files, left - len(files)
            yield manifest, files


def _known(entry: ManifestEntry, table: PageTable, schema: Schema) -> _KnownFile:
    file = entry.data_file
    series = tuple(_bounds(file, schema, name) for name in table.series_columns)
    return _KnownFile(entry, series, _bounds(file, schema, table.time_column))


def _bounds(file: DataFile, schema: Schema, name: str) -> Bounds:
    field = schema.find_field(name)
    if not isinstance(field.field_type, _COMPARED):
        return None, None
    ends = ((file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id))
    first, last = (None if end is None else from_bytes(field.field_type, end) for end in ends)
    return first, last
