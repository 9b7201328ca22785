"""Reads of the Iceberg tables: claims of coverage at start, and rows of a range at a snapshot. Blocking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThan, LessThan
from pyiceberg.table import Table

from services.common.lake.coverage import CLAIM_COLUMNS, Claim, CoverageRow, decode_claim, decode_coverage
from services.common.lake.tables import COVERAGE, MICROSECONDS, OHLC, opens_in
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import iso_microseconds
from services.relay.history.compare import candles_at

CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows of a range.

    Attributes:
        rows: Number of rows; at most the requested limit.
        last_open_ns: Open time of the limit-th row; None if there are fewer, or no limit was given.
        snapshot_id: Snapshot at which they were counted; None if the table has none, or does not exist.
        candles: Periods that have a row; with a limit also those of later rows.
    """

    rows: int
    last_open_ns: int | None
    snapshot_id: int | None
    candles: list[TimeRange]


class TableReader:
    """Reads ``trading.ohlc`` and ``trading.coverage``. A table that does not exist is read as empty."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def coverage(self) -> Iterator[Claim]:
        """Yield every claim of the coverage table."""
        table = COVERAGE.load(self._catalog)
        if table is None:
            return
        for batch in table.scan(selected_fields=CLAIM_COLUMNS).to_arrow_batch_reader():
            yield from map(decode_claim, COVERAGE.rows(batch))

    def pages(self, series: Series, span: TimeRange) -> list[CoverageRow]:
        """Return the rows of the coverage table that overlap ``span``, by start and time of fetching."""
        table = COVERAGE.load(self._catalog)
        if table is None:
            return []
        made: Any = (GreaterThan, LessThan, EqualTo)  # their annotations do not cover (column, value)
        greater, less, equal = made
        overlapping = And(
            equal("ticker", series.ticker),
            equal("period_seconds", series.period_seconds),
            greater("end_time", iso_microseconds(span.start_ns)),
            less("start_time", iso_microseconds(span.end_ns)),
        )
        rows = map(decode_coverage, COVERAGE.rows(table.scan(row_filter=overlapping).to_arrow()))
        return sorted(rows, key=lambda row: (row.span, row.fetched_ns))

    def count(self, series: Series, span: TimeRange, snapshot_id: int | None, limit: int | None) -> RowCount:
        """Count rows that open in ``span``, at most ``limit``, at the snapshot if it is kept, else the current one."""
        table = OHLC.load(self._catalog)
        snapshot_id = _kept(table, snapshot_id)
        rows, candles, opens = 0, list[TimeRange](), list[NDArray[np.int64]]()
        for times in _opens(table, series, span, snapshot_id):
            rows += len(times)
            candles += candles_at(times, series.period_seconds)
            if limit is not None:  # without a limit no batch is kept in memory
                opens.append(times)
        if limit is None or rows < limit:
            return RowCount(rows, None, snapshot_id, merge(candles))
        return RowCount(limit, int(np.sort(np.concatenate(opens))[limit - 1]), snapshot_id, merge(candles))

    def times(self, series: Series, span: TimeRange) -> NDArray[np.int64]:
        """Return the open times of the rows in ``span`` at the current snapshot, nanoseconds, in any order."""
        table = OHLC.load(self._catalog)
        parts = list(_opens(table, series, span, _kept(table, None)))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def extent(self, series: Series, span: TimeRange) -> tuple[int, int] | None:
        """Return open times of the first and the last row in ``span`` at the current snapshot; None without rows."""
        table = OHLC.load(self._catalog)
        ends = [
            (int(times.min()), int(times.max()))
            for times in _opens(table, series, span, _kept(table, None))
            if len(times)
        ]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def candles(self, series: Series, span: TimeRange, snapshot_id: int | None) -> pa.Table:
        """Return the rows that open in ``span``, ascending; columns ``CANDLE_COLUMNS``. Holds all of them in memory.

        Raises:
            ValueError: The snapshot is no longer kept.
        """
        batches = list(_batches(OHLC.load(self._catalog), series, span, snapshot_id, CANDLE_COLUMNS))
        if not batches:
            return pa.table({name: pa.array([], pa.int64()) for name in CANDLE_COLUMNS})
        return pa.Table.from_batches(batches).sort_by("open_time")

    def kept(self, snapshot_id: int | None) -> int | None:
        """Return the snapshot of ``trading.ohlc`` if it is kept, else the current one; None if there is none."""
        return _kept(OHLC.load(self._catalog), snapshot_id)


def _kept(table: Table | None, snapshot_id: int | None) -> int | None:
    if table is None:
        return None
    if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is not None:
        return snapshot_id
    current = table.current_snapshot()
    return current.snapshot_id if current else None


def _opens(
    table: Table | None, series: Series, span: TimeRange, snapshot_id: int | None
) -> Iterator[NDArray[np.int64]]:
    """Yield the open times of the rows in ``span``, nanoseconds, in any order, batch by batch."""
    for batch in _batches(table, series, span, snapshot_id, ("open_time",)):
        yield pc.cast(pc.cast(batch.column("open_time"), MICROSECONDS), pa.int64()).to_numpy() * 1_000


def _batches(
    table: Table | None, series: Series, span: TimeRange, snapshot_id: int | None, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if table is None or snapshot_id is None:
        return
    rows = table.scan(row_filter=opens_in(series, span), selected_fields=columns, snapshot_id=snapshot_id)
    yield from rows.to_arrow_batch_reader()
