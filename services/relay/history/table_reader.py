"""What the Iceberg tables say: coverage at start, and rows of a range at a snapshot. Blocking; run in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from services.common.lake.catalog import COVERAGE_TABLE, OHLC_TABLE
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, merge
from services.relay.history.compare import candles_at

CANDLE_COLUMNS = ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades")
_CLAIM_COLUMNS = ("ticker", "period_seconds", "start_time", "end_time", "empty", "fetched_at")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows of a range.

    Attributes:
        rows: How many; at most the limit asked for.
        last_open_ns: Open time of the limit-th row; None when there are fewer, or no limit was given.
        snapshot_id: Where they were counted; None while the table has no snapshot, or is not there.
        candles: Periods that have a row; with a limit also those of later rows.
    """

    rows: int
    last_open_ns: int | None
    snapshot_id: int | None
    candles: list[TimeRange]


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """What a row of the coverage table claims, and when the exchange had said so."""

    series: Series
    span: TimeRange
    empty: tuple[TimeRange, ...]
    fetched_ns: int


@dataclass(frozen=True, slots=True)
class CoveragePage:
    """A whole row of the coverage table."""

    covered: CoveredRange
    rows: int
    evidence: str
    committed_ns: int


class TableReader:
    """Reads ``trading.ohlc`` and ``trading.coverage``; a table that is not there is an empty one."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def coverage(self) -> Iterator[CoveredRange]:
        """Every range the pipeline has recorded as complete."""
        table = self._table(COVERAGE_TABLE)
        if table is None:
            return
        for batch in table.scan(selected_fields=_CLAIM_COLUMNS).to_arrow_batch_reader():
            yield from map(_covered, batch.to_pylist())

    def pages(self, series: Series, span: TimeRange) -> list[CoveragePage]:
        """The coverage table's rows that reach into ``span``, by start and time of fetching."""
        table = self._table(COVERAGE_TABLE)
        if table is None:
            return []
        wanted = _all(
            (EqualTo, "ticker", series.ticker),
            (EqualTo, "period_seconds", series.period_seconds),
            (GreaterThan, "end_time", _text(span.start_ns)),
            (LessThan, "start_time", _text(span.end_ns)),
        )
        columns = (*_CLAIM_COLUMNS, "rows", "evidence", "committed_at")
        rows = table.scan(row_filter=wanted, selected_fields=columns).to_arrow().to_pylist()
        found = [
            CoveragePage(_covered(row), row["rows"], row["evidence"], time_ns(row["committed_at"])) for row in rows
        ]
        return sorted(found, key=lambda page: (page.covered.span, page.covered.fetched_ns))

    def count(self, series: Series, span: TimeRange, snapshot_id: int | None, limit: int | None) -> RowCount:
        """Count the rows that open in ``span``, or the first ``limit`` of them.

        Args:
            snapshot_id: The snapshot to count at; the current one when None or no longer kept.
        """
        table = self._table(OHLC_TABLE)
        snapshot_id = _kept(table, snapshot_id)
        rows, candles, opens = 0, list[TimeRange](), list[NDArray[np.int64]]()
        for times in _opens(table, series, span, snapshot_id):
            rows += len(times)
            candles += candles_at(times, series.period_seconds)
            if limit is not None:  # else a batch is forgotten with the next one
                opens.append(times)
        if limit is None or rows < limit:
            return RowCount(rows, None, snapshot_id, merge(candles))
        return RowCount(limit, int(np.sort(np.concatenate(opens))[limit - 1]), snapshot_id, merge(candles))

    def times(self, series: Series, span: TimeRange) -> NDArray[np.int64]:
        """Open times of the rows in ``span`` at the current snapshot, nanoseconds, unordered."""
        table = self._table(OHLC_TABLE)
        parts = list(_opens(table, series, span, _kept(table, None)))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def reach(self, series: Series, span: TimeRange) -> tuple[int, int] | None:
        """Open times of the first and the last row in ``span`` at the current snapshot; None when there is no row."""
        table = self._table(OHLC_TABLE)
        ends = [
            (int(times.min()), int(times.max()))
            for times in _opens(table, series, span, _kept(table, None))
            if len(times)
        ]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def candles(self, series: Series, span: TimeRange, snapshot_id: int | None) -> pa.Table:
        """The rows that open in ``span``, ascending; columns ``CANDLE_COLUMNS``. Holds all of them in memory.

        Raises:
            ValueError: The snapshot is no longer kept.
        """
        batches = list(_batches(self._table(OHLC_TABLE), series, span, snapshot_id, CANDLE_COLUMNS))
        if not batches:
            return pa.table({name: pa.array([], pa.int64()) for name in CANDLE_COLUMNS})
        return pa.Table.from_batches(batches).sort_by("open_time")

    def kept(self, snapshot_id: int | None) -> int | None:
        """The same snapshot of ``trading.ohlc`` while the table has it, else the current one; None if it has none."""
        return _kept(self._table(OHLC_TABLE), snapshot_id)

    def _table(self, name: str) -> Table | None:
        try:
            return self._catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


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
    """Open times of the rows in ``span``, nanoseconds, unordered, batch by batch."""
    times = pa.timestamp("us", tz="UTC")
    for batch in _batches(table, series, span, snapshot_id, ("open_time",)):
        yield pc.cast(pc.cast(batch.column("open_time"), times), pa.int64()).to_numpy() * 1_000


def _batches(
    table: Table | None, series: Series, span: TimeRange, snapshot_id: int | None, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if table is None or snapshot_id is None:
        return
    wanted = _all(
        (EqualTo, "ticker", series.ticker),
        (EqualTo, "period_seconds", series.period_seconds),
        (GreaterThanOrEqual, "open_time", _text(span.start_ns)),
        (LessThan, "open_time", _text(span.end_ns)),
    )
    yield from table.scan(row_filter=wanted, selected_fields=columns, snapshot_id=snapshot_id).to_arrow_batch_reader()


def _all(*comparisons: tuple[Callable[..., Any], str, Any]) -> Any:
    return And(*(compare(column, value) for compare, column, value in comparisons))


def _text(time_ns: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_ns // 1_000)).isoformat()


def _covered(row: dict[str, Any]) -> CoveredRange:
    series, empty = Series(row["ticker"], row["period_seconds"]), tuple(map(range_of, row["empty"] or ()))
    return CoveredRange(series, range_of(row), empty, time_ns(row["fetched_at"]))


def range_of(row: Mapping[str, Any]) -> TimeRange:
    """The columns ``start_time`` and ``end_time``."""
    return TimeRange(time_ns(row["start_time"]), time_ns(row["end_time"]))


def time_ns(moment: datetime) -> int:
    """Nanoseconds since the epoch of a time as Arrow gives it."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000
