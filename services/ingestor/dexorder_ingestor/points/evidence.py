"""Evidence that rows which are known by their time alone are complete, such as funding rates. Pure.

Such rows lack a grid and numbers, so an answer that lacks some looks like a good one. Adjacency proves them: a *cell*
lies between two adjacent rows. An answer with both of these rows and without rows between them is a proof that the cell
is empty. No page limit, late replica or cache can produce it, because each of them cuts off one end.

A cell is settled when enough answers to different queries prove it, and each of its rows has the same values in two
answers. A cell longer than both neighbours may hide a row that an answer has left out, so it needs more proofs.
The intervals may change: a change from 8 h to 4 h makes no cell longer than both neighbours, a lost row nearly always
does. docs/completeness.md has the argument under "Rows without a grid".

================  ==================================================  ==================================
Row               Event                                               Next
================  ==================================================  ==================================
seen              another answer has the same values                  agreed
seen              ``REFUTED`` more answers of its time lack it        dropped: no other answer confirms it
agreed            two answers give other values as well               disputed, until one has more answers
================  ==================================================  ==================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

PROOFS = 2
"""Answers that settle a cell, or agree on a row."""
PROOFS_OF_LONG = 4
"""Answers that settle a cell which may hide a row."""
REFUTED = 4
"""Answers of its time that lack a row, after which it is dropped if only one answer has it."""
MARGIN_NS = 8 * 3_600 * SECOND_NS
"""Longest usual interval: as much is queried around the range, to know the rows next to it."""
OVERDUE_NS = 600 * SECOND_NS
"""Time after which a row that was due counts as late, if the exchange still does not have it."""
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PointAnswer:
    """A valid answer of the exchange.

    Attributes:
        window: The time that was asked for, half-open.
        points: Values by time, nanoseconds, all in the window.
        is_cut: It has as many rows as an answer may have, so others may be missing at either end.
    """

    window: TimeRange
    points: Mapping[int, Values]
    is_cut: bool = False


class Cell(NamedTuple):
    """Time between two adjacent rows, or between the end of the range and a row; None at the end of the range."""

    before_ns: int | None
    after_ns: int | None


class PointEvidence:
    """Answers about one range, and the parts that they settle."""

    def __init__(self, span: TimeRange, *, now_ns: int) -> None:
        """Start without an answer.

        Args:
            span: The range to settle.
            now_ns: The exchange's time.
        """
        self.span = span
        self.now_ns = now_ns
        self.answers = 0
        """Number of the answers so far."""
        self._given: list[tuple[TimeRange, Mapping[int, Values]]] = []
        self._seen: defaultdict[int, Counter[Values]] = defaultdict(Counter)
        self._lacking: Counter[int] = Counter()
        self._proofs: Counter[Cell] = Counter()
        self._times: list[int] = []
        self._unsettled = self._find_unsettled()

    def add(self, answer: PointAnswer) -> None:
        """Take an answer."""
        times, span = sorted(answer.points), self.span
        for time_ns in times:
            if time_ns not in self._seen:
                self._lacking[time_ns] = sum(_lacks(*each, time_ns) for each in self._given)
            self._seen[time_ns][answer.points[time_ns]] += 1
        known = TimeRange(times[0], times[-1]) if answer.is_cut else answer.window
        self._lacking.update(time_ns for time_ns in self._seen if _lacks(known, answer.points, time_ns))
        self._proofs.update(Cell(*pair) for pair in pairwise(times))
        if not answer.is_cut:
            has_start, has_end = answer.window.start_ns <= span.start_ns, answer.window.end_ns >= span.end_ns
            if times and has_start:
                self._proofs[Cell(None, times[0])] += 1
            if times and has_end:
                self._proofs[Cell(times[-1], None)] += 1
            if not times and has_start and has_end:
                self._proofs[Cell(None, None)] += 1
        self._given.append((known, answer.points))
        self.answers += 1
        self._times = sorted(time_ns for time_ns in self._seen if not self._is_refuted(time_ns))
        self._unsettled = self._find_unsettled()

    @property
    def first_unsettled(self) -> Cell | None:
        """The first cell that is not settled; None if all are."""
        return self._unsettled[0] if self._unsettled else None

    def next_window(self) -> TimeRange | None:
        """Return the first time to query; None if everything is settled.

        It has the rows at both ends of a run of unsettled cells, or a margin around the range in which rows may be. Its
        ends differ from query to query, so that no cache answers.
        """
        if not self._unsettled:
            return None
        last = self._unsettled[0]
        for cell in self._unsettled[1:]:
            if cell.before_ns != last.after_ns:
                break
            last = cell
        shift_ns = (1 + self.answers % 7) * 60 * SECOND_NS
        start_ns, end_ns = self._unsettled[0].before_ns, last.after_ns
        return TimeRange(
            max(0, (self.span.start_ns - MARGIN_NS if start_ns is None else start_ns) - shift_ns),
            (self.span.end_ns + MARGIN_NS if end_ns is None else end_ns) + shift_ns,
        )

    def points(self, span: TimeRange) -> dict[int, Values]:
        """Return the rows of a part of the range by time, ascending; once all is settled."""
        times = self._times[bisect_left(self._times, span.start_ns) : bisect_left(self._times, span.end_ns)]
        return {time_ns: self._seen[time_ns].most_common(1)[0][0] for time_ns in times}

    def interval_before(self, time_ns: int) -> int | None:
        """Return the time from the row before a settled row to it; None if that row is not known."""
        place = bisect_left(self._times, time_ns)
        before_ns = self._times[place - 1] if place else None
        is_known = before_ns is not None and self._proofs[Cell(before_ns, time_ns)] >= PROOFS
        return time_ns - before_ns if before_ns is not None and is_known else None

    def _find_unsettled(self) -> list[Cell]:
        """Return the cells that overlap the range and are not settled, in time order."""
        cells = [Cell(*pair) for pair in pairwise([None, *self._times, None])]
        lengths = [0, *map(self._length_ns, cells), 0]
        return [
            cell
            for number, cell in enumerate(cells, start=1)
            if self._overlaps(cell)
            and not self._is_settled(cell, lengths[number], lengths[number - 1 : number + 2 : 2])
        ]

    def _overlaps(self, cell: Cell) -> bool:
        starts_inside = cell.before_ns is None or cell.before_ns < self.span.end_ns
        return starts_inside and (cell.after_ns is None or cell.after_ns >= self.span.start_ns)

    def _length_ns(self, cell: Cell) -> int:
        start_ns = self.span.start_ns if cell.before_ns is None else cell.before_ns
        return max(0, (self.span.end_ns if cell.after_ns is None else cell.after_ns) - start_ns)

    def _is_settled(self, cell: Cell, length_ns: int, beside_ns: Sequence[int]) -> bool:
        if not all(self._is_agreed(time_ns) for time_ns in cell if time_ns is not None):
            return False
        is_long = all(length_ns > each for each in beside_ns)
        if is_long and cell.after_ns is None and cell.before_ns is not None:
            due_ns = cell.before_ns + beside_ns[0] + OVERDUE_NS
            if self.now_ns < due_ns:
                return False
        return self._proofs[cell] >= (PROOFS_OF_LONG if is_long else PROOFS)

    def _is_agreed(self, time_ns: int) -> bool:
        counts = [count for _, count in self._seen[time_ns].most_common(2)]
        return counts[0] >= max(counts[1:], default=0) + PROOFS

    def _is_refuted(self, time_ns: int) -> bool:
        return self._lacking[time_ns] >= REFUTED and self._seen[time_ns].total() == 1


def _lacks(known: TimeRange, points: Mapping[int, Values], time_ns: int) -> bool:
    """Return whether an answer with all rows around a time lacks a row at that time."""
    return known.start_ns <= time_ns < known.end_ns and time_ns not in points
