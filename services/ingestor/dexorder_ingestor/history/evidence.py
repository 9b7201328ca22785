"""Proof that the candles of a page are complete, from answers of which some are untrue. Pure.

Each answer has been validated by itself before it comes here, so it is a plausible list of candles of its window. This
module decides what several answers prove together, and which query to make next. docs/completeness.md states the rules
of proof and their reasons under "How a page is proven"; `agreement` decides how many answers are enough.

Words. A *hole* is an open time of the page without a known candle. A *chunk* is the part of a page that one query
settles. A *candidate series* is a set of candles that answers agree on; the *lead* is the one with the most answers
(`candidate_series`). A candle of the lead is *known*. An answer *counts* against the existence of other candles only if
it holds every known candle of its window. An answer is *anchored* at a hole if it has candles on both sides of it.

The order of queries for a page, see `Evidence.next_query`: first each chunk's own query; then, until the lead is
trusted, queries that confirm it; then queries with shifted windows for the first hole that is not proven empty. A
shifted window starts a quarter of a call or more away from the page's own, where the page allows it, so that an answer
that is cut at its start, its end or in its middle is cut elsewhere the next time. It covers all holes within its reach,
and reaches into the next page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, open_times
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.candidate_series import CandidateAnswer, Candidates, CandidateSeries, complete
from dexorder_ingestor.history.paging import CandlePage, QueryWindows

ANCHORS = 8
"""Known candles before the hole in the first shifted window, of a call of 512 candles or more; later windows have a
multiple of it."""
_LONG_HOLE = 64
"""Part of a call from which on a hole at a chunk's end may be due to a lower limit."""
_ANCHORED_TRIES = 4
"""Shifted windows for a hole that an answer has candles around, before a window for the hole alone."""
_MAX_CHUNKS_AHEAD = 64
"""Largest number of chunks after the page that may be queried early."""


@dataclass(frozen=True, slots=True)
class CandleQuery:
    """Query for candles.

    Attributes:
        spaced: Wait before it, longer each time, and use another connection: the same fault may still be there.
        shifted: It is made for evidence, not for a page's own candles.
        ahead: It is a later page's own query, made early.
        chunk: The chunk that it is the own query of.
    """

    window: TimeRange
    spaced: bool = False
    shifted: bool = False
    ahead: bool = False
    chunk: TimeRange | None = None


class Evidence:
    """Everything that the answers to one job's queries have shown so far. Pages are settled in time order."""

    def __init__(
        self,
        span: TimeRange,
        period_seconds: int,
        limits: CallLimits,
        agreement: Agreement,
        *,
        closed_end_ns: int,
        known: Sequence[Candle] = (),
        hole_answers: int,
        empty_job_answers: int = 0,
        are_cells: bool = False,
    ) -> None:
        """Take the rules of one job.

        Args:
            span: Range that the job is to settle; queries for evidence may reach beyond it.
            agreement: The exchange's; at the end of each page it counts which answers were true.
            closed_end_ns: End of the last closed candle, on the grid; no query reaches beyond it.
            known: Candles before the range that are proven; the range's candles must be linked to them.
            hole_answers: Least number of answers that prove a hole empty when no candles are near.
            empty_job_answers: The same while no candle is known, for an exchange with answers over wide windows: there
                the same few answers decide about the whole job.
            are_cells: The candles are cells: finer candles show later that they are the queried market's.
        """
        self._span = span
        self._period = period_seconds
        self._limits = limits
        self._agreement = agreement
        self._windows = QueryWindows(period_seconds, limits, closed_end_ns=closed_end_ns)
        self._candidates = Candidates(self._windows, agreement, known, are_cells=are_cells)
        self._hole_answers = hole_answers
        self._empty_job_answers = max(hole_answers, empty_job_answers if limits.wide else 0)
        self._avoided: set[int] = set()
        self._answered: set[TimeRange] = set()
        self._queried_chunk: TimeRange | None = None
        self._final = TimeRange(span.start_ns, span.start_ns)
        self._page: TimeRange | None = None
        self._tries = 0
        self._continued: set[TimeRange] = set()
        self._early_end_ns = span.end_ns
        self._goal: tuple[int, ...] = ()
        self.queries_without_progress = 0
        """Queries since one last brought the page nearer to its end."""

    def add(self, window: TimeRange, candles: Sequence[Candle], *, fetched_ns: int) -> str | None:
        """Add a valid answer to the last query; return its contradiction to earlier answers as text, if any."""
        chunk = self._queried_chunk
        self._queried_chunk = None
        candles = [c for c in candles if c.open_ns not in self._avoided] if self._avoided else candles
        given = candles
        if chunk and candles and candles[-1].open_ns >= chunk.end_ns:  # the later candles only show the chunk is whole
            window, candles = TimeRange(window.start_ns, chunk.end_ns), [c for c in candles if c.open_ns < chunk.end_ns]
        reach = candles or given  # an answer with later candles only may have been cut before them
        inner = TimeRange(reach[0].open_ns, self._windows.after(reach[-1].open_ns)) if reach else None
        opens = frozenset(c.open_ns for c in candles)
        answer = CandidateAnswer(self._windows.covered(window, candles), opens, inner, fetched_ns)
        series, odd = self._candidates.add(answer, candles, final=self._final)
        lead = self._candidates.lead(chunk or window)
        if chunk and series in (None, lead):
            self._answered.add(chunk)
        if odd and series:
            return f"candle {odd} was {series.known.get(odd.open_ns)} before"
        if series is not lead and lead and series and series.shares(lead):
            return f"candle {candles[0]} and those after it belong to another series than most answers' candles"
        return None

    def avoid(self, open_ns: int) -> None:
        """Ignore this candle, because the exchange's is impossible. Later pages must not hold it."""
        self._avoided.add(open_ns)
        self._candidates.drop(open_ns)

    def start_anew(self, first_ns: int) -> None:
        """Make no later query before this time, because queries there fail."""
        self._windows.first_ns = first_ns

    def stop_early_queries(self) -> None:
        """Query no later page early, because the last such query failed."""
        self._early_end_ns = 0

    def close(self) -> None:
        """Count the remaining answers in the agreement."""
        self._forget(MAX_TIME_NS, keep_ns=MAX_TIME_NS)

    def next_query(self, page: TimeRange) -> CandleQuery | None:
        """Return the query that brings ``page`` nearer to its end, or None when it is settled."""
        if page != self._page:
            self._page = page
            self._tries = 0
            self._continued = set()
        if query := self.next_own_query(page):
            return query
        lead = self._candidates.lead(page)
        if lead and not self._candidates.is_trusted(lead):
            self._count_query(page.start_ns, 1)
            return self._confirm(page, lead)
        unproven = self.unproven(page)
        if not unproven:
            return None
        if stray := self._candidates.stray(unproven, lead):
            self._count_query(min(stray.known), 3)
            return self._confirm(page, stray)
        self._count_query(unproven[0].start_ns, unproven[0].end_ns, 2)
        if not lead and (query := self._query_next_page(page)):
            return query  # candles after the page are better evidence about it than empty answers
        self._tries += 1
        # A hole that two answers did not settle, or a page without any candle, is only worth another query when the
        # exchange had time to recover.
        repeated = sum(a.window.contains(unproven[0]) for a in self._candidates.answers(page)) >= 2
        bare = len(self._holes(page)) == count_periods(page, self._period)
        return CandleQuery(self._shifted_window(unproven[0], page), spaced=repeated or bare, shifted=True)

    def next_own_query(self, page: TimeRange) -> CandleQuery | None:
        """Return the own query of the page's first chunk without one; None if all chunks have theirs."""
        for chunk in self._windows.chunks(page):
            if not self._is_queried(chunk):
                self._count_query(chunk.start_ns, 0)
                return self._query_chunk(chunk)
        return None

    def unproven(self, page: TimeRange) -> list[TimeRange]:
        """Return the parts of the page without an agreed candle and without proof of its absence."""
        lead = self._candidates.lead(page)
        if lead and not self._candidates.is_trusted(lead):
            return [page]
        disputed: list[int] = []
        if lead:
            lead.settle_disputes(self._agreement.lead())
            disputed = [t for t in lead.disputed if page.start_ns <= t < page.end_ns]
        holes = self._holes(page)
        if not holes and not disputed:
            return []
        answers = self._candidates.answers(page)
        counting = complete(answers, sorted(lead.known if lead else ()))
        anchored = self._agreement.agreeing(true=len(counting), untrue=len(answers) - len(counting))
        alone = max(anchored, self._hole_answers if lead else self._empty_job_answers)
        undecided = self._candidates.undecided(lead)
        unproven = (t for t in holes if t in undecided or not self._is_empty(t, counting, anchored, alone))
        return self._windows.ranges(sorted([*disputed, *unproven]))

    def settle(self, span: TimeRange) -> CandlePage:
        """Return the page, once ``next_query`` returns None; forget everything that no later page can need."""
        assert not self.unproven(span), "a page is settled before it is proven"
        lead = self._candidates.lead(span)
        known = lead.known if lead else {}
        candles = tuple(known[t] for t in open_times(span, self._period) if t in known)
        empty = tuple(self._windows.ranges(self._holes(span)))
        times_ns = [a.fetched_ns for a in self._candidates.answers(span)]
        proof = Proof(span, ProofKind.ODDS, len(times_ns), min(times_ns), max(times_ns))
        self._final = TimeRange(self._span.start_ns, span.end_ns)
        if lead and candles:
            lead.published = True
        self._forget(span.end_ns, keep_ns=self._windows.before(span.end_ns, self._limits.candles))
        return CandlePage(span, candles, empty, proof.last_ns, (proof,))

    def _is_empty(self, open_ns: int, counting: Iterable[CandidateAnswer], anchored: int, alone: int) -> bool:
        """Return whether a hole is proven: by ``anchored`` answers with candles around it, or by ``alone`` others."""
        covering = [a for a in counting if a.window.start_ns <= open_ns < a.window.end_ns]
        if len(covering) >= alone and self._has_both_ends(open_ns, covering):
            return True
        around = [a for a in covering if a.inner and a.inner.start_ns < open_ns < a.inner.end_ns]
        return len(around) >= anchored and len({a.window for a in around}) >= 2

    def _has_both_ends(self, open_ns: int, covering: Iterable[CandidateAnswer]) -> bool:
        """Return whether one answer lacks candles after a time and one lacks candles before it.

        An exchange that returns fewer candles than expected leaves out the oldest or the newest of a window; it can't
        have left out this one in both.
        """
        inner = [a.inner or TimeRange(open_ns, open_ns) for a in covering]
        return any(i.end_ns <= open_ns for i in inner) and any(i.start_ns >= open_ns for i in inner)

    def _holes(self, page: TimeRange) -> list[int]:
        lead = self._candidates.lead(page)
        known = lead.known if lead else {}
        return [t for t in open_times(page, self._period) if t not in known]

    def _is_queried(self, chunk: TimeRange) -> bool:
        """Return whether a chunk can do without its own query: one answer has candles around it, or two cover it."""
        covering = [a for a in self._candidates.answers(chunk) if a.window.contains(chunk)]
        return (
            chunk in self._answered or len(covering) >= 2 or any(a.inner and a.inner.contains(chunk) for a in covering)
        )

    def _forget(self, before_ns: int, *, keep_ns: int) -> None:
        lead = self._candidates.lead(self._page) if self._page else None
        self._candidates.forget(lead, before_ns, keep_ns=keep_ns)
        self._answered = {chunk for chunk in self._answered if chunk.end_ns > before_ns}

    def _count_query(self, *goal: int) -> None:
        self.queries_without_progress = self.queries_without_progress + 1 if goal == self._goal else 1
        self._goal = goal

    def _query_chunk(self, chunk: TimeRange) -> CandleQuery:
        """Return the chunk's own query; it reaches back to known candles, and beyond the chunk if the call has room.

        Beyond, because the last candle of an answer may be half-finished; see `add`.
        """
        self._queried_chunk = chunk
        windows, lead = self._windows, self._candidates.lead(chunk)
        size = max(self._limits.candles - windows.link, 1)
        room_ns = windows.first_ns if self._limits.wide else windows.before(chunk.end_ns, size)
        link = sorted(t for t in lead.known if room_ns <= t < chunk.start_ns)[-windows.link :] if lead else []
        start_ns = link[0] if link else chunk.start_ns
        end_ns = chunk.end_ns
        if count_periods(chunk, self._period) < size:
            end_ns = max(end_ns, min(windows.after(end_ns, windows.link), windows.closed_end_ns))
        return CandleQuery(TimeRange(start_ns, end_ns), chunk=chunk)

    def _query_next_page(self, page: TimeRange) -> CandleQuery | None:
        """Return the following page's own query, if it has not been made."""
        chunk = next(iter(self._chunks_after(page)), None)
        if chunk is None or self._is_queried(chunk):
            return None
        return replace(self._query_chunk(chunk), ahead=True)

    def _chunks_after(self, page: TimeRange) -> list[TimeRange]:
        """Return the chunks after a page that may be queried early."""
        return self._windows.chunks(TimeRange(page.end_ns, max(page.end_ns, self._early_end_ns)))

    def _confirm(self, page: TimeRange, lead: CandidateSeries) -> CandleQuery:
        """Return a query that shows again which market these candles are from; preferably one that is needed anyway."""
        windows = self._windows
        for chunk in self._chunks_after(page)[:_MAX_CHUNKS_AHEAD]:
            reach = TimeRange(windows.before(chunk.start_ns, windows.link), chunk.end_ns)
            linked = any(reach.start_ns <= t < chunk.start_ns for t in lead.known)
            if linked and not self._is_queried(chunk):
                return replace(self._query_chunk(chunk), ahead=True)
        self._tries += 1
        back = max(1, self._limits.candles // 8) * ((3 * self._tries - 1) % 7) + 1
        near_ns = min(lead.known, key=lambda t: (not page.start_ns <= t < page.end_ns, abs(t - page.start_ns), t))
        window = windows.longest(windows.before(near_ns, back))
        if near_ns < page.end_ns < window.end_ns:  # candles far beyond the page may be disordered
            # the page's last candle must not be the last one of this answer too
            window = TimeRange(window.start_ns, min(window.end_ns, windows.after(page.end_ns, windows.link)))
        return CandleQuery(window, spaced=self._tries > 2, shifted=True)

    def _continuing_window(self, hole: TimeRange, page: TimeRange) -> TimeRange | None:
        """Return a window that ends, or starts, with the known candle next to a long hole at a chunk's start or end.

        There an answer may have been cut by a limit below the known one; the next answer continues after it.
        """
        windows, size, lead = self._windows, self._limits.candles, self._candidates.lead(page)
        chunk = next(c for c in windows.chunks(page) if hole.start_ns < c.end_ns)
        inside = [t for t in (lead.known if lead else ()) if chunk.start_ns <= t < chunk.end_ns]
        is_cut = bool(self._continued)  # the rest of a long hole may be short
        if not inside or (count_periods(hole, self._period) < size // _LONG_HOLE and not is_cut):
            return None
        if max(inside) < hole.start_ns:
            return windows.longest(max(inside))
        if min(inside) >= hole.end_ns:
            end_ns = windows.after(hole.end_ns)
            start_ns = max(windows.before(chunk.start_ns, windows.link), windows.before(end_ns, size))
            return TimeRange(start_ns, end_ns)
        return None

    def _lacks_an_end(self, open_ns: int, page: TimeRange) -> bool:
        """Return whether a time's hole has to be proven by answers with candles on one side of it only."""
        lead = self._candidates.lead(page)
        if lead and open_ns in lead.known:
            return False  # its value is disputed, and an answer with this candle alone does not show its market
        counting = complete(self._candidates.answers(page), sorted(lead.known if lead else ()))
        covering = [a for a in counting if a.window.start_ns <= open_ns < a.window.end_ns]
        is_anchored = any(a.inner and a.inner.start_ns < open_ns < a.inner.end_ns for a in covering)
        return not (is_anchored and self._tries <= _ANCHORED_TRIES) and not self._has_both_ends(open_ns, covering)

    def _bare_window(self, open_ns: int, page: TimeRange) -> TimeRange:
        """Return the window from a time to the next known candle: no other candle can fill the answer to it."""
        lead, end_ns = self._candidates.lead(page), self._windows.closed_end_ns
        later = (t for t in (lead.known if lead else ()) if t > open_ns)
        return TimeRange(open_ns, min(later, default=max(end_ns, self._windows.after(open_ns))))

    def _shifted_window(self, hole: TimeRange, page: TimeRange) -> TimeRange:
        """Return a window that holds the start of ``hole`` and known candles before it, unlike the page's own window.

        For a hole in the first quarter of a page (of a chunk, if the page has several) it starts half a call before the
        page; for any other shortly before the hole, so that the first holes of the next page are in reach. Some windows
        end with the hole and some start with it; see `_has_both_ends`.
        """
        windows, size, hole_ns = self._windows, self._limits.candles, hole.start_ns
        if hole not in self._continued and (window := self._continuing_window(hole, page)):
            self._continued.add(hole)
            return window
        if self._limits.wide and self._tries % 2 and self._lacks_an_end(hole_ns, page):
            return self._bare_window(hole_ns, page)
        if self._tries % 8 == 5 and not self._limits.wide:
            end_ns = min(hole.end_ns, windows.after(hole_ns, size))
            window = windows.longest(windows.before(end_ns, size))
            return TimeRange(window.start_ns, min(window.end_ns, end_ns))
        if self._tries % 8 == 6 and not self._limits.wide:
            return windows.longest(hole_ns)
        lead = self._candidates.lead(page)
        first_ns = min(lead.known) if lead else 0
        if first_ns >= page.end_ns and self._tries % 2:  # all known candles are after the page
            start_ns = windows.before(first_ns, size - windows.link)
            if start_ns <= hole_ns:
                return windows.longest(start_ns)
        chunk = next(c for c in windows.chunks(page) if hole_ns < c.end_ns)
        anchors = min(max(2, min(ANCHORS, size // 64)) * self._tries, max(1, size // 4))
        if count_periods(TimeRange(chunk.start_ns, hole_ns), self._period) < size // 4:
            return windows.longest(windows.before(chunk.start_ns, size // 2 + anchors))
        known = sorted(t for t in (lead.known if lead else ()) if t < hole_ns)[-anchors:]
        start_ns = known[0] if known else windows.before(hole_ns, anchors)
        return windows.longest(max(start_ns, windows.before(hole_ns, size // 2)))
