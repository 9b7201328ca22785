"""Lines of the ledger made fewer: pages that touch or overlap become one line. Pure.

What lines say together does not change by it, whatever is merged first and however often:

- A retraction takes back what lines fetched before it claim inside its range.
- A period is settled if a line claims it. It is verified empty if every line that claims it says so: an upsert never
  removes a candle, so where one line has counted a row, the table has it.

So a page that is replayed after it was merged, and comes as a line of its own again, says nothing new, and goes into
the same line when it is merged again.

Where lines overlap, the one fetched last stands for the range, and of the others only the rest is left. That takes
lines that add up: candles and empty ranges account for every period, as decoding makes sure of every page, so the rows
of any part of it can be told. A line that does not stays as it is.

A merged line was fetched when the oldest of its parts was, so a retraction takes back at least what it would have taken
of the parts. For the same reason nothing is merged across a retraction that took back one part but not the other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

from services.common.lake.coverage import Retractions
from services.common.model.periods import ceil_to_grid, count_periods, floor_to_grid, is_on_grid, total_periods
from services.common.model.time_range import TimeRange, merge, subtract

MAX_MERGED_PERIODS = 50_000
"""Periods of a merged line, so that taking back a part of it costs little fetching."""
MAX_MERGED_EMPTY = 1_000
"""Empty ranges of a merged line."""
MERGED_PREFIX = "merged "
"""What the evidence of merged lines begins with."""
_MERGED = re.compile(MERGED_PREFIX + r"(\d+) pages: (.+)", re.S)


@dataclass(frozen=True, slots=True, order=True)
class CoverageRow:
    """One row of ``trading.coverage``; its order is of no meaning but total."""

    ticker: str
    period_seconds: int
    span: TimeRange
    fetched_ns: int
    committed_ns: int
    rows: int
    empty: tuple[TimeRange, ...]
    evidence: str

    def adds_up(self) -> bool:
        """Whether candles and empty ranges account for every period of the range."""
        ends = (time_ns for part in (self.span, *self.empty) for time_ns in (part.start_ns, part.end_ns))
        return (
            all(self.span.contains(part) for part in self.empty)
            and all(is_on_grid(time_ns, self.period_seconds) for time_ns in ends)
            and self.rows + total_periods(self.empty, self.period_seconds)
            == count_periods(self.span, self.period_seconds)
        )


@dataclass(frozen=True, slots=True)
class Retraction:
    """One row of ``trading.coverage_retractions``."""

    ticker: str
    period_seconds: int
    span: TimeRange
    retracted_ns: int

    def whole(self) -> TimeRange:
        """Every period that it touches."""
        start_ns = floor_to_grid(self.span.start_ns, self.period_seconds)
        return TimeRange(start_ns, ceil_to_grid(self.span.end_ns, self.period_seconds))


def merge_rows(lines: Iterable[CoverageRow], retractions: Iterable[Retraction] = ()) -> list[CoverageRow]:
    """Lines that say the same in fewer, sorted; those that can't be fewer come back as they are."""
    markets: defaultdict[tuple[str, int], list[CoverageRow]] = defaultdict(list)
    taken: defaultdict[tuple[str, int], Retractions] = defaultdict(Retractions)
    for line in lines:
        markets[line.ticker, line.period_seconds].append(line)
    for retraction in retractions:
        if retraction.span:
            taken[retraction.ticker, retraction.period_seconds].add(retraction.whole(), retraction.retracted_ns)
    return sorted(line for market, group in markets.items() for line in _merge_market(sorted(group), taken[market]))


def _merge_market(group: Sequence[CoverageRow], retractions: Retractions) -> Iterator[CoverageRow]:
    telling = []
    for line in group:
        if line.adds_up():
            telling.append(line)
        else:
            yield line
    for cluster in _clusters(telling):
        found = _merge_cluster(cluster, retractions)
        yield from found if len(found) < len(cluster) else cluster


def _clusters(lines: Sequence[CoverageRow]) -> Iterator[list[CoverageRow]]:
    """Sorted lines, parted where none touches the next."""
    cluster: list[CoverageRow] = []
    end_ns = 0
    for line in lines:
        if cluster and line.span.start_ns > end_ns:
            yield cluster
            cluster = []
        end_ns = max(end_ns, line.span.end_ns) if cluster else line.span.end_ns
        cluster.append(line)
    if cluster:
        yield cluster


def _merge_cluster(cluster: Sequence[CoverageRow], retractions: Retractions) -> list[CoverageRow]:
    period_seconds = cluster[0].period_seconds
    claims = [
        (number, part)
        for number, line in enumerate(cluster)
        for part in retractions.claimed(line.span, line.fetched_ns)
    ]
    filled = merge(row for number, part in claims for row in subtract([part], cluster[number].empty))
    empty = subtract((part for _, part in claims), filled)

    def fits(span: TimeRange, fetched_ns: int) -> bool:
        first, last = _inside(empty, span)
        return (
            count_periods(span, period_seconds) <= MAX_MERGED_PERIODS
            and last - first <= MAX_MERGED_EMPTY
            and not retractions.taken(span, fetched_ns)
        )

    return [_line(run, cluster, empty) for run in _runs(_pieces(claims, cluster), fits)]


# ---- pieces of the time line ---------------------------------------------------------------------------------------


_Claim: TypeAlias = tuple[int, TimeRange]
"""A line's number in its cluster, and a range of it that was not taken back."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range, the lines that claim some of it, and when the one that stands for it was fetched."""

    span: TimeRange
    lines: frozenset[int]
    fetched_ns: int


def _pieces(claims: Sequence[_Claim], cluster: Sequence[CoverageRow]) -> Iterator[_Piece]:
    """In time order, none over another: one for each range that one line, the one fetched last, stands for."""

    def age(claim: _Claim) -> tuple[int, int]:
        return cluster[claim[0]].fetched_ns, claim[0]

    stretches = ((max(here, key=age), span, here) for span, here in _stretches(claims))
    for (number, _), group in groupby(stretches, key=lambda stretch: stretch[0]):
        spans, heres = zip(*((span, here) for _, span, here in group), strict=True)
        lines = frozenset(number for here in heres for number, _ in here)
        yield _Piece(TimeRange(spans[0].start_ns, spans[-1].end_ns), lines, cluster[number].fetched_ns)


def _stretches(claims: Sequence[_Claim]) -> Iterator[tuple[TimeRange, list[_Claim]]]:
    """Ranges in which no claim begins or ends, and the claims there, where there are some."""
    coming = sorted(claims, key=lambda claim: claim[1], reverse=True)
    here: list[_Claim] = []
    for start_ns, end_ns in pairwise(sorted({t for _, part in claims for t in (part.start_ns, part.end_ns)})):
        here = [claim for claim in here if claim[1].end_ns > start_ns]
        while coming and coming[-1][1].start_ns == start_ns:
            here.append(coming.pop())
        if here:
            yield TimeRange(start_ns, end_ns), here


def _runs(pieces: Iterable[_Piece], fits: Callable[[TimeRange, int], bool]) -> Iterator[list[_Piece]]:
    """Pieces that become one line, from the left as far as it fits.

    What does not fit would not if either side had grown either, so doing it again changes nothing.
    """
    run: list[_Piece] = []
    oldest_ns = 0
    for piece in pieces:
        both_ns = min(oldest_ns, piece.fetched_ns)
        touch = run and run[-1].span.end_ns == piece.span.start_ns
        if touch and fits(TimeRange(run[0].span.start_ns, piece.span.end_ns), both_ns):
            run.append(piece)
            oldest_ns = both_ns
        else:
            if run:
                yield run
            run, oldest_ns = [piece], piece.fetched_ns
    if run:
        yield run


def _line(run: Sequence[_Piece], cluster: Sequence[CoverageRow], empty: Sequence[TimeRange]) -> CoverageRow:
    span = TimeRange(run[0].span.start_ns, run[-1].span.end_ns)
    parts = [cluster[number] for number in sorted({number for piece in run for number in piece.lines})]
    first, last = _inside(empty, span)
    holes = tuple(part for hole in empty[first:last] if (part := hole.intersect(span)))
    only = parts[0]
    if len(parts) == 1 and span == only.span and list(holes) == merge(only.empty):
        return only
    return CoverageRow(
        only.ticker,
        only.period_seconds,
        span,
        min(piece.fetched_ns for piece in run),
        max(part.committed_ns for part in parts),
        count_periods(span, only.period_seconds) - total_periods(holes, only.period_seconds),
        holes,
        only.evidence if len(parts) == 1 else _evidence(parts),
    )


def _inside(ranges: Sequence[TimeRange], span: TimeRange) -> tuple[int, int]:
    """First and behind the last of sorted, separate ranges that have something of the span."""
    first = bisect_right(ranges, span.start_ns, key=lambda part: part.end_ns)
    return first, max(first, bisect_left(ranges, span.end_ns, key=lambda part: part.start_ns))


def _evidence(parts: Iterable[CoverageRow]) -> str:
    """How many pages, and which kinds of evidence they had."""
    pages, kinds = 0, set()
    for part in parts:
        merged = _MERGED.fullmatch(part.evidence)
        pages += int(merged[1]) if merged else 1
        kinds |= set((merged[2] if merged else part.evidence).split("; "))
    return f"{MERGED_PREFIX}{pages} pages: {'; '.join(sorted(kinds))}"
