"""Records that could not be used, in files that the workers write; a replay does not duplicate them.

Their payloads pass neither through Java nor through the driver: a batch of large ones would exceed its memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from dexorder_common.lake.commit import CommitLost, append_rows, commit_files, remove_files
from dexorder_common.lake.tables import DEAD_LETTERS
from dexorder_spark.records.admission import Place

_ex: Any = expressions  # see upsert.py
_MAX_BUFFERED_BYTES = 16 * 1024 * 1024


def without_history(metadata: TableMetadata) -> TableMetadata:
    """Return a table's metadata without the history, which grows, to be sent with tasks."""
    no_history: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    return metadata.model_copy(update=no_history)


@dataclass(frozen=True)
class LetterLayout:
    """Everything a worker must know to write dead letters.

    Attributes:
        source: Address of the source, which a letter names.
    """

    source: str
    metadata: TableMetadata
    io: FileIO

    @staticmethod
    def of(source: str, catalog: Catalog) -> LetterLayout:
        """Return the layout of the catalog's table."""
        table = catalog.load_table(DEAD_LETTERS.name)
        return LetterLayout(source, without_history(table.metadata), table.io)


class LetterWriter:
    """Buffer of refused records, written as files."""

    def __init__(self, layout: LetterLayout, *, now_ns: int) -> None:
        self._layout = layout
        self._seen_at = now_ns // 1_000
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self.written: list[DataFile] = []

    def add(self, record: Mapping[str, Any], reason: str) -> None:
        """Buffer a record in the columns of ``RAW``."""
        kept = {name: record[name] for name in ("partition", "offset", "key", "payload")}
        headers = list(dict(record["headers"] or ()).items())
        row = {"source": self._layout.source, "reason": reason, "seen_at": self._seen_at, "headers": headers}
        self._rows.append(kept | row)
        self._bytes += len(record["payload"] or b"")
        if self._bytes >= _MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records."""
        if self._rows:
            data = pa.Table.from_pylist(self._rows, schema=DEAD_LETTERS.arrow)
            self.written += _dataframe_to_data_files(self._layout.metadata, data, self._layout.io)
        self._rows = []
        self._bytes = 0


def append_dead_letters(catalog: Catalog, source: str, places: Collection[Place], files: Sequence[DataFile]) -> int:
    """Append the letters that the table does not have yet, one for each record; return their number.

    Args:
        places: Records in the files.
    """
    if not places:
        return 0
    while True:
        target = catalog.load_table(DEAD_LETTERS.name)
        fresh = {*places} - _present(target, source, places)
        try:
            if len(fresh) == len(places):
                commit_files(target, added=files)
                return len(fresh)
            if fresh:
                append_rows(target, _read(target.io, files, fresh))
        except CommitLost:  # another driver may have written the same records: look again
            continue
        remove_files(target.io, files)
        return len(fresh)


def _present(target: Table, source: str, places: Collection[Place]) -> set[Place]:
    offsets = [offset for _, offset, *_ in places]
    candidates = _ex.And(
        _ex.EqualTo("source", source),
        _ex.In("partition", {partition for partition, *_ in places}),
        _ex.GreaterThanOrEqual("offset", min(offsets)),
        _ex.LessThanOrEqual("offset", max(offsets)),
    )
    found = target.scan(row_filter=candidates, selected_fields=DEAD_LETTERS.key).to_arrow()
    return {(row["partition"], row["offset"]) for row in found.to_pylist()}


def _read(io: FileIO, files: Sequence[DataFile], places: Collection[Place]) -> pa.Table:
    parts = []
    for each in files:
        with io.new_input(each.file_path).open() as file:
            parts.append(pq.read_table(cast(Any, file)).cast(DEAD_LETTERS.arrow))
    rows = pa.concat_tables(parts)
    keys = rows.select(["partition", "offset"]).to_pylist()
    return rows.filter(pa.array([(key["partition"], key["offset"]) in places for key in keys]))
