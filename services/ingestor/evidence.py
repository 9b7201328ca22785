"""Which answers prove that a candle does not exist, and what to ask when they do not. Pure.

An exchange that answers half a page, or nothing, says so with the same 200 as one that has no more candles. So:

- A candle in any sound answer exists. What all answers found together is *known*.
- An answer *counts* against the existence of others only if it holds every known candle of its window.
- A missing candle is proven absent by two counting answers to different windows, one of which holds a candle before and
  a candle after it, or by ``hole_answers`` counting answers of any kind.

The windows are shifted against the page, by a quarter of a call or more where the page allows it, so that an answer
cut at its start, its end or its middle is cut elsewhere the next time. One such window covers all holes within its
reach and reaches into the next page: with holes everywhere a page costs two calls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.common.market import TimeRange, count_periods, merge, next_open, open_times, split_by_periods
from services.common.page import Candle
from services.ingestor.paging import CallLimits

ANCHORS = 8
"""Known candles a shifted window holds before the first hole it is asked for, of a call of 512 candles or more; grows
with each further try."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the exchange.

    Attributes:
        spaced: Wait ``hole_spacing_seconds`` since the answer before, so that the two fail independently.
        shifted: It is asked for evidence, not for a page's own candles.
    """

    window: TimeRange
    spaced: bool = False
    shifted: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """A page as the answers prove it; its candles and empty ranges fill it."""

    candles: tuple[Candle, ...]
    empty: tuple[TimeRange, ...]
    fetched_ns: int


@dataclass(frozen=True, slots=True)
class _Answer:
    window: TimeRange  # what it speaks of: ends after the last candle when the call's limit cut it
    opens: frozenset[int]
    inner: TimeRange | None  # from its first to its last candle
    fetched_ns: int


class Evidence:
    """What the answers to one job have shown so far. Pages are settled in time order."""

    def __init__(self, period_seconds: int, limits: CallLimits, *, closed_end_ns: int, hole_answers: int) -> None:
        """Take the rules of one job.

        Args:
            closed_end_ns: End of the last closed candle, on the grid; no question reaches beyond it.
            hole_answers: Answers that prove an unanchored span empty.
        """
        self._period = period_seconds
        self._limits = limits
        self._closed_end_ns = closed_end_ns
        self._hole_answers = hole_answers
        self._known: dict[int, Candle] = {}
        self._answers: list[_Answer] = []
        self._published_end_ns = 0
        self._barriers: list[int] = []
        self._page: TimeRange | None = None
        self._tries = 0

    def add(self, window: TimeRange, candles: Sequence[Candle], *, fetched_ns: int) -> str | None:
        """Take in a sound answer; says why when it contradicts what is known.

        A contradiction of a published candle discards the answer. Any other discards what was known before it: the
        exchange has changed its mind, and what it says now has to be confirmed anew.
        """
        changed = [c for c in candles if self._known.get(c.open_ns, c) != c]
        reason = f"candle {changed[0]} was {self._known[changed[0].open_ns]} before" if changed else None
        if any(c.open_ns < self._published_end_ns for c in changed):
            return reason
        if changed:
            self._answers.clear()
            self._known = {t: c for t, c in self._known.items() if t < self._published_end_ns}
        self._known.update((c.open_ns, c) for c in candles)
        window = self._spoken_of(window, candles)
        inner = TimeRange(candles[0].open_ns, self._after(candles[-1].open_ns)) if candles else None
        self._answers.append(_Answer(window, frozenset(c.open_ns for c in candles), inner, fetched_ns))
        return reason

    def avoid(self, open_ns: int) -> None:
        """Never ask for this candle again: the exchange only has an impossible one. Pages must not hold it."""
        insort(self._barriers, open_ns)

    def next_ask(self, page: TimeRange) -> Ask | None:
        """The question that brings ``page`` closer to settled; None when it is."""
        if page != self._page:
            self._page, self._tries = page, 0
        for chunk in split_by_periods(page, self._period, self._limits.candles):
            if not self._asked(chunk):
                return Ask(chunk)
        unproven = self.unproven(page)
        if not unproven:
            return None
        self._tries += 1
        # What two answers did not settle, or a page without any candle, is only worth asking about again when the
        # exchange had time to recover.
        again = sum(a.window.contains(unproven[0]) for a in self._answers) >= 2
        bare = not any(t in self._known for t in open_times(page, self._period))
        return Ask(self._shifted(unproven[0].start_ns, page), spaced=again or bare, shifted=True)

    def unproven(self, page: TimeRange) -> list[TimeRange]:
        """Parts of the page without a known candle and without proof that there is none."""
        missing = self._missing(page)
        if not missing:
            return []
        counting = self._counting(page)
        return self._as_ranges(t for t in missing if not self._absent(t, counting))

    def settle(self, page: TimeRange) -> Settled:
        """The page, once ``next_ask`` has nothing more to ask; forgets what no later page can need."""
        assert not self.unproven(page), "a page is settled before it is proven"
        candles = tuple(self._known[t] for t in open_times(page, self._period) if t in self._known)
        fetched_ns = max(a.fetched_ns for a in self._answers if a.window.intersect(page))
        settled = Settled(candles, tuple(self._as_ranges(self._missing(page))), fetched_ns)
        self._published_end_ns = page.end_ns
        keep_ns = self._before(page.end_ns, self._limits.candles)
        self._known = {t: c for t, c in self._known.items() if t >= keep_ns}
        self._answers = [a for a in self._answers if a.window.end_ns > page.end_ns]
        return settled

    def _spoken_of(self, window: TimeRange, candles: Sequence[Candle]) -> TimeRange:
        """The part of a window an answer speaks of: no farther than a call reaches, unless it holds no candle."""
        size = self._limits.candles
        if not candles or count_periods(window, self._period) <= size:
            return window
        last_ns = self._after(candles[-1].open_ns)
        reach_ns = last_ns if len(candles) >= size else next_open(window.start_ns, self._period, size)
        return TimeRange(window.start_ns, min(max(last_ns, reach_ns), window.end_ns))

    def _asked(self, chunk: TimeRange) -> bool:
        """Whether a chunk of a page need not be asked for itself: an answer holds it between its candles, or two do."""
        holding = [answer for answer in self._answers if answer.window.contains(chunk)]
        return (
            len(holding) >= 2
            or any(a.inner and a.inner.contains(chunk) for a in holding)
            or any(a.window == chunk for a in holding)
        )

    # ---- proof

    def _counting(self, page: TimeRange) -> list[_Answer]:
        """Answers that speak of the page and hold every known candle of their window."""
        known = sorted(self._known)
        return [
            answer
            for answer in self._answers
            if answer.window.intersect(page)
            and answer.opens.issuperset(
                known[bisect_left(known, answer.window.start_ns) : bisect_left(known, answer.window.end_ns)]
            )
        ]

    def _absent(self, open_ns: int, counting: Iterable[_Answer]) -> bool:
        speaking = [a for a in counting if a.window.start_ns <= open_ns < a.window.end_ns]
        if len(speaking) >= self._hole_answers:
            return True
        anchored = any(a.inner and a.inner.start_ns < open_ns < a.inner.end_ns for a in speaking)
        return anchored and len({a.window for a in speaking}) >= 2

    def _missing(self, page: TimeRange) -> list[int]:
        return [t for t in open_times(page, self._period) if t not in self._known]

    # ---- the shifted window

    def _shifted(self, hole_ns: int, page: TimeRange) -> TimeRange:
        """A window that holds ``hole_ns`` and known candles before it, at another place in it than in the page's own.

        A hole in the first quarter of a page (of a call, where a page takes several) is asked for from half a call
        before that. Any other is asked for from shortly before it, so that the next page's first holes are in reach.
        """
        size = self._limits.candles
        chunk = next(c for c in split_by_periods(page, self._period, size) if hole_ns < c.end_ns)
        anchors = min(max(2, min(ANCHORS, size // 64)) * self._tries, max(1, size // 4))
        if count_periods(TimeRange(chunk.start_ns, hole_ns), self._period) < size // 4:
            start_ns = self._before(chunk.start_ns, size // 2 + anchors)
        else:
            known = sorted(t for t in self._known if t < hole_ns)[-anchors:]
            start_ns = known[0] if known else self._before(hole_ns, anchors)
            start_ns = max(start_ns, self._before(hole_ns, size // 2))
        end_ns = self._closed_end_ns if self._limits.wide else next_open(start_ns, self._period, size)
        at = bisect_left(self._barriers, hole_ns)
        if at:
            start_ns = max(start_ns, self._after(self._barriers[at - 1]))
        if at < len(self._barriers):
            end_ns = min(end_ns, self._barriers[at])
        return TimeRange(start_ns, max(min(end_ns, self._closed_end_ns), start_ns))

    def _before(self, open_ns: int, count: int) -> int:
        span_ns = TimeRange(0, open_ns)
        return next_open(open_ns, self._period, -min(count, count_periods(span_ns, self._period)))

    def _after(self, open_ns: int) -> int:
        return next_open(open_ns, self._period)

    def _as_ranges(self, opens: Iterable[int]) -> list[TimeRange]:
        return merge(TimeRange(t, self._after(t)) for t in opens)
