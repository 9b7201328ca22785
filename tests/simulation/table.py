"""An Iceberg table of candles: snapshots with rows, claims and a state, and a compare-and-swap between them.

A commit says which rows it adds and removes. It succeeds only if the table is still the snapshot that was looked at;
what is new is decided by the pipeline's own rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from dexorder_common.lake.claims import claim_rows
from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.lake.coverage import Claim, CoverageRow, Retraction
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.pipeline.place import Look
from dexorder_spark.pipeline.presence import FoundFile, difference
from dexorder_spark.tables.ohlc import CANDLES

VALUES = ("open", "high", "low", "close", "volume")


class Key(NamedTuple):
    """Key of a row."""

    ticker: str
    period_seconds: int
    open_us: int


class Row(NamedTuple):
    """Version and values of a row."""

    dispatch: int
    page: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Snapshot:
    """The table after a commit. A key has more than one row only if a commit went wrong."""

    number: int = 0
    rows: Mapping[Key, tuple[Row, ...]] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[CoverageRow, ...] = ()

    @property
    def state(self) -> CommitState:
        """State of the pipeline."""
        return CommitState.decode(self.properties) or CommitState()

    def rows_in(self, series: Series, span: TimeRange) -> dict[int, tuple[Row, ...]]:
        """Return the rows of a series that open in a range, by open time."""
        step_ns, found = series.period_seconds * SECOND_NS, {}
        for open_ns in range(span.start_ns, span.end_ns, step_ns):
            if rows := self.rows.get(Key(series.ticker, series.period_seconds, open_ns // 1_000)):
                found[open_ns] = rows
        return found


class Table:
    """The current snapshot, files of claims, and the table of retractions."""

    def __init__(self, random: Random) -> None:
        self.current = Snapshot()
        self.files: dict[str, list[CoverageRow]] = {}
        self.retractions: list[Retraction] = []
        self.lost = 0
        self._random = random

    def swap(
        self, seen: Snapshot, added: Mapping[Key, Row], removed: Mapping[Key, Row], properties: Mapping[str, str]
    ) -> int:
        """Commit; CommitLost if the table is not as it was seen."""
        if self.current is not seen:
            self.lost += 1
            raise CommitLost("the table has changed since it was read")
        return self.apply(added, removed, properties)

    def apply(self, added: Mapping[Key, Row], removed: Mapping[Key, Row], properties: Mapping[str, str]) -> int:
        """Make the next snapshot."""
        rows = dict(self.current.rows)
        for key, old in removed.items():
            rows[key] = tuple(each for each in rows[key] if each != old)
        for key, new in added.items():
            rows[key] = (*rows.get(key, ()), new)
        state = CommitState.decode(properties)
        claims = (*self.current.claims, *self.files.get(state.claims if state else "", ()))
        self.current = Snapshot(self.current.number + 1, rows, properties, claims)
        return self.current.number

    async def pause(self) -> None:
        """Let time pass, as catalog and object store do."""
        await asyncio.sleep(self._random.uniform(0.01, 0.2))

    # ---- what the relay reads and writes

    def candles(self, snapshot_id: int | None = None) -> RowsAt:
        """Return the rows of the current snapshot."""
        return RowsAt(self.current)

    def newest_candles(self, asked_ns: int) -> RowsAt:
        """Return the rows of the current snapshot."""
        return self.candles()

    def coverage(self, since_ns: int = 0) -> Iterator[Claim]:
        """Yield the claims since a time."""
        return (claim for claim in self.current.claims if claim.committed_ns >= since_ns)

    def last_dispatch(self) -> int:
        """Return the largest number of a dispatch that is committed."""
        return self.current.state.dispatch

    def read(self) -> list[Retraction]:
        """Return all retractions."""
        return list(self.retractions)

    def append(self, retractions: Sequence[Retraction], reason: str) -> None:
        """Add retractions."""
        self.retractions += retractions


class RowsAt:
    """Rows of a snapshot, as the relay compares them with coverage."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot_id = snapshot.number or None
        self._snapshot = snapshot

    def times(self, series: Series, span: TimeRange) -> Any:
        """Return the open times of rows."""
        found = [time for time, rows in self._snapshot.rows_in(series, span).items() for _ in rows]
        return np.array(found, np.int64)


@dataclass
class TableBatch:
    """Rows of one batch of the pipeline, as `SourcePlace` commits them."""

    table: Table
    rows: list[pa.RecordBatch]
    now_ns: int

    is_claimed = True

    async def look(self) -> Look[Snapshot]:
        """Load the table."""
        await self.table.pause()
        return Look(self.table.current, self.table.current.state)

    async def claim(self, look: Look[Snapshot], pages: Sequence[PageResult]) -> str:
        """Write a file of claims."""
        rows = claim_rows(pages, now_ns=self.now_ns)
        name = f"claims-{len(self.table.files)}"
        self.table.files[name] = [replace(row, committed_ns=self.now_ns) for row in rows]
        return name if rows else ""

    async def commit(self, look: Look[Snapshot], after: CommitState, *, always: bool) -> int | None:
        """Commit the rows that are new to the table as it was looked at."""
        added, removed = self._new_rows(look.table)
        await self.table.pause()
        if not (added or always):
            return None
        return self.table.swap(look.table, added, removed, after.encode())

    def _new_rows(self, seen: Snapshot) -> tuple[dict[Key, Row], dict[Key, Row]]:
        staged = dict[Key, Row]()
        keys = list[Key]()
        for batch in self.rows:
            columns = batch.select(["ticker", "period_seconds", *VALUES, "dispatch", "page"]).to_pydict()
            opens: list[Any] = batch.column("open_time").view(pa.int64()).to_pylist()
            values = list(zip(*(columns[name] for name in VALUES), strict=True))
            for n, open_us in enumerate(opens):
                key = Key(columns["ticker"][n], columns["period_seconds"][n], open_us)
                keys.append(key)
                row = Row(columns["dispatch"][n], columns["page"][n], values[n])
                if key not in staged or row[:2] > staged[key][:2]:
                    staged[key] = row
        found = [(key, row) for key in staged for row in seen.rows.get(key, ())]
        if not found:
            return staged, {}
        change = difference(CANDLES, _versions(list(staged.items())), [FoundFile(cast(Any, None), _versions(found))])
        order = list(staged)
        new = {order[n]: staged[order[n]] for n in change.new.tolist()}
        return new, {key: row for key, row in found if key in new}


def _versions(rows: Sequence[tuple[Key, Row]]) -> pa.Table:
    """Return rows as the columns that the pipeline's rule compares."""
    names = CANDLES.version_columns
    columns = [(*key, row.dispatch, row.page) for key, row in rows]
    schema = CANDLES.arrow_of(names)
    arrays = [
        pa.array(column).cast(schema.field(name).type)
        for name, column in zip(names, zip(*columns, strict=True), strict=True)
    ]
    return pa.table(arrays, schema=schema)
