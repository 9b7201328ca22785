"""Rules for merging coverage rows: rows that touch or overlap become one row. Pure.

The rows' combined meaning does not change, in whatever order and however often they are merged:

- A retraction cancels earlier claims inside its range.
- A period is settled if a row claims it. It is verified empty if every row that claims it says so: an upsert never
  removes a candle, so if one row has counted a candle, the table has it.

So a page that is replayed after it was merged, and gets a row of its own again, adds nothing; the next merge takes it
into the same row.

Where rows overlap, the last one stands for the range, and only the rest of the others is kept. This requires
rows that add up: candles and empty ranges account for every period, as decoding checks for every page, so the number
of candles in any part is known. A row that does not add up is not merged.

A merged row has the place of its earliest part, so a retraction cancels at least as much of it as of the parts. For the
same reason rows are not merged across a retraction that cancelled one of them but not the other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

from services.common.lake.coverage import CoverageRow, Order, Retraction, Retractions
from services.common.model.instrument import Series
from services.common.model.periods import count_periods, is_on_grid, total_periods
from services.common.model.time_range import TimeRange, merge, subtract

MAX_MERGED_PERIODS = 50_000
"""Periods of a merged row, so that a retraction of a part of it costs few fetches."""
MAX_MERGED_EMPTY = 1_000
"""Empty ranges of a merged row."""
MERGED_PREFIX = "merged "
"""Start of the evidence of merged rows."""
_MERGED = re.compile(MERGED_PREFIX + r"(\d+) pages: (.+)", re.S)


def adds_up(row: CoverageRow) -> bool:
    """Return whether candles and empty ranges account for every period of the range."""
    period_seconds = row.series.period_seconds
    ends = (time_ns for part in (row.span, *row.empty) for time_ns in (part.start_ns, part.end_ns))
    return (
        all(row.span.contains(part) for part in row.empty)
        and all(is_on_grid(time_ns, period_seconds) for time_ns in ends)
        and row.rows + total_periods(row.empty, period_seconds) == count_periods(row.span, period_seconds)
    )


def merge_rows(rows: Iterable[CoverageRow], retractions: Iterable[Retraction] = ()) -> list[CoverageRow]:
    """Return the fewest rows with the same meaning, sorted; rows that cannot be merged are unchanged."""
    by_series: defaultdict[Series, list[CoverageRow]] = defaultdict(list)
    retracted: defaultdict[Series, Retractions] = defaultdict(Retractions)
    for row in rows:
        by_series[row.series].append(row)
    for retraction in retractions:
        if retraction.span:
            retracted[retraction.series].add(retraction.whole_periods(), retraction.order)
    return sorted(row for series, group in by_series.items() for row in _merge_series(sorted(group), retracted[series]))


def _merge_series(rows: Sequence[CoverageRow], retractions: Retractions) -> Iterator[CoverageRow]:
    mergeable = []
    for row in rows:
        if adds_up(row):
            mergeable.append(row)
        else:
            yield row
    for cluster in _clusters(mergeable):
        merged = _merge_cluster(cluster, retractions)
        yield from merged if len(merged) < len(cluster) else cluster


def _clusters(rows: Sequence[CoverageRow]) -> Iterator[list[CoverageRow]]:
    """Split sorted rows where none touches the next."""
    cluster: list[CoverageRow] = []
    end_ns = 0
    for row in rows:
        if cluster and row.span.start_ns > end_ns:
            yield cluster
            cluster = []
        end_ns = max(end_ns, row.span.end_ns) if cluster else row.span.end_ns
        cluster.append(row)
    if cluster:
        yield cluster


def _merge_cluster(cluster: Sequence[CoverageRow], retractions: Retractions) -> list[CoverageRow]:
    period_seconds = cluster[0].series.period_seconds
    claims = [(number, part) for number, row in enumerate(cluster) for part in retractions.claimed(row.span, row.order)]
    filled = merge(part for number, claim in claims for part in subtract([claim], cluster[number].empty))
    empty = subtract((part for _, part in claims), filled)

    def fits(span: TimeRange, order: Order) -> bool:
        first, last = _overlapping(empty, span)
        return (
            count_periods(span, period_seconds) <= MAX_MERGED_PERIODS
            and last - first <= MAX_MERGED_EMPTY
            and not retractions.taken(span, order)
        )

    return [_merged_row(run, cluster, empty) for run in _runs(_pieces(claims, cluster), fits)]


_Claim: TypeAlias = tuple[int, TimeRange]
"""A row's number in its cluster, and a range of it that is not retracted."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range, the numbers of the rows that claim a part of it, and the place of the row that stands for it."""

    span: TimeRange
    rows: frozenset[int]
    order: Order


def _pieces(claims: Sequence[_Claim], cluster: Sequence[CoverageRow]) -> Iterator[_Piece]:
    """Yield, in time order, one piece for each range that one row, the last, stands for."""

    def place(claim: _Claim) -> tuple[Order, int]:
        return cluster[claim[0]].order, claim[0]

    sections = ((max(present, key=place), span, present) for span, present in _sections(claims))
    for (number, _), group in groupby(sections, key=lambda section: section[0]):
        spans, presents = zip(*((span, present) for _, span, present in group), strict=True)
        rows = frozenset(number for present in presents for number, _ in present)
        yield _Piece(TimeRange(spans[0].start_ns, spans[-1].end_ns), rows, cluster[number].order)


def _sections(claims: Sequence[_Claim]) -> Iterator[tuple[TimeRange, list[_Claim]]]:
    """Yield the ranges in which no claim starts or ends, and the claims present there, unless there are none."""
    coming = sorted(claims, key=lambda claim: claim[1], reverse=True)
    present: list[_Claim] = []
    for start_ns, end_ns in pairwise(sorted({t for _, part in claims for t in (part.start_ns, part.end_ns)})):
        present = [claim for claim in present if claim[1].end_ns > start_ns]
        while coming and coming[-1][1].start_ns == start_ns:
            present.append(coming.pop())
        if present:
            yield TimeRange(start_ns, end_ns), present


def _runs(pieces: Iterable[_Piece], fits: Callable[[TimeRange, Order], bool]) -> Iterator[list[_Piece]]:
    """Group pieces that become one row, from the left as long as they fit.

    Pieces that do not fit would not fit if either side were longer, so a repetition changes nothing.
    """
    run: list[_Piece] = []
    first = Order(0, 0)
    for piece in pieces:
        both = min(first, piece.order)
        touch = run and run[-1].span.end_ns == piece.span.start_ns
        if touch and fits(TimeRange(run[0].span.start_ns, piece.span.end_ns), both):
            run.append(piece)
            first = both
        else:
            if run:
                yield run
            run = [piece]
            first = piece.order
    if run:
        yield run


def _merged_row(run: Sequence[_Piece], cluster: Sequence[CoverageRow], empty: Sequence[TimeRange]) -> CoverageRow:
    span = TimeRange(run[0].span.start_ns, run[-1].span.end_ns)
    parts = [cluster[number] for number in sorted({number for piece in run for number in piece.rows})]
    first, last = _overlapping(empty, span)
    holes = tuple(part for hole in empty[first:last] if (part := hole.intersect(span)))
    only = parts[0]
    if len(parts) == 1 and span == only.span and list(holes) == merge(only.empty):
        return only
    period_seconds = only.series.period_seconds
    return CoverageRow(
        only.series,
        span,
        *min(piece.order for piece in run),
        holes,
        max(part.committed_ns for part in parts),
        count_periods(span, period_seconds) - total_periods(holes, period_seconds),
        only.evidence if len(parts) == 1 else _evidence(parts),
    )


def _overlapping(ranges: Sequence[TimeRange], span: TimeRange) -> tuple[int, int]:
    """Return the slice of sorted, disjoint ranges that overlap the span."""
    first = bisect_right(ranges, span.start_ns, key=lambda part: part.end_ns)
    return first, max(first, bisect_left(ranges, span.end_ns, key=lambda part: part.start_ns))


def _evidence(parts: Iterable[CoverageRow]) -> str:
    """Return the number of pages and the kinds of their evidence."""
    pages = 0
    kinds = set()
    for part in parts:
        merged = _MERGED.fullmatch(part.evidence)
        pages += int(merged[1]) if merged else 1
        kinds |= set((merged[2] if merged else part.evidence).split("; "))
    return f"{MERGED_PREFIX}{pages} pages: {'; '.join(sorted(kinds))}"
