"""Appends that a replay must not double: coverage of good pages, and dead letters.

Both are small and come from the driver, so pyiceberg writes them without a Spark job. Each looks first whether a row
with the same key is there; one writer per table makes look-then-append safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression

from services.common.lake.catalog import COVERAGE_TABLE, DEAD_LETTER_TABLE
from services.common.model.time_range import TimeRange
from spark.pipeline.columns import MICROS, schema, time_text

_ex: Any = expressions  # see upsert.py
_RANGE = pa.struct([pa.field("start_time", MICROS, False), pa.field("end_time", MICROS, False)])
_HEADERS = pa.map_(pa.string(), pa.field("value", pa.string(), False))  # type: ignore[call-overload]
_COVERAGE = schema(
    pa.field("ticker", pa.string(), False),
    pa.field("period_seconds", pa.int32(), False),
    pa.field("start_time", MICROS, False),
    pa.field("end_time", MICROS, False),
    pa.field("rows", pa.int64(), False),
    pa.field("empty", pa.list_(pa.field("element", _RANGE, False)), False),
    pa.field("evidence", pa.string(), False),
    pa.field("fetched_at", MICROS, False),
    pa.field("committed_at", MICROS, False),
)
_COVERAGE_KEY = ("ticker", "period_seconds", "start_time", "end_time", "fetched_at")
_DEAD = schema(
    pa.field("source", pa.string(), False),
    pa.field("partition", pa.int32(), False),
    pa.field("offset", pa.int64(), False),
    pa.field("reason", pa.string(), False),
    pa.field("key", pa.string()),
    pa.field("headers", _HEADERS, False),
    pa.field("payload", pa.binary()),
    pa.field("seen_at", MICROS, False),
)
_DEAD_KEY = ("source", "partition", "offset")


@dataclass(frozen=True)
class GoodPage:
    """A page whose candles are in the table."""

    ticker: str
    period_seconds: int
    span: TimeRange
    fetched_ns: int
    rows: int
    empty: tuple[TimeRange, ...]


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be used, as it came."""

    partition: int
    offset: int
    reason: str
    key: str | None
    headers: dict[str, str]
    payload: bytes | None


def append_coverage(catalog: Catalog, pages: Sequence[GoodPage], *, now_ns: int) -> int:
    """Write one row for each page that has none yet; returns how many.

    Key: ticker, period, range and time of fetching. A page that was merged into a longer line (see
    ``spark/maintenance/coverage_rows.py``) gets a row again, which adds nothing, and is merged into the
    line again.
    """
    rows = [
        {
            "ticker": p.ticker,
            "period_seconds": p.period_seconds,
            "start_time": p.span.start_ns // 1_000,
            "end_time": p.span.end_ns // 1_000,
            "rows": p.rows,
            "evidence": "page",
            "empty": [{"start_time": r.start_ns // 1_000, "end_time": r.end_ns // 1_000} for r in p.empty],
            "fetched_at": p.fetched_ns // 1_000,
            "committed_at": now_ns // 1_000,
        }
        for p in pages
    ]
    if not rows:
        return 0
    there = _all(
        _ex.In("ticker", {p.ticker for p in pages}),
        _ex.In("period_seconds", {p.period_seconds for p in pages}),
        _between("start_time", [p.span.start_ns // 1_000 for p in pages]),
        _between("fetched_at", [p.fetched_ns // 1_000 for p in pages]),
    )
    return _append_new(catalog, COVERAGE_TABLE, rows, _COVERAGE, _COVERAGE_KEY, there)


def append_dead_letters(catalog: Catalog, source: str, letters: Sequence[DeadLetter], *, now_ns: int) -> int:
    """Write one row for each record that has none yet; returns how many. Key: source, partition and offset."""
    rows = [
        {
            "source": source,
            "partition": d.partition,
            "offset": d.offset,
            "reason": d.reason,
            "key": d.key,
            "headers": list(d.headers.items()),
            "payload": d.payload,
            "seen_at": now_ns // 1_000,
        }
        for d in letters
    ]
    if not rows:
        return 0
    offsets = [d.offset for d in letters]
    there = _all(
        _ex.EqualTo("source", source),
        _ex.In("partition", {d.partition for d in letters}),
        _ex.GreaterThanOrEqual("offset", min(offsets)),
        _ex.LessThanOrEqual("offset", max(offsets)),
    )
    return _append_new(catalog, DEAD_LETTER_TABLE, rows, _DEAD, _DEAD_KEY, there)


def _all(*parts: BooleanExpression) -> BooleanExpression:
    both: BooleanExpression = _ex.And(*parts)
    return both


def _between(column: str, micros: Sequence[int]) -> BooleanExpression:
    low, high = (time_text(value * 1_000) for value in (min(micros), max(micros)))
    return _all(_ex.GreaterThanOrEqual(column, low), _ex.LessThanOrEqual(column, high))


def _append_new(
    catalog: Catalog,
    name: str,
    rows: list[dict[str, Any]],
    columns: pa.Schema,
    key: tuple[str, ...],
    there: BooleanExpression,
) -> int:
    table = catalog.load_table(name)
    new = pa.Table.from_pylist(rows, schema=columns)
    seen = _keys(table.scan(row_filter=there, selected_fields=key).to_arrow(), key)
    fresh = []
    for index, values in enumerate(_keys_in_order(new, key)):
        if values not in seen:
            seen.add(values)
            fresh.append(index)
    if fresh:
        table.append(new.take(pa.array(fresh)))
    return len(fresh)


def _keys_in_order(table: pa.Table, key: tuple[str, ...]) -> list[tuple[Any, ...]]:
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in (table.column(name) for name in key)
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _keys(table: pa.Table, key: tuple[str, ...]) -> set[tuple[Any, ...]]:
    return set(_keys_in_order(table, key))
