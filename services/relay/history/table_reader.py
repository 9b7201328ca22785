"""Reader of the Iceberg tables: coverage, and rows of a range at a snapshot. Blocking; run in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from services.common.lake.coverage import CLAIM_COLUMNS, Claim, CoverageRow, decode_claim, decode_coverage
from services.common.lake.tables import COVERAGE, MICROSECONDS, OHLC, opens_in
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import iso_microseconds
from services.relay.history.compare import candles_at

CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")
_ex: Any = expressions  # its constructors' annotations do not cover (column, value)


@dataclass(frozen=True, slots=True)
class RowCount:
    """Number of rows of a range.

    Attributes:
        rows: At most the requested limit.
        last_open_ns: Open time of the last row within the limit; None if there are fewer rows, or without a limit.
        snapshot_id: Snapshot at which they were counted; None if the table has none or does not exist.
        candles: Periods that have a row, including rows beyond the limit.
    """

    rows: int
    last_open_ns: int | None
    snapshot_id: int | None
    candles: list[TimeRange]


class TableReader:
    """Reads ``trading.ohlc`` and ``trading.coverage``. A table that does not exist is read as an empty one."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def coverage(self) -> Iterator[Claim]:
        """Yield every range that the pipeline has recorded as complete."""
        table = COVERAGE.load(self._catalog)
        if table is not None:
            for batch in table.scan(selected_fields=CLAIM_COLUMNS).to_arrow_batch_reader():
                yield from map(decode_claim, COVERAGE.rows(batch))

    def pages(self, series: Series, span: TimeRange) -> list[CoverageRow]:
        """Return the coverage rows that overlap ``span``, by start and fetch time."""
        table = COVERAGE.load(self._catalog)
        if table is None:
            return []
        overlapping = _ex.And(
            _ex.EqualTo("ticker", series.ticker),
            _ex.EqualTo("period_seconds", series.period_seconds),
            _ex.GreaterThan("end_time", iso_microseconds(span.start_ns)),
            _ex.LessThan("start_time", iso_microseconds(span.end_ns)),
        )
        return sorted(map(decode_coverage, COVERAGE.rows(table.scan(row_filter=overlapping).to_arrow())))

    def count(self, series: Series, span: TimeRange, snapshot_id: int | None, limit: int | None) -> RowCount:
        """Count the rows that open in ``span``, or the first ``limit`` of them.

        Args:
            snapshot_id: The snapshot to count at. The current one is used if it is None or has expired.
        """
        table = OHLC.load(self._catalog)
        snapshot_id = _kept(table, snapshot_id)
        rows, candles, opens = 0, list[TimeRange](), list[NDArray[np.int64]]()
        for times in _opens(table, series, span, snapshot_id):
            rows += len(times)
            candles += candles_at(times, series.period_seconds)
            if limit is not None:  # otherwise keep only one batch in memory
                opens.append(times)
        if limit is None or rows < limit:
            return RowCount(rows, None, snapshot_id, merge(candles))
        return RowCount(limit, int(np.sort(np.concatenate(opens))[limit - 1]), snapshot_id, merge(candles))

    def times(self, series: Series, span: TimeRange) -> NDArray[np.int64]:
        """Return the open times of the rows in ``span`` at the current snapshot, in nanoseconds, unordered."""
        table = OHLC.load(self._catalog)
        parts = list(_opens(table, series, span, _kept(table, None)))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def reach(self, series: Series, span: TimeRange) -> tuple[int, int] | None:
        """Return the first and last open time of the rows in ``span`` at the current snapshot; None without rows."""
        table = OHLC.load(self._catalog)
        ends = [
            (int(times.min()), int(times.max()))
            for times in _opens(table, series, span, _kept(table, None))
            if len(times)
        ]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def candles(self, series: Series, span: TimeRange, snapshot_id: int | None) -> pa.Table:
        """Return the rows that open in ``span``, ascending, with ``CANDLE_COLUMNS``; all of them are in memory.

        Raises:
            ValueError: The snapshot has expired.
        """
        batches = list(_batches(OHLC.load(self._catalog), series, span, snapshot_id, CANDLE_COLUMNS))
        if not batches:
            return pa.table({name: pa.array([], pa.int64()) for name in CANDLE_COLUMNS})
        return pa.Table.from_batches(batches).sort_by("open_time")

    def kept(self, snapshot_id: int | None) -> int | None:
        """Return the snapshot of ``trading.ohlc`` if the table still has it, else the current one, if any."""
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
    """Yield the open times of the rows in ``span`` by batch, in nanoseconds, unordered."""
    for batch in _batches(table, series, span, snapshot_id, ("open_time",)):
        yield pc.cast(pc.cast(batch.column("open_time"), MICROSECONDS), pa.int64()).to_numpy() * 1_000


def _batches(
    table: Table | None, series: Series, span: TimeRange, snapshot_id: int | None, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if table is not None and snapshot_id is not None:
        scan = table.scan(row_filter=opens_in(series, span), selected_fields=columns, snapshot_id=snapshot_id)
        yield from scan.to_arrow_batch_reader()
