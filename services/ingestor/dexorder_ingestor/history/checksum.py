"""Finer candles of the cells of a range, queried and checked against the cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from dexorder_common.model.checksum import aggregate, agrees, tallies
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, floor_to_grid, open_times, split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answer_shape import Answered, AnswerShapes
from dexorder_ingestor.history.paging import QueryWindows

_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """Cell with finer candles that tally."""

    span: TimeRange
    candles: tuple[Candle, ...]


def sampled(span: TimeRange, cell_seconds: int, smallest: int, call_candles: int, draw: int) -> TimeRange:
    """Return the part of a range of cells for which one call brings the smallest cells; ``draw`` chooses the part.

    Args:
        draw: A number, another one for each dispatch, so that every place is sampled in the end.
    """
    reach_ns = call_candles * smallest // cell_seconds * cell_seconds * SECOND_NS
    places = max(0, span.end_ns - span.start_ns - reach_ns) // (cell_seconds * SECOND_NS) + 1
    start_ns = span.start_ns + draw % places * cell_seconds * SECOND_NS
    return TimeRange(start_ns, min(start_ns + reach_ns, span.end_ns))


class ValueSample:
    """Smallest cells of a part of a range, which may contradict candles that tally with their own cell.

    A cell of an hour shows the highest high of 60 candles and 59 highs pass below it; a cell of three minutes lets two
    pass. Smaller cells are not a proof: an absent one, or a failed answer, is ignored.
    """

    def __init__(self, window: TimeRange, seconds: int, volume_tolerance: float) -> None:
        self.window = window
        self.seconds = seconds
        self.is_queried = False
        self._tolerance = volume_tolerance
        self._cells: Sequence[Candle] = ()

    def add(self, cells: Sequence[Candle]) -> None:
        """Take the answer; empty if the query failed."""
        self.is_queried = True
        self._cells = cells

    def contradicts(self, checked: CheckedCell) -> bool:
        """Return whether the candles of a cell differ from one of its smaller cells."""
        step_ns = self.seconds * SECOND_NS
        for cell in self._cells:
            if checked.span.start_ns <= cell.open_ns < checked.span.end_ns:
                end_ns = cell.open_ns + step_ns
                finer = aggregate([c for c in checked.candles if cell.open_ns <= c.open_ns < end_ns])
                if not agrees(cell, finer, self._tolerance):
                    return True
        return False


class CellStream:
    """Finer candles of adjacent cells, queried and checked in time order.

    Each query starts at the last candle, so answers may be shorter than expected. Each reaches one period beyond on
    both sides, because some exchanges exclude the ends. After a cell that does not tally come queries from its start,
    and then in turn for its largest hole and all of it.
    """

    def __init__(
        self,
        span: TimeRange,
        seconds: int,
        cells: Mapping[int, Candle],
        windows: QueryWindows,
        shapes: AnswerShapes,
        volume_tolerance: float,
    ) -> None:
        """Start before the first cell of ``span``; absent from ``cells`` are those without trades."""
        self._todo = split_by_periods(span, seconds, 1)[::-1]
        self._cells = cells
        self._windows = windows
        self._end_ns = span.end_ns
        self._tolerance = volume_tolerance
        self._candles: dict[int, Candle] = {}
        self._next_ns = span.start_ns
        self._cell_candles = count_periods(TimeRange(0, seconds * SECOND_NS), windows.period)
        self._shapes = shapes
        self._last_answer: Answered | None = None
        self._checked: list[CheckedCell] = []
        self._days_until_ns = 0
        self.retries = 0
        """Queries about the first cell since it did not tally."""
        self.is_undecided = False
        """The first cell's values agree, but its candles are so small that one may be missing: no query helps."""

    @property
    def cell(self) -> TimeRange | None:
        """The first cell that is not settled; None if all are."""
        return self._todo[-1] if self._todo else None

    def next_day(self) -> TimeRange | None:
        """Return the UTC day of the next candle if its file saves a query: half a call of it is still to be fetched.

        None once a cell has not tallied; each day is returned once.
        """
        assert self.cell, "there is a cell left"
        if self.retries or self._next_ns >= self.cell.end_ns:
            return None
        start_ns = floor_to_grid(self._next_ns, _DAY_SECONDS)
        day = TimeRange(start_ns, start_ns + _DAY_SECONDS * SECOND_NS)
        rest = day.intersect(TimeRange(self._next_ns, self._end_ns))
        is_long = rest and count_periods(rest, self._windows.period) > self._windows.limits.candles // 2
        if not is_long or day.start_ns < self._days_until_ns or day.end_ns > self._windows.closed_end_ns:
            return None
        self._days_until_ns = day.end_ns
        return day

    def add_day(self, day: TimeRange, candles: Sequence[Candle]) -> bool:
        """Add all candles of a day, which no query has brought, if all of its cells tally; return whether they do.

        A file may be older than the exchange's present candles, so the sums of trades and quote volumes count too.
        """
        end_ns = min(day.end_ns, self._end_ns)
        found = self._candles | {c.open_ns: c for c in candles if self._next_ns <= c.open_ns < end_ns}
        for cell in self._todo:
            if cell.start_ns < end_ns and not self._is_sum(cell, [found[t] for t in self._opens(cell) if t in found]):
                return False
        self._candles, self._next_ns, self._last_answer = found, end_ns, None
        self._check()
        return True

    def _opens(self, cell: TimeRange) -> Sequence[int]:
        return open_times(cell, self._windows.period)

    def _is_sum(self, span: TimeRange, finer: Sequence[Candle]) -> bool:
        """Return whether candles add up to a cell, with its number of trades and quote volume if it has them."""
        cell = self._cells.get(span.start_ns)
        if not tallies(cell, aggregate(finer), len(self._opens(span)), self._tolerance):
            return False
        trades = [c.trade_count for c in finer if c.trade_count is not None]
        quotes = [c.quote_volume for c in finer if c.quote_volume is not None]
        if cell is None:
            return True
        if cell.trade_count is not None and (len(trades) < len(finer) or sum(trades) != cell.trade_count):
            return False
        if cell.quote_volume is None:
            return True
        is_whole = len(quotes) == len(finer)
        return is_whole and abs(fsum(quotes) - cell.quote_volume) <= self._tolerance * cell.quote_volume

    def next_window(self) -> TimeRange:
        """Return the window of the next query."""
        assert self.cell, "there is a cell left"
        if self._next_ns < self.cell.end_ns:
            return self._reach(TimeRange(self._next_ns, self._full_call_ns()))
        self.retries += 1
        if self.retries == 1:
            self._next_ns = self.cell.start_ns
            self._candles = {}
            return self._reach(TimeRange(self._next_ns, self._full_call_ns()))
        if self.retries % 2:
            self._candles = {t: c for t, c in self._candles.items() if t >= self.cell.end_ns}
            return self._reach(self.cell)
        holes = self._windows.ranges(t for t in open_times(self.cell, self._windows.period) if t not in self._candles)
        return self._reach(max(holes, key=lambda hole: hole.end_ns - hole.start_ns, default=self.cell))

    def add(self, window: TimeRange, candles: Sequence[Candle]) -> bool:
        """Add the answer about `next_window`; return whether it is of another market than the last answers or the cell.

        It is if most of its candles contradict the last answers, or if they lack all four prices of the cell.
        """
        assert self.cell, "there is a cell left"
        shared = [c for c in candles if c.open_ns in self._candles]
        changed = sum(self._candles[c.open_ns] != c for c in shared)
        answer, windows = Answered(window, frozenset(c.open_ns for c in candles)), self._windows
        most, period_ns = windows.limits.candles, windows.period * SECOND_NS
        self._shapes.note(answer, self._last_answer, most=most, period_ns=period_ns)
        self._last_answer = answer
        inside = [c for c in candles if self.cell.start_ns <= c.open_ns < self._end_ns]
        self._candles.update((c.open_ns, c) for c in inside)
        ahead_ns = self._windows.after(inside[-1].open_ns) if inside else 0
        # An answer without a new candle covers its window, and any other ends with its last candle. But one that lacks
        # candles of a cell with trades is untrue, and may lack candles of the cells after it.
        last = self.cell if self.cell.start_ns in self._cells else window
        covered_ns = min(window.end_ns, last.end_ns, self._end_ns)
        self._next_ns = max(self._next_ns, ahead_ns if ahead_ns > self._next_ns else covered_ns)
        self._check()
        return 2 * changed > len(shared) or self._is_foreign(window, candles)

    def take(self) -> list[CheckedCell]:
        """Return the cells that tally and were not returned yet."""
        checked, self._checked = self._checked, []
        return checked

    def give_up(self, until_ns: int = 0) -> TimeRange:
        """Leave out the first cell, and all that open before ``until_ns``; return their range."""
        start_ns = end_ns = self._todo[-1].start_ns
        while self._todo and (end_ns == start_ns or self._todo[-1].start_ns < until_ns):
            end_ns = self._todo[-1].end_ns
            self._end_cell()
        self._check()
        return TimeRange(start_ns, end_ns)

    def _check(self) -> None:
        while self.cell and self._next_ns >= self.cell.end_ns:
            times = open_times(self.cell, self._windows.period)
            candles = tuple(self._candles[t] for t in times if t in self._candles)
            cell, finer = self._cells.get(self.cell.start_ns), aggregate(candles)
            if not tallies(cell, finer, len(times), self._tolerance):
                self.is_undecided = agrees(cell, finer, self._tolerance)
                return
            self._checked.append(CheckedCell(self.cell, candles))
            self._cell_candles = len(candles) or self._cell_candles
            self._end_cell()

    def _is_foreign(self, window: TimeRange, candles: Sequence[Candle]) -> bool:
        """Return whether an answer covers the first cell, which does not tally, without one of its prices."""
        if not self.cell or not window.contains(self.cell) or (cell := self._cells.get(self.cell.start_ns)) is None:
            return False
        finer = aggregate([c for c in candles if self.cell.start_ns <= c.open_ns < self.cell.end_ns])
        prices = (cell.open, cell.high, cell.low, cell.close)
        return finer is not None and all(ours != its for ours, its in zip(finer[:4], prices, strict=True))

    def _end_cell(self) -> None:
        span = self._todo.pop()
        for open_ns in open_times(span, self._windows.period):
            self._candles.pop(open_ns, None)
        self._next_ns = max(self._next_ns, span.end_ns)
        self.retries = 0
        self.is_undecided = False

    def _full_call_ns(self) -> int:
        """Return a time until which there are more candles than a call returns, as thin as the last cells were."""
        left = self._windows.limits.candles + self._cell_candles  # the first cell may be known in part
        for cell in reversed(self._todo):
            if left <= 0 and cell.start_ns > self._next_ns:
                return cell.start_ns
            left -= self._cell_candles if cell.start_ns in self._cells else 0
        return self._end_ns

    def _reach(self, span: TimeRange) -> TimeRange:
        """Return the span and a period on both sides of it, as far as a call may reach."""
        windows = self._windows
        start_ns, end_ns = windows.before(span.start_ns, 1), min(windows.after(span.end_ns), windows.closed_end_ns)
        limits = self._shapes.shape.apply(windows.limits)
        if not limits.wide:
            end_ns = min(end_ns, windows.after(start_ns, limits.candles))
        return TimeRange(start_ns, end_ns)
