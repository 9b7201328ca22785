"""Verified-empty ranges that are not final, and when each is queried again. Pure; time is passed in.

An absence is provisional if the exchange was asked too early or too briefly (`dexorder_common/model/proof.py`). Such a
range is queried again after each of a few delays, counted from when it became known. In a thin market a range holds
many absences of a page, and the candles between them. It ends

- when a page proves it for good, or brings its candles;
- in a thin market, when coarser candles that were fetched later agree with the rows (`verification/rechecker.py`);
- after the last of its queries: an absence that the exchange has repeated for so long is final.

A query that the exchange does not answer is repeated, at least once in the longest delay, and ends no absence.

A client that requests a provisional range again gets a new look at it, however early: `unseen` returns the ranges
without a recent look. Such a look is not one of the scheduled queries. Looks are kept in memory, for as long as they
can matter; after a restart a range is looked at once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange, intersect, joined, merge, subtract
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS

MANY_RANGES = 10
"""Ranges of a page from which on they are kept as one, with the candles between them: the market is thin."""
JOINED_PERIODS = 1_000
"""Largest gap between ranges that are queried together: a call or so."""
MAX_PERIODS = 50_000
"""Largest range of one query, in periods."""
LOOK_AGE_NS = 30 * SECOND_NS
"""Age from which on a look does not serve a new request."""
_LOOKS_KEPT_NS = 3_600 * SECOND_NS


class Absence(NamedTuple):
    """A provisional range.

    Attributes:
        since_ns: Wall clock time at which it became known.
        queries: Number of times it was queried again.
        due_ns: Wall clock time of the next query.
    """

    span: TimeRange
    since_ns: int
    queries: int
    due_ns: int


class AbsenceChange(NamedTuple):
    """Effect of a change on the stored ranges of a series."""

    removed: tuple[Absence, ...] = ()
    added: tuple[Absence, ...] = ()


class ProvisionalRanges:
    """The provisional ranges of all series."""

    def __init__(self, delays_ns: Sequence[int]) -> None:
        """Take the delays after which a range is queried, ascending; without any, no range is added."""
        self._delays_ns = tuple(delays_ns)
        self._absences: defaultdict[Series, list[Absence]] = defaultdict(list)
        self._next_ns: dict[Series, int] = {}  # no range of the series is due before
        self._looks: defaultdict[Series, deque[tuple[int, TimeRange]]] = defaultdict(deque)

    def load(self, series: Series, absence: Absence) -> None:
        """Add a stored range."""
        self._replace(series, (), [absence])

    def add(
        self, series: Series, spans: Iterable[TimeRange], *, now_ns: int, since_ns: int | None = None
    ) -> AbsenceChange:
        """Add ranges, except the parts that are known; many of them as one.

        Args:
            since_ns: The present unless they have an older proof.
        """
        if not self._delays_ns:
            return AbsenceChange()
        new = self._unknown(series, merge(spans))
        if len(new) > MANY_RANGES:
            between = self._unknown(series, [TimeRange(new[0].start_ns, new[-1].end_ns)])
            new = [part for each in between if (part := hull(intersect(new, each)))]
        since_ns = now_ns if since_ns is None else since_ns
        queries = min(sum(since_ns + delay <= now_ns for delay in self._delays_ns), len(self._delays_ns) - 1)
        due_ns = max(now_ns, since_ns + self._delays_ns[queries])
        return self._replace(series, (), [Absence(span, since_ns, queries, due_ns) for span in new])

    def remove(self, series: Series, spans: Iterable[TimeRange]) -> AbsenceChange:
        """Remove ranges: proven for good, not absent, or no longer covered."""
        cuts: defaultdict[Absence, list[TimeRange]] = defaultdict(list)
        for span in merge(spans):
            for each in self._overlapping(series, span):
                cuts[each].append(span)
        kept = [each._replace(span=part) for each, taken in cuts.items() for part in subtract([each.span], taken)]
        return self._replace(series, list(cuts), kept)

    def queried(self, series: Series, span: TimeRange, *, asked_ns: int, now_ns: int, answered: bool) -> AbsenceChange:
        """Count a query of ``span`` that started at ``asked_ns``, for the ranges that were due then."""
        touched = [each for each in self._overlapping(series, span) if each.due_ns <= asked_ns]
        after = []
        for each in touched:
            after += [each._replace(span=part) for part in subtract([each.span], [span])]
            inside = each.span.intersect(span)
            assert inside is not None
            if not answered and self._delays_ns:
                wait_ns = min(max(now_ns - each.since_ns, self._delays_ns[0]), self._delays_ns[-1])
                after.append(each._replace(span=inside, due_ns=now_ns + wait_ns))
            elif each.queries + 1 < len(self._delays_ns):
                due_ns = max(each.since_ns + self._delays_ns[each.queries + 1], now_ns + self._delays_ns[0])
                after.append(Absence(inside, each.since_ns, each.queries + 1, due_ns))
        return self._replace(series, touched, after)

    def looked(self, series: Series, span: TimeRange, *, asked_ns: int, now_ns: int) -> None:
        """Note that the exchange was asked about a range, with or without an answer."""
        looks = self._looks[series]
        looks.append((asked_ns, span))
        while looks and looks[0][0] < now_ns - _LOOKS_KEPT_NS:
            looks.popleft()

    def unseen(self, series: Series, span: TimeRange, *, before_ns: int) -> list[TimeRange]:
        """Return the provisional ranges inside ``span`` without a look since ``before_ns``.

        Args:
            before_ns: Not more than an hour ago; older looks may be forgotten.
        """
        known = intersect((each.span for each in self._overlapping(series, span) if each.since_ns <= before_ns), span)
        return subtract(known, [part for asked_ns, part in self._looks.get(series, ()) if asked_ns >= before_ns])

    def is_open(self, since_ns: int, *, now_ns: int) -> bool:
        """Return whether a query of a range that is known since then is still to come."""
        return bool(self._delays_ns) and now_ns < since_ns + self._delays_ns[-1]

    def within(self, series: Series, span: TimeRange) -> list[TimeRange]:
        """Return the provisional ranges inside ``span``."""
        return intersect((each.span for each in self._overlapping(series, span)), span)

    def due_within(self, series: Series, span: TimeRange, *, now_ns: int) -> list[TimeRange]:
        """Return the provisional ranges inside ``span`` that are due."""
        return intersect((each.span for each in self._overlapping(series, span) if each.due_ns <= now_ns), span)

    def due(self, *, now_ns: int) -> Iterator[tuple[Series, TimeRange, int]]:
        """Yield ranges to query now, neighbours joined, with the time since which one of them is due."""
        for series in [each for each, next_ns in self._next_ns.items() if next_ns <= now_ns]:
            absences = self._absences[series]
            self._next_ns[series] = min(each.due_ns for each in absences)
            due = ((each.span, each.due_ns) for each in absences if each.due_ns <= now_ns)
            for span, due_ns in join_near(due, series.period_seconds):
                yield series, span, due_ns

    def counts(self) -> dict[str, int]:
        """Return the number of provisional ranges by exchange."""
        found: defaultdict[str, int] = defaultdict(int)
        for series, absences in self._absences.items():
            found[series.exchange] += len(absences)
        return dict(found)

    def _unknown(self, series: Series, spans: Sequence[TimeRange]) -> list[TimeRange]:
        return subtract(spans, [each.span for span in spans for each in self._overlapping(series, span)])

    def _overlapping(self, series: Series, span: TimeRange) -> list[Absence]:
        absences = self._absences.get(series, [])
        first = bisect_left(absences, span.start_ns, key=lambda each: each.span.end_ns)
        found = []
        for index in range(first, len(absences)):
            each = absences[index]
            if each.span.start_ns >= span.end_ns:
                break
            if each.span.overlaps(span):
                found.append(each)
        return found

    def _replace(self, series: Series, removed: Sequence[Absence], added: Sequence[Absence]) -> AbsenceChange:
        if removed or added:
            absences = self._absences[series]
            gone = set(removed)
            starts = [each.span.start_ns for each in (*removed, *added)]
            low = bisect_left(absences, min(starts), key=_start_ns)
            high = bisect_right(absences, max(starts), key=_start_ns)
            absences[low:high] = sorted([*(each for each in absences[low:high] if each not in gone), *added])
            if absences:
                next_ns = min((each.due_ns for each in added), default=MAX_TIME_NS)
                self._next_ns[series] = min(self._next_ns.get(series, MAX_TIME_NS), next_ns)
            else:
                del self._absences[series], self._next_ns[series]
        return AbsenceChange(tuple(removed), tuple(added))


def hull(spans: Sequence[TimeRange]) -> TimeRange | None:
    """Return the range from the first to the last of ranges in time order; None without any."""
    return TimeRange(spans[0].start_ns, spans[-1].end_ns) if spans else None


def join_near(due: Iterable[tuple[TimeRange, int]], period_seconds: int) -> list[tuple[TimeRange, int]]:
    """Return ranges that come in time order, neighbours joined, with the earliest of their times."""
    period_ns = period_seconds * SECOND_NS  # months differ in length, but these are only limits

    def join(one: tuple[TimeRange, int], two: tuple[TimeRange, int]) -> tuple[TimeRange, int] | None:
        both, gap_ns = TimeRange(one[0].start_ns, two[0].end_ns), two[0].start_ns - one[0].end_ns
        near = gap_ns <= JOINED_PERIODS * period_ns and both.end_ns - both.start_ns <= MAX_PERIODS * period_ns
        return (both, min(one[1], two[1])) if near else None

    return joined(due, join)


def _start_ns(absence: Absence) -> int:
    return absence.span.start_ns
