"""Ranges of keys: those of a batch's pages, and the few that contain them, in which a table is looked at. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, TypeAlias

from pyiceberg import expressions
from pyiceberg.expressions import BooleanExpression

from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import iso_microseconds
from dexorder_spark.tables.table import PageTable

MAX_SCAN_RANGES = 32
"""Largest number of ranges in a filter or an ON; more are covered by fewer, wider ones."""
_ex: Any = expressions  # its constructors take a column's name and a value, which their annotations do not allow
Value: TypeAlias = str | int
Bounds: TypeAlias = tuple[Any, Any]
"""Smallest and largest value of a column in a file; None if unknown."""


@dataclass(frozen=True, order=True)
class KeyRange:
    """Rows of one series in a range of time; ``series`` has the values of the table's series columns."""

    series: tuple[Value, ...]
    span: TimeRange


@dataclass(frozen=True, order=True)
class ScanRange:
    """Rows of some series in a range of time. The series differ only in the first series column, if there is one.

    Attributes:
        first_values: Values of that column, ascending.
    """

    first_values: tuple[Value, ...]
    other_values: tuple[Value, ...]
    span: TimeRange

    def may_be_in(self, series: Sequence[Bounds], opens_us: Bounds) -> bool:
        """Return whether a file may have rows of the range, by the bounds of the columns of its key.

        Args:
            series: Bounds of the series columns, in their order.
            opens_us: Bounds of the times, in microseconds.
        """
        others = zip(series[1:], self.other_values, strict=True)
        return (
            _overlaps(opens_us, self.span.start_ns // 1_000, (self.span.end_ns - 1) // 1_000)
            and all(_overlaps(bounds, value, value) for bounds, value in others)
            and (not series or _any_in(series[0], self.first_values))
        )


def _overlaps(bounds: Bounds, first: Any, last: Any) -> bool:
    return (bounds[0] is None or bounds[0] <= last) and (bounds[1] is None or first <= bounds[1])


def _any_in(bounds: Bounds, values: Sequence[Value]) -> bool:
    """Return whether one of some values, ascending, is within bounds."""
    number = 0 if bounds[0] is None else bisect_left(values, bounds[0])
    return number < len(values) and (bounds[1] is None or values[number] <= bounds[1])


def scan_ranges(pages: Iterable[KeyRange], limit: int = MAX_SCAN_RANGES) -> list[ScanRange]:
    """Return ranges that contain every key of the pages.

    They are exact if there are at most ``limit``; else one range per series; else one for all series that differ only
    in the first series column.
    """
    spans: dict[tuple[tuple[Value, ...], tuple[Value, ...]], list[TimeRange]] = {}
    for page in pages:
        spans.setdefault((page.series[:1], page.series[1:]), []).append(page.span)
    merged = {key: merge(parts) for key, parts in spans.items()}
    if sum(map(len, merged.values())) > limit:
        merged = {key: [_hull(parts)] for key, parts in merged.items()}
    if len(merged) > limit:
        groups = {others: [key for key in merged if key[1] == others] for _, others in merged}
        merged = {
            (tuple(sorted(key[0][0] for key in keys)), others): [_hull(merged[key][0] for key in keys)]
            for others, keys in groups.items()
        }
    return sorted(ScanRange(*key, span) for key, parts in merged.items() for span in parts)


def _hull(spans: Iterable[TimeRange]) -> TimeRange:
    parts = list(spans)
    return TimeRange(min(p.start_ns for p in parts), max(p.end_ns for p in parts))


def overlap(pages: Sequence[KeyRange]) -> bool:
    """Return whether two pages may contain the same key; if not, the batch needs no deduplication."""
    ordered = sorted(pages)
    return any(a.series == b.series and b.span.start_ns < a.span.end_ns for a, b in pairwise(ordered))


def row_filter(table: PageTable, ranges: Sequence[ScanRange]) -> BooleanExpression:
    """Return the ranges, at least one, as a pyiceberg expression."""
    first, others = table.series_columns[:1], table.series_columns[1:]
    either: BooleanExpression = reduce(
        _ex.Or,
        [
            _ex.And(
                *(_ex.In(name, set(each.first_values)) for name in first),
                _ex.GreaterThanOrEqual(table.time_column, iso_microseconds(each.span.start_ns)),
                _ex.LessThan(table.time_column, iso_microseconds(each.span.end_ns)),
                *map(_ex.EqualTo, others, each.other_values),
            )
            for each in ranges
        ],
    )
    return either
