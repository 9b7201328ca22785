"""Data files of a table of candles at a snapshot, with the bounds of their rows, from which a series' files are found.

pyiceberg plans a scan from all manifests again, though most requests ask at one snapshot, and the next one shares
nearly all manifests with it. Manifests never change, so each is decoded once here. It is decoded again after
``KEEP_SECONDS``: one that is lost makes the table unreadable, which a later request must notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import PrimitiveType, StringType

from dexorder_common.lake.tables import OHLC
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange

KEEP_SECONDS = 10.0
"""Time after which a file is read again."""
Timer = Callable[[], float]
_Place = tuple[int, tuple[Any, ...]]
"""Partition spec and partition."""


class Bounds(NamedTuple):
    """Smallest and largest value of a column; None if unknown."""

    first: Any
    last: Any

    def overlaps(self, first: Any, last: Any) -> bool:
        """Return whether a value from ``first`` to ``last`` may occur."""
        return (self.first is None or self.first <= last) and (self.last is None or first <= self.last)


class KeyFile(NamedTuple):
    """A data file.

    Attributes:
        bucket: Number of buckets of tickers, and the file's one; None if it isn't partitioned so.
    """

    path: str
    rows: int
    place: _Place
    bucket: tuple[int, int] | None
    tickers: Bounds
    periods: Bounds
    opens_us: Bounds

    def may_hold(self, series: Series, span: TimeRange) -> bool:
        """Return whether the file may have rows of a series that open in a range that isn't empty."""
        return (
            self.opens_us.overlaps(span.start_ns // 1_000, (span.end_ns - 1) // 1_000)
            and self.tickers.overlaps(series.ticker, series.ticker)
            and self.periods.overlaps(series.period_seconds, series.period_seconds)
        )


class SnapshotFiles(NamedTuple):
    """Live files of a snapshot.

    Attributes:
        deleted_from: Partitions that have files of deleted rows.
    """

    data: list[KeyFile]
    deleted_from: frozenset[_Place]

    def of(self, series: Series, span: TimeRange) -> list[KeyFile] | None:
        """Return the files that may have rows of a series in ``span``; None if some of these rows may be deleted."""
        found = [each for each in self.data if each.may_hold(series, span)] if span else []
        counts = {each.bucket[0] for each in found if each.bucket}
        buckets = {(count, _bucket(count, series.ticker)) for count in counts}
        found = [each for each in found if each.bucket is None or each.bucket in buckets]
        return None if any(each.place in self.deleted_from for each in found) else found


class _Manifest(NamedTuple):
    read_at: float
    files: SnapshotFiles


class FileIndex:
    """Files of the snapshots of one table, for the last snapshot that was asked about. For any thread."""

    def __init__(self, timer: Timer = time.monotonic) -> None:
        self._timer = timer
        self._lock = Lock()
        self._snapshot_id: int | None = None
        self._files = SnapshotFiles([], frozenset())
        self._read_at = 0.0
        self._manifests: dict[str, _Manifest] = {}

    def at(self, table: Table, snapshot_id: int) -> SnapshotFiles:
        """Return the files of a snapshot that the table has."""
        with self._lock:
            now = self._timer()
            if snapshot_id != self._snapshot_id or now - self._read_at >= KEEP_SECONDS:
                self._read(table, snapshot_id, now)
            return self._files

    def _read(self, table: Table, snapshot_id: int, now: float) -> None:
        snapshot = table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        self._manifests = {
            each.manifest_path: self._known(each.manifest_path, now) or _Manifest(now, _decode(table, each))
            for each in snapshot.manifests(table.io)
        }
        parts = [each.files for each in self._manifests.values()]
        self._files = SnapshotFiles(
            [file for part in parts for file in part.data],
            frozenset().union(*(part.deleted_from for part in parts)),
        )
        self._snapshot_id, self._read_at = snapshot_id, now

    def _known(self, path: str, now: float) -> _Manifest | None:
        known = self._manifests.get(path)
        return known if known and now - known.read_at < KEEP_SECONDS else None


def _bucket(count: int, ticker: str) -> int:
    found = BucketTransform(count).transform(StringType())(ticker)
    assert found is not None
    return found


def _decode(table: Table, manifest: ManifestFile) -> SnapshotFiles:
    schema, spec = table.schema(), table.specs()[manifest.partition_spec_id]
    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    files = [each.data_file for each in entries]
    return SnapshotFiles(
        [_key_file(each, schema, spec) for each in files if each.content is DataFileContent.DATA],
        frozenset(_place(each) for each in files if each.content is not DataFileContent.DATA),
    )


def _place(file: DataFile) -> _Place:
    partition = file.partition
    return file.spec_id, tuple(partition[n] for n in range(len(partition)))


def _key_file(file: DataFile, schema: Schema, spec: PartitionSpec) -> KeyFile:
    place = _place(file)
    return KeyFile(file.file_path, file.record_count, place, _bucket_of(place, schema, spec), *_bounds(file, schema))


def _bucket_of(place: _Place, schema: Schema, spec: PartitionSpec) -> tuple[int, int] | None:
    ticker = schema.find_field("ticker").field_id
    for field, value in zip(spec.fields, place[1], strict=True):
        if field.source_id == ticker and isinstance(field.transform, BucketTransform) and value is not None:
            return field.transform.num_buckets, value
    return None


def _bounds(file: DataFile, schema: Schema) -> Iterator[Bounds]:
    """Yield the bounds of the columns of the key."""
    for name in OHLC.key:
        field = schema.find_field(name)
        assert isinstance(field.field_type, PrimitiveType)
        ends = ((file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id))
        yield Bounds(*(None if end is None else from_bytes(field.field_type, end) for end in ends))
