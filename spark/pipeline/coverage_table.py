"""Appends of coverage and dead letters that a replay does not duplicate.

Both are small and come from the driver, so pyiceberg writes them without a Spark job. Each append first looks for rows
with the same keys; this is safe as each table has one writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression

from services.common.lake.coverage import CoverageRow, encode_coverage
from services.common.lake.tables import COVERAGE, DEAD_LETTERS, IcebergTable
from services.common.model.history import PageResult
from services.common.model.times import iso_microseconds

_ex: Any = expressions  # see upsert.py


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be used, unchanged."""

    partition: int
    offset: int
    reason: str
    key: str | None
    headers: dict[str, str]
    payload: bytes | None


def append_coverage(catalog: Catalog, pages: Sequence[PageResult], *, now_ns: int) -> int:
    """Write one row for each good page that has none yet; return their number.

    A page that compaction has merged into a longer row (``spark/maintenance/coverage_rows.py``) gets a row again. It
    adds nothing to the coverage, and the next compaction merges it again.
    """
    if not pages:
        return 0
    rows = [
        encode_coverage(CoverageRow(p.series, p.span, p.fetched_ns, p.empty, now_ns, p.rows, evidence="page"))
        for p in pages
    ]
    candidates = _ex.And(
        _ex.In("ticker", {p.series.ticker for p in pages}),
        _ex.In("period_seconds", {p.series.period_seconds for p in pages}),
        _between("start_time", [p.span.start_ns for p in pages]),
        _between("fetched_at", [p.fetched_ns for p in pages]),
    )
    return _append_new(catalog, COVERAGE, rows, candidates)


def append_dead_letters(catalog: Catalog, source: str, letters: Sequence[DeadLetter], *, now_ns: int) -> int:
    """Write one row for each record that has none yet; return their number."""
    if not letters:
        return 0
    rows = [
        vars(letter) | {"source": source, "headers": list(letter.headers.items()), "seen_at": now_ns // 1_000}
        for letter in letters
    ]
    offsets = [letter.offset for letter in letters]
    candidates = _ex.And(
        _ex.EqualTo("source", source),
        _ex.In("partition", {letter.partition for letter in letters}),
        _ex.GreaterThanOrEqual("offset", min(offsets)),
        _ex.LessThanOrEqual("offset", max(offsets)),
    )
    return _append_new(catalog, DEAD_LETTERS, rows, candidates)


def _between(column: str, times_ns: Sequence[int]) -> BooleanExpression:
    low, high = iso_microseconds(min(times_ns)), iso_microseconds(max(times_ns))
    both: BooleanExpression = _ex.And(_ex.GreaterThanOrEqual(column, low), _ex.LessThanOrEqual(column, high))
    return both


def _append_new(
    catalog: Catalog, table: IcebergTable, rows: list[dict[str, Any]], candidates: BooleanExpression
) -> int:
    target = catalog.load_table(table.name)
    new = pa.Table.from_pylist(rows, schema=table.arrow)
    seen = set(_keys(table, target.scan(row_filter=candidates, selected_fields=table.key).to_arrow()))
    fresh = []
    for index, key in enumerate(_keys(table, new)):
        if key not in seen:
            seen.add(key)
            fresh.append(index)
    if fresh:
        target.append(new.take(pa.array(fresh)))
    return len(fresh)


def _keys(table: IcebergTable, found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in table.key) for row in table.rows(found.select(table.key))]
