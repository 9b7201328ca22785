"""Candles into ``trading.ohlc``: by key (ticker, period_seconds, open_time), the later ``fetched_at`` stays.

Most batches bring only what is new, so a look at their key ranges decides: where nothing is there, their files are
appended as they are; where all is there already, as in a replay, nothing is done. Else a MERGE, merge-on-read, with the
ranges as literals in ON (without them Iceberg reads the whole table). Each way is idempotent: what is there with the
same or a later ``fetched_at`` is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.storagelevel import StorageLevel

from services.common.model.time_range import TimeRange, merge
from spark.pipeline.columns import CANDLE, KEY, time_text
from spark.pipeline.files import Layout, append, frame, read_columns, remove

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_SCAN_RANGES = 32
"""Boxes a filter or an ON may hold; more are covered by fewer, wider ones."""
_MOST_PROBED_BYTES = 64 * 1024 * 1024
VERSION_COLUMNS = (*KEY, "fetched_at")
"""Columns that say which copy of a candle a row is."""
_ex: Any = expressions  # its constructors take a column's name and a value, which their annotations do not say


class Presence(Enum):
    """What a table has of a batch's candles."""

    NOTHING = auto()
    SOMETHING = auto()
    """Some of them, or all with some older, or too much to look at."""
    ALL = auto()
    """All of them, none older."""


@dataclass(frozen=True, order=True)
class KeyRange:
    """Open times of one ticker and period."""

    ticker: str
    period_seconds: int
    span: TimeRange


@dataclass(frozen=True, order=True)
class ScanRange:
    """Open times of some tickers in one period; what a filter or an ON is made of."""

    tickers: tuple[str, ...]
    period_seconds: int
    span: TimeRange


def scan_ranges(pages: Iterable[KeyRange], limit: int = MAX_SCAN_RANGES) -> list[ScanRange]:
    """Boxes that hold every key of the pages: exact ones if these are few, else one a ticker, else one a period."""
    spans: dict[tuple[tuple[str, ...], int], list[TimeRange]] = {}
    for page in pages:
        spans.setdefault(((page.ticker,), page.period_seconds), []).append(page.span)
    merged = {key: merge(parts) for key, parts in spans.items()}
    if sum(map(len, merged.values())) > limit:
        merged = {key: [_hull(parts)] for key, parts in merged.items()}
    if len(merged) > limit:
        by_period = {period: [key for key in merged if key[1] == period] for _, period in merged}
        merged = {
            (tuple(sorted(key[0][0] for key in keys)), period): [_hull(merged[key][0] for key in keys)]
            for period, keys in by_period.items()
        }
    return sorted(ScanRange(*key, span) for key, parts in merged.items() for span in parts)


def _hull(spans: Iterable[TimeRange]) -> TimeRange:
    parts = list(spans)
    return TimeRange(min(p.start_ns for p in parts), max(p.end_ns for p in parts))


def overlap(pages: Sequence[KeyRange]) -> bool:
    """Whether two pages may hold the same key; if not, the batch needs no de-duplication."""
    ordered = sorted(pages)
    return any(
        (a.ticker, a.period_seconds) == (b.ticker, b.period_seconds) and b.span.start_ns < a.span.end_ns
        for a, b in pairwise(ordered)
    )


def row_filter(parts: Sequence[ScanRange]) -> BooleanExpression:
    """The boxes (at least one) as a pyiceberg expression."""
    either: BooleanExpression = reduce(
        _ex.Or,
        [
            _ex.And(
                _ex.And(_ex.In("ticker", set(box.tickers)), _ex.EqualTo("period_seconds", box.period_seconds)),
                _ex.And(
                    _ex.GreaterThanOrEqual("open_time", time_text(box.span.start_ns)),
                    _ex.LessThan("open_time", time_text(box.span.end_ns)),
                ),
            )
            for box in parts
        ],
    )
    return either


def merge_condition(parts: Sequence[ScanRange]) -> str:
    """ON of the MERGE: target ``t`` and source ``s`` have the same key, and the target's lies in the boxes."""
    same = " AND ".join(f"t.{column} = s.{column}" for column in KEY)
    inside = " OR ".join(
        f"(t.ticker IN ({', '.join(map(_quoted, box.tickers))}) AND t.period_seconds = {box.period_seconds}"
        f" AND t.open_time >= TIMESTAMP '{time_text(box.span.start_ns, ' ')}'"
        f" AND t.open_time < TIMESTAMP '{time_text(box.span.end_ns, ' ')}')"
        for box in parts
    )
    return f"{same} AND ({inside})"


def presence_of(table: Table, parts: Sequence[ScanRange], staged: Callable[[], pa.Table]) -> Presence:
    """What the table has of staged candles.

    Files whose bounds rule it out are not opened. Bounds of a file that several jobs share reach over what it does not
    hold, so a few small candidates are looked into: that is cheaper than a MERGE that finds nothing new.

    Args:
        parts: Boxes that hold every key of them.
        staged: Their keys and ``fetched_at``, no key twice.
    """
    scan = table.scan(row_filter=row_filter(parts), selected_fields=VERSION_COLUMNS)
    tasks = list(scan.plan_files())
    if not tasks:
        return Presence.NOTHING
    if sum(task.file.file_size_in_bytes for task in tasks) > _MOST_PROBED_BYTES:
        return Presence.SOMETHING
    found = scan.to_arrow()
    return compare(staged(), found) if found.num_rows else Presence.NOTHING


def compare(staged: pa.Table, found: pa.Table) -> Presence:
    """What ``found`` has of ``staged``; both of the columns `VERSION`, and no key twice in either."""
    key = list(KEY)
    found = found.select(VERSION_COLUMNS).cast(pa.schema([CANDLE.field(name) for name in VERSION_COLUMNS]))
    both = staged.join(found, key, join_type="inner", right_suffix="_found")
    if not both.num_rows:
        return Presence.NOTHING
    newer = pc.any(pc.greater(both.column("fetched_at"), both.column("fetched_at_found"))).as_py()
    return Presence.SOMETHING if newer or both.num_rows < staged.num_rows else Presence.ALL


def write(
    session: SparkSession, table_name: str, target: Table, files: Sequence[DataFile], pages: Sequence[KeyRange]
) -> Literal["append", "merge", "none"]:
    """Commit a batch's staged candles; returns how.

    Args:
        table_name: With the catalog, as Spark knows it.
        target: The same table, freshly loaded by pyiceberg.
        files: What the workers have written; after a merge, or if there was nothing to do, they are removed.
        pages: What bounds the keys, at least one.
    """
    parts, doubled = scan_ranges(pages), overlap(pages)
    there = (
        Presence.SOMETHING
        if doubled
        else presence_of(target, parts, lambda: read_columns(target.io, files, VERSION_COLUMNS))
    )
    if there is Presence.NOTHING:
        append(target, files)
        return "append"
    if there is Presence.SOMETHING:
        _merge(session, table_name, frame(session, Layout.of(target), files), parts, doubled=doubled)
    remove(target.io, files)
    return "none" if there is Presence.ALL else "merge"


def _merge(
    session: SparkSession, table_name: str, candles: DataFrame, parts: Sequence[ScanRange], *, doubled: bool
) -> None:
    # Columns by name: SET * and INSERT * would do the same but for a table that has grown a column.
    names = CANDLE.names
    updates = ", ".join(f"t.{name} = s.{name}" for name in names if name not in KEY)
    candles = (_latest(candles) if doubled else candles).persist(StorageLevel.MEMORY_AND_DISK)  # MERGE reads it twice
    try:
        candles.createOrReplaceTempView("dexorder_batch")
        session.sql(
            f"MERGE INTO {table_name} t USING dexorder_batch s ON {merge_condition(parts)} "  # noqa: S608 - quoted above
            f"WHEN MATCHED AND s.fetched_at > t.fetched_at THEN UPDATE SET {updates} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        )
    finally:
        candles.unpersist()


def _latest(candles: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    others = [name for name in CANDLE.names if name not in KEY]
    # The values break a tie, so that a replay of the batch picks the same row.
    best = f.max(f.struct("fetched_at", *(name for name in others if name != "fetched_at"))).alias("best")
    grouped = candles.groupBy(*KEY).agg(best)
    return grouped.select(*KEY, *(f.col(f"best.{name}").alias(name) for name in others))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
