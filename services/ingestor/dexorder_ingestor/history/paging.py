"""Pages of a job and the windows of the queries that fill them. Pure.

A job is settled page by page. A page consists of chunks, each of which one query can settle: a chunk is a little
shorter than a call, because the query reaches back to some known candles (the link) and a little beyond the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, next_open, split_by_periods
from dexorder_common.model.proof import Proof
from dexorder_common.model.time_range import TimeRange, intersect, merge
from dexorder_ingestor.exchange.dialect import CallLimits

MIN_CALL_CANDLES = 3
"""Candles of a call with which answers still overlap at one call a candle; with two it is five calls."""
_CUT_ANSWERS = 8
"""Number of answers cut at the same size after which that size is the exchange's limit."""
_SOURCES = 4
"""Answers from which the candles come that they lack."""
_SIZES_KNOWN = 2_000
"""Candles that are remembered for it."""


@dataclass(frozen=True, slots=True)
class CandlePage:
    """A verified page; its candles and empty ranges fill its span."""

    span: TimeRange
    candles: tuple[Candle, ...]
    empty: tuple[TimeRange, ...]
    fetched_ns: int
    proofs: tuple[Proof, ...] = ()

    def part(self, span: TimeRange) -> CandlePage:
        """Return the part of the page inside a range."""
        candles = tuple(c for c in self.candles if span.start_ns <= c.open_ns < span.end_ns)
        proofs = tuple(p._replace(span=inside) for p in self.proofs if (inside := p.span.intersect(span)))
        return CandlePage(span, candles, tuple(intersect(self.empty, span)), self.fetched_ns, proofs)


def link_periods(candles: int) -> int:
    """Return by how many periods a query reaches back, and beyond its chunk, if a call returns ``candles``."""
    return min(4, max(1, candles // 50))


def chunk_periods(candles: int) -> int:
    """Return the periods that one query settles, if a call returns ``candles``."""
    return max(1, candles - 2 * link_periods(candles))


def page_periods(max_periods: int, limits: CallLimits) -> int:
    """Return the periods of a page: as many whole chunks as fit into ``max_periods``."""
    chunk = chunk_periods(limits.candles)
    return max_periods // chunk * chunk or max_periods


class AnswerSizes:
    """Sizes of the answers to one job, which show whether a call gives fewer candles than the dialect says.

    An answer that a limit has cut has exactly as many candles as the limit says, and lacks others of its window. An
    answer that lacks candles for another reason has any size; and the missing candles may be another market's, from a
    single untrue answer.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._answers = self._cut = self._most = 0
        self._sources: set[int] = set()

    def add(self, window: TimeRange, candles: Sequence[Candle]) -> None:
        """Add an answer."""
        size, opens = len(candles), {c.open_ns for c in candles}
        lacked = {n for t, n in self._known.items() if window.start_ns <= t < window.end_ns and t not in opens}
        if size > self._most or (0 < size < self._most and lacked):
            self._cut, self._most = 0, max(size, self._most)
            self._sources.clear()
        elif lacked and size == self._most:
            self._cut += 1
            self._sources |= lacked
        self._answers += 1
        for open_ns in opens:
            self._known.setdefault(open_ns, self._answers)
        for open_ns in list(self._known)[: max(0, len(self._known) - _SIZES_KNOWN)]:
            del self._known[open_ns]

    @property
    def limit(self) -> int:
        """Candles of a call, if many answers were cut and all alike; otherwise 0."""
        return self._most if self._cut >= _CUT_ANSWERS and len(self._sources) >= _SOURCES else 0


class QueryWindows:
    """Windows of one job's queries, within the limits of a call."""

    def __init__(self, period_seconds: int, limits: CallLimits, *, closed_end_ns: int) -> None:
        """Let no window reach beyond ``closed_end_ns``, the end of the last closed candle, on the grid."""
        self.period = period_seconds
        self.limits = limits
        self.link = link_periods(limits.candles)
        self.closed_end_ns = closed_end_ns
        self.first_ns = 0

    def before(self, open_ns: int, count: int) -> int:
        """Return the open time ``count`` periods earlier, or the first that may be queried."""
        count = min(count, count_periods(TimeRange(0, open_ns), self.period))
        return max(next_open(open_ns, self.period, -count), self.first_ns)

    def after(self, open_ns: int, count: int = 1) -> int:
        """Return the open time ``count`` periods later."""
        return next_open(open_ns, self.period, count)

    def ranges(self, opens: Iterable[int]) -> list[TimeRange]:
        """Return the periods that open at these times as merged ranges."""
        return merge(TimeRange(t, self.after(t)) for t in opens)

    def chunks(self, page: TimeRange) -> list[TimeRange]:
        """Return the chunks of a page, in time order."""
        return split_by_periods(page, self.period, chunk_periods(self.limits.candles))

    def longest(self, start_ns: int) -> TimeRange:
        """Return as much as one call may query from ``start_ns`` on."""
        end_ns = self.closed_end_ns
        if not self.limits.wide:
            end_ns = min(end_ns, self.after(start_ns, self.limits.candles))
        return TimeRange(start_ns, max(end_ns, start_ns))

    def covered(self, window: TimeRange, candles: Sequence[Candle]) -> TimeRange:
        """Return the part of a window that an answer covers: as far as a call reaches, or all without a candle."""
        size = self.limits.candles
        if not candles or count_periods(window, self.period) <= size:
            return window
        last_ns = self.after(candles[-1].open_ns)
        reach_ns = last_ns if len(candles) >= size else self.after(window.start_ns, size)
        return TimeRange(window.start_ns, min(max(last_ns, reach_ns), window.end_ns))
