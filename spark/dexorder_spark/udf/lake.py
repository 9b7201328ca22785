"""Table of a UDF's output: its state, and commits that carry rows, position and state together.

The state is a file that the snapshot's summary names. It lies beside the tables' folders, not in one, as maintenance
removes from these what no snapshot references. A commit succeeds only if the table is as it was when it was read, so of
two drivers one is refused and reads again. The file of the state before is removed after the commit.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files
from pyiceberg.table import Table

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files, remove_files
from dexorder_common.lake.commit_state import CommitState, state_of
from dexorder_common.lake.tables import DEAD_LETTERS, OHLC, UDF_OUTPUTS, udf_table
from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.records.dead_letters import LetterLayout, LetterWriter, append_dead_letters
from dexorder_spark.udf.rows import text_of
from dexorder_spark.udf.sinks import Refused
from dexorder_spark.udf.state import StageState, decode_state, encode_state
from dexorder_udf.options import ValueType

STATES = "udf-states"
"""Folder of the states, beside the folders of the tables."""
_MAPS = {
    ValueType.BOOL: "bools",
    ValueType.INT: "ints",
    ValueType.DOUBLE: "doubles",
    ValueType.STRING: "strings",
    ValueType.DURATION: "ints",
}
_STATE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.state$")


@dataclass(frozen=True)
class Loaded:
    """The table as it was read, which a commit requires to be unchanged.

    Attributes:
        state: None for a table without a state.
        fault: Why its state cannot be read; empty if it can. Only a start from scratch can continue then.
    """

    table: Table
    commit_state: CommitState
    state: StageState | None
    fault: str = ""


class UdfLake:
    """Table of one UDF; one thread uses it."""

    def __init__(self, settings: CatalogSettings, name: str, max_state_bytes: int) -> None:
        self._settings = settings
        self._name = name
        self.declared = udf_table(name)
        self._max_state_bytes = max_state_bytes

    @cached_property
    def _catalog(self) -> Catalog:
        return self._settings.load()

    def load(self) -> Loaded:
        """Return the table, which is created if it does not exist."""
        table = self.declared.load_or_create(self._catalog)
        found = state_of(table.metadata)
        if not found.udf_state:
            return Loaded(table, found, None)
        try:
            with table.io.new_input(found.udf_state).open() as file:
                return Loaded(table, found, decode_state(file.read()))
        except (FileNotFoundError, InvalidRequest) as error:
            reason = error if isinstance(error, InvalidRequest) else "its file is missing"
            fault = (
                f"the state at the current snapshot of {self.declared.name} cannot be read: {reason} "
                f"({found.udf_state}); begin anew with `dexorder udf start {self._name} --anew`"
            )
            return Loaded(table, found, StageState(outputs=self._count(table)), fault)

    def _count(self, table: Table) -> int:
        """Return the sequence number after the last row."""
        found = table.scan(selected_fields=("sequence",)).to_arrow().column("sequence")
        return int(pc.max(found).as_py()) + 1 if len(found) else 0

    def commit(
        self, loaded: Loaded, after: CommitState, state: StageState, rows: Sequence[Mapping[str, Any]]
    ) -> Loaded:
        """Commit rows and state with one snapshot, and return the table after it.

        Args:
            after: The position and what belongs to it; the path of the state is added.

        Raises:
            CommitLost: Another writer has committed since the table was read.
            InvalidRequest: The state is too large.
        """
        table, before = loaded.table, loaded.commit_state.udf_state
        path = self._write(table, encode_state(state, self._max_state_bytes))
        files = []
        try:
            if rows:
                data = pa.Table.from_pylist(list(rows), schema=self.declared.arrow)
                data = data.sort_by([(name, "ascending") for name in self.declared.order_columns])
                files = list(_dataframe_to_data_files(table_metadata=table.metadata, df=data, io=table.io))
            found = CommitState(**vars(after) | {"udf_state": path})
            commit_files(table, added=files, properties=found.encode())
        except BaseException:
            remove_files(table.io, files)
            _remove(table, path)
            raise
        if before:
            _remove(table, before)
        return Loaded(self._catalog.load_table(self.declared.name), found, state)

    def commit_sent(self, loaded: Loaded, sent: int) -> Loaded:
        """Commit how many rows were sent on, and return the table after it; CommitLost as in ``commit``."""
        found = replace(loaded.commit_state, udf_sent=sent)
        commit_files(loaded.table, properties=found.encode())
        return Loaded(self._catalog.load_table(self.declared.name), found, loaded.state)

    def declare(self, loaded: Loaded, outputs: Mapping[str, ValueType]) -> Loaded:
        """Keep the declared fields with the table, unless it has them, and return the table after it."""
        wanted = json.dumps({name: _MAPS[kind] for name, kind in sorted(outputs.items())}) if outputs else ""
        if loaded.table.properties.get(UDF_OUTPUTS, "") == wanted:
            return loaded
        with loaded.table.transaction() as change:
            change.set_properties({UDF_OUTPUTS: wanted})
        return replace(loaded, table=self._catalog.load_table(self.declared.name))

    def rows(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the rows from one sequence number to another, in order."""
        made: Any = expressions
        table = self._catalog.load_table(self.declared.name)
        wanted = made.And(made.GreaterThanOrEqual("sequence", first), made.LessThan("sequence", end))
        return sorted(self.declared.rows(table.scan(row_filter=wanted).to_arrow()), key=lambda row: row["sequence"])

    def bury(self, refused: Sequence[Refused]) -> None:
        """Write rows that can't be sent on to the dead letters; a row that is there already is not written again.

        A letter's source is the table and the place that has refused the row, its offset the row's sequence.
        """
        DEAD_LETTERS.load_or_create(self._catalog)
        for place in sorted({each.place for each in refused}):
            source = f"{self.declared.name}>{place}"
            writer = LetterWriter(LetterLayout.of(source, self._catalog), now_ns=time.time_ns())
            letters = [each for each in refused if each.place == place]
            for each in letters:
                row = each.row
                payload = text_of(self._name, row)
                kept = {"partition": 0, "offset": row["sequence"], "key": row["group"], "payload": payload}
                writer.add(kept | {"headers": {"dx-udf": self._name}}, each.reason)
            writer.flush()
            append_dead_letters(self._catalog, source, {(0, each.row["sequence"]) for each in letters}, writer.written)

    def _write(self, table: Table, data: bytes) -> str:
        path = f"{_folder(table)}/{self._name}-{uuid.uuid4()}.state"
        with table.io.new_output(path).create() as file:
            file.write(data)
        return path


def remove_orphan_states(catalog: Catalog, before_ns: int) -> int:
    """Remove states older than ``before_ns``, wall clock, that no table has; return their number.

    A driver that is killed between writing and committing leaves one behind, and so does a table that is dropped.
    Younger ones may be about to be committed.
    """
    near = OHLC.load(catalog)
    if near is None or not isinstance(near.io, PyArrowFileIO):
        return 0
    scheme, netloc, path = near.io.parse_location(_folder(near), near.io.properties)
    files = near.io.fs_by_scheme(scheme, netloc)
    found = files.get_file_info(FileSelector(path, allow_not_found=True))
    old = [each for each in found if _STATE.search(each.base_name) and (each.mtime_ns or before_ns) < before_ns]
    tables = [udf_table(name).load(catalog) for name in {_STATE.sub("", each.base_name) for each in old}]
    used = {state_of(table.metadata).udf_state.rpartition("/")[2] for table in tables if table is not None}
    orphans = [each.path for each in old if each.base_name not in used]
    for each in orphans:
        files.delete_file(each)
    return len(orphans)


def _folder(table: Table) -> str:
    return f"{table.location().rstrip('/').rpartition('/')[0]}/{STATES}"


def _remove(table: Table, path: str) -> None:
    with suppress(Exception):  # one that stays is never read again
        table.io.delete(path)
