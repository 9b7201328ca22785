"""Which answers prove that a candle does not exist, or whose it is, and what to ask when they do not. Pure.

An exchange that answers half a page, nothing, or another market's candles does so with the same 200 as ever. So:

- Each question but the first reaches back to some known candles. An answer that brings them back tells of the same
  market (`series`). Whose candles the first answers hold is settled by the lead of one series over any other; the
  answers to the pages that follow count, so that only a short job asks more for it.
- A candle in any sound answer of that series exists. An answer *counts* against the existence of others only if it
  holds every known candle of its window.
- A missing candle is proven absent by counting answers with candles on both sides of it, to different windows; or,
  where no candles are near, by ``hole_answers`` or more spaced ones, one of which has none before it, one none behind
  it. How many must agree follows from how often this
  exchange's answers were untrue (`rates`).

The windows are shifted against the page, by a quarter of a call or more where the page allows it, so that an answer
cut at its start, its end or its middle is cut elsewhere the next time. One such window covers all holes within its
reach and reaches into the next page.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.common.model.page import Candle
from services.common.model.periods import count_periods, next_open, open_times, split_by_periods
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import MAX_TIME_NS
from services.ingestor.history.agreement import Agreement
from services.ingestor.history.candidate_series import Answer, CandidateSeries, whole
from services.ingestor.history.paging import CallLimits, link_periods, question_periods

ANCHORS = 8
"""Known candles a shifted window holds before the first hole it is asked for, of a call of 512 candles or more; grows
with each further try."""
_MOST_AHEAD = 64
"""Pages beyond the one to be settled that may be asked for early."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question to the exchange.

    Attributes:
        spaced: Wait ``hole_spacing_seconds`` since the answer before, so that the two fail independently.
        shifted: It is asked for evidence, not for a page's own candles.
        ahead: It is a later page's own question, asked early.
    """

    window: TimeRange
    spaced: bool = False
    shifted: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """A page as the answers prove it; its candles and empty ranges fill it."""

    candles: tuple[Candle, ...]
    empty: tuple[TimeRange, ...]
    fetched_ns: int


class Evidence:
    """What the answers to one job have shown so far. Pages are settled in time order."""

    def __init__(
        self,
        span: TimeRange,
        period_seconds: int,
        limits: CallLimits,
        rates: Agreement,
        *,
        closed_end_ns: int,
        hole_answers: int,
        empty_job_answers: int = 0,
    ) -> None:
        """Take the rules of one job.

        Args:
            span: What the job is to settle; questions for evidence may reach beyond it.
            rates: The exchange's; told at each page's end which answers were true.
            closed_end_ns: End of the last closed candle, on the grid; no question reaches beyond it.
            hole_answers: Answers, at least, that prove a span empty when no candles are near.
            empty_job_answers: The same while no candle is known, of an exchange whose answers speak of wide windows:
                there the same few answers decide about all of the job.
        """
        self._span = span
        self._period = period_seconds
        self._limits = limits
        self._rates = rates
        self._closed_end_ns = closed_end_ns
        self._hole_answers = hole_answers
        self._silent_answers = max(hole_answers, empty_job_answers if limits.wide else 0)
        self._link = link_periods(limits.candles)
        self._series: list[CandidateSeries] = []
        self._silent: list[Answer] = []
        self._own: set[TimeRange] = set()
        self._asked_for: TimeRange | None = None
        self._final = TimeRange(span.start_ns, span.start_ns)
        self._barriers: list[int] = []
        self._page: TimeRange | None = None
        self._tries = 0
        self._far_ns = span.end_ns
        self._goal: tuple[int, ...] = ()
        self.futile = 0
        """Questions since one last brought anything nearer."""

    # ---- answers

    def add(self, window: TimeRange, candles: Sequence[Candle], *, fetched_ns: int) -> str | None:
        """Take in a sound answer to the last question; says why when it contradicts what is known."""
        chunk = self._asked_for
        self._asked_for = None
        if chunk and candles and candles[-1].open_ns >= chunk.end_ns:  # it has shown that those before it are finished
            window, candles = TimeRange(window.start_ns, chunk.end_ns), [c for c in candles if c.open_ns < chunk.end_ns]
        inner = TimeRange(candles[0].open_ns, self._after(candles[-1].open_ns)) if candles else None
        opens = frozenset(c.open_ns for c in candles)
        answer = Answer(self._spoken_of(window, candles), opens, inner, fetched_ns)
        if not candles:
            self._silent.append(answer)
            series, odd = None, None
        else:
            series = self._of(candles)
            odd = series.take(answer, candles, final=self._final)
            series = self._join(series)
        self._drop_denied()
        lead = self._lead(chunk or window)
        if chunk and series in (None, lead):
            self._own.add(chunk)
        if odd and series:
            return f"candle {odd} was {series.known.get(odd.open_ns)} before"
        if series is not lead and lead and series and series.shares(lead):
            return f"candle {candles[0]} and those after it are of another series than most answers' candles"
        return None

    def avoid(self, open_ns: int) -> None:
        """Never ask for this candle again: the exchange only has an impossible one. Pages must not hold it."""
        insort(self._barriers, open_ns)

    def look_no_further(self) -> None:
        """Ask for no later page early: the last such question had no answer."""
        self._far_ns = 0

    def close(self) -> None:
        """Tell the rates of the answers that are left."""
        self._judge(MAX_TIME_NS, keep_ns=MAX_TIME_NS)

    # ---- questions

    def next_query(self, page: TimeRange) -> Query | None:
        """The question that brings ``page`` closer to settled; None when it is."""
        if page != self._page:
            self._page = page
            self._tries = 0
        for chunk in self._chunks(page):
            if not self._is_asked(chunk):
                self._count(chunk.start_ns, 0)
                return self._ask_chunk(chunk)
        lead = self._lead(page)
        if lead and not self._is_trusted(lead):
            self._count(page.start_ns, 1)
            return self._confirm(page, lead)
        unproven = self.unproven(page)
        if not unproven:
            return None
        self._count(unproven[0].start_ns, 2)
        if not lead and (ask := self._ask_next(page)):
            return ask  # candles behind the page tell more than silence about it
        stray = self._stray(unproven, lead)
        if stray:
            return self._confirm(page, stray)
        self._tries += 1
        # What two answers did not settle, or a page without any candle, is only worth asking about again when the
        # exchange had time to recover.
        again = sum(a.window.contains(unproven[0]) for a in self._answers(page)) >= 2
        bare = len(self._missing(page)) == count_periods(page, self._period)
        return Query(self._shifted(unproven[0], page), spaced=again or bare, shifted=True)

    def _count(self, *goal: int) -> None:
        self.futile = self.futile + 1 if goal == self._goal else 1
        self._goal = goal

    def unproven(self, page: TimeRange) -> list[TimeRange]:
        """Parts of the page without a candle that is agreed on and without proof that there is none."""
        lead = self._lead(page)
        if lead and not self._is_trusted(lead):
            return [page]
        disputed: list[int] = []
        if lead:
            lead.settle_disputes(self._rates.lead())
            disputed = [t for t in lead.disputed if page.start_ns <= t < page.end_ns]
        missing = self._missing(page)
        if not missing and not disputed:
            return []
        answers = self._answers(page)
        counting = whole(answers, sorted(lead.known if lead else ()))
        agreeing = self._rates.agreeing(true=len(counting), untrue=len(answers) - len(counting))
        alone = max(agreeing, self._hole_answers if lead else self._silent_answers)
        unproven = (t for t in missing if not self._is_absent(t, counting, agreeing, alone))
        return self._as_ranges(sorted([*disputed, *unproven]))

    def settle(self, page: TimeRange) -> Settled:
        """The page, once ``next_ask`` has nothing more to ask; forgets what no later page can need."""
        assert not self.unproven(page), "a page is settled before it is proven"
        lead = self._lead(page)
        known = lead.known if lead else {}
        candles = tuple(known[t] for t in open_times(page, self._period) if t in known)
        fetched_ns = max(a.fetched_ns for a in self._answers(page))
        empty = tuple(self._as_ranges(self._missing(page)))
        self._final = TimeRange(self._span.start_ns, page.end_ns)
        if lead and candles:
            lead.published = True
        self._judge(page.end_ns, keep_ns=self._before(page.end_ns, self._limits.candles))
        return Settled(candles, empty, fetched_ns)

    # ---- whose candles

    def _of(self, candles: Sequence[Candle]) -> CandidateSeries:
        """The series these candles belong to; those they join become one."""
        same = [series for series in self._series if series.agrees(candles)]
        if not same:
            same = [CandidateSeries()]
            self._series.append(same[0])
        first, *others = sorted(same, key=lambda series: -series.votes)
        for other in others:
            first.join(other)
            self._series.remove(other)
        return first

    def _lead(self, page: TimeRange) -> CandidateSeries | None:
        """The series with most answers, of those that speak of the page or reach it and their rivals."""
        reach_ns = 0 if self._limits.wide else self._before(page.start_ns, self._limits.candles)
        near = [s for s in self._series if any(reach_ns <= t < page.end_ns for t in s.known)]
        near = near or [s for s in self._series if any(a.window.intersect(page) for a in s.answers)]
        # a lie may be all that reaches the page
        rivals = [s for s in self._series if any(s.shares(other) for other in near)]
        return max((*near, *rivals), key=lambda series: series.votes, default=None)

    def _join(self, series: CandidateSeries) -> CandidateSeries:
        """Make one of what is trusted each by itself, and what no window has joined or set against each other."""
        for other in list(self._series):
            if self._is_apart(series, other) and self._is_trusted(series) and self._is_trusted(other):
                other.join(series)
                self._series.remove(series)
                series = other
        return series

    def _is_apart(self, series: CandidateSeries, other: CandidateSeries) -> bool:
        return series is not other and not series.shares(other)

    def _stray(self, unproven: Sequence[TimeRange], lead: CandidateSeries | None) -> CandidateSeries | None:
        """A series apart from the lead that has candles where it has none."""
        for series in self._series:
            has = any(part.start_ns <= t < part.end_ns for part in unproven for t in series.known)
            if has and lead and self._is_apart(series, lead):
                return series
        return None

    def _is_trusted(self, lead: CandidateSeries) -> bool:
        if self._limits.names_symbol:
            return True
        rivals = [s for s in self._series if s is not lead and s.shares(lead)]
        if any(s.published for s in rivals):
            return False
        against = sum(s.votes for s in rivals)
        if not self._rates.foreign.is_minor(true=lead.votes, untrue=against):
            return False
        denials = self._denials(lead)
        if lead.votes - max(against, denials) >= self._rates.lead(true=lead.votes, untrue=max(against, denials)):
            return True
        return not against and self._rates.outweighs(lead.votes, denials)

    def _denials(self, series: CandidateSeries) -> int:
        """Answers, without a candle or of a series apart, that speak against what only this series has."""
        apart = [a for other in self._series if self._is_apart(series, other) for a in other.answers]
        return sum(series.is_denied(a) for a in (*self._silent, *apart))

    def _drop_denied(self) -> None:
        """Forget series that far more answers deny than tell."""
        for series in [] if self._limits.names_symbol else list(self._series):
            if not series.published and self._rates.disproves(self._denials(series), series.votes):
                self._series.remove(series)
                self._rates.foreign.note(untrue=len(series.answers))

    def _confirm(self, page: TimeRange, lead: CandidateSeries) -> Query:
        """A question whose answer tells again whose candles these are: one that is needed anyway, if there is any."""
        rest = TimeRange(page.end_ns, max(page.end_ns, self._far_ns))
        for chunk in self._chunks(rest)[:_MOST_AHEAD]:
            reach = TimeRange(self._before(chunk.start_ns, self._link), chunk.end_ns)
            allowed = not any(reach.start_ns <= t < reach.end_ns for t in self._barriers)
            linked = any(reach.start_ns <= t < chunk.start_ns for t in lead.known)
            if allowed and linked and not self._is_asked(chunk):
                return replace(self._ask_chunk(chunk), ahead=True)
        self._tries += 1
        size = self._limits.candles
        back = max(1, size // 8) * ((3 * self._tries - 1) % 7) + 1
        near_ns = min(lead.known, key=lambda t: (not page.start_ns <= t < page.end_ns, abs(t - page.start_ns), t))
        window = self._allowed(self._before(near_ns, back), near_ns)
        if near_ns < page.end_ns < window.end_ns:  # what lies far beyond may be out of order
            # the page's last candle must not be the answer's last once more
            end_ns = next_open(page.end_ns, self._period, self._link)
            window = TimeRange(window.start_ns, min(window.end_ns, end_ns))
        return Query(window, spaced=self._tries > 2, shifted=True)

    # ---- what was asked

    def _chunks(self, page: TimeRange) -> list[TimeRange]:
        return split_by_periods(page, self._period, question_periods(self._limits.candles))

    def _ask_chunk(self, chunk: TimeRange) -> Query:
        """The chunk's own question: it reaches back to known candles, and beyond the chunk, as a call has room for.

        Beyond, since the last candle of an answer is the one that may be half-finished; see `add`.
        """
        self._asked_for = chunk
        lead = self._lead(chunk)
        size = max(self._limits.candles - self._link, 1)
        room_ns = 0 if self._limits.wide else self._before(chunk.end_ns, size)
        before = sorted(t for t in lead.known if room_ns <= t < chunk.start_ns)[-self._link :] if lead else []
        start_ns = max(before[0] if before else chunk.start_ns, self._barrier_before(chunk.start_ns))
        end_ns = chunk.end_ns
        if count_periods(chunk, self._period) < size:
            end_ns = max(end_ns, min(next_open(end_ns, self._period, self._link), self._closed_end_ns))
        barrier = bisect_left(self._barriers, start_ns)
        return Query(TimeRange(start_ns, min([end_ns, *self._barriers[barrier : barrier + 1]])))

    def _is_asked(self, chunk: TimeRange) -> bool:
        """Whether a chunk needs no question of its own: an answer holds it between its candles, or two hold it."""
        holding = [answer for answer in self._answers(chunk) if answer.window.contains(chunk)]
        return chunk in self._own or len(holding) >= 2 or any(a.inner and a.inner.contains(chunk) for a in holding)

    def _answers(self, page: TimeRange) -> list[Answer]:
        """Answers that speak of the page: of its series, or without a candle."""
        lead = self._lead(page)
        return [a for a in (*(lead.answers if lead else ()), *self._silent) if a.window.intersect(page)]

    def _spoken_of(self, window: TimeRange, candles: Sequence[Candle]) -> TimeRange:
        """The part of a window an answer speaks of: no farther than a call reaches, unless it holds no candle."""
        size = self._limits.candles
        if not candles or count_periods(window, self._period) <= size:
            return window
        last_ns = self._after(candles[-1].open_ns)
        reach_ns = last_ns if len(candles) >= size else next_open(window.start_ns, self._period, size)
        return TimeRange(window.start_ns, min(max(last_ns, reach_ns), window.end_ns))

    # ---- proof

    def _is_absent(self, open_ns: int, counting: Iterable[Answer], agreeing: int, alone: int) -> bool:
        speaking = [a for a in counting if a.window.start_ns <= open_ns < a.window.end_ns]
        if len(speaking) >= alone and self._is_at_both_ends(open_ns, speaking):
            return True
        anchored = [a for a in speaking if a.inner and a.inner.start_ns < open_ns < a.inner.end_ns]
        return len(anchored) >= agreeing and len({a.window for a in anchored}) >= 2

    def _is_at_both_ends(self, open_ns: int, speaking: Iterable[Answer]) -> bool:
        """Whether one answer has no candle after a time and one has none before it.

        An exchange that returns fewer candles than is known of it leaves out the oldest or the newest of a window; it
        can't have left out this one in both.
        """
        if self._limits.wide:
            return True
        inner = [a.inner or TimeRange(open_ns, open_ns) for a in speaking]
        return any(i.end_ns <= open_ns for i in inner) and any(i.start_ns >= open_ns for i in inner)

    def _missing(self, page: TimeRange) -> list[int]:
        lead = self._lead(page)
        known = lead.known if lead else {}
        return [t for t in open_times(page, self._period) if t not in known]

    def _judge(self, before_ns: int, *, keep_ns: int) -> None:
        """Tell the rates which answers were true, those that end by ``before_ns``; they are forgotten with it."""
        lead = self._lead(self._page) if self._page else None
        known = sorted(lead.known) if lead else []
        gone = [a for a in self._silent if a.window.end_ns <= before_ns]
        self._silent = [a for a in self._silent if a.window.end_ns > before_ns]
        for series in list(self._series):
            foreign = lead is not None and series is not lead and series.shares(lead)
            ended = series.forget(before_ns, keep_ns=keep_ns, keep_last=self._link if series is lead else 0)
            self._rates.foreign.note(**{"untrue" if foreign else "true": len(ended)})
            gone += [] if foreign else ended
            if not series.known:
                self._series.remove(series)
        true = len(whole(gone, known))
        self._rates.incomplete.note(true=true, untrue=len(gone) - true)
        self._own = {chunk for chunk in self._own if chunk.end_ns > before_ns}

    # ---- windows

    def _ask_next(self, page: TimeRange) -> Query | None:
        """The following page's own question, if it has not been asked."""
        rest = TimeRange(page.end_ns, max(page.end_ns, self._far_ns))
        chunk = next(iter(self._chunks(rest)), None)
        if chunk is None or self._is_asked(chunk) or any(chunk.start_ns <= t < chunk.end_ns for t in self._barriers):
            return None
        return replace(self._ask_chunk(chunk), ahead=True)

    def _shifted(self, hole: TimeRange, page: TimeRange) -> TimeRange:
        """A window that holds the start of ``hole`` and known candles before it, at another place than the page's own.

        A hole in the first quarter of a page (of a call, where a page takes several) is asked for from half a call
        before that. Any other is asked for from shortly before it, so that the next page's first holes are in reach.
        Some windows end with the hole and some begin with it; see `_is_at_both_ends`.
        """
        size, hole_ns = self._limits.candles, hole.start_ns
        if self._tries % 8 == 5 and not self._limits.wide:
            end_ns = min(hole.end_ns, next_open(hole_ns, self._period, size))
            window = self._allowed(self._before(end_ns, size), hole_ns)
            return TimeRange(window.start_ns, min(window.end_ns, end_ns))
        if self._tries % 8 == 6 and not self._limits.wide:
            return self._allowed(hole_ns, hole_ns)
        lead = self._lead(page)
        first_ns = min(lead.known) if lead else 0
        if first_ns >= page.end_ns and self._tries % 2:  # all that is known lies behind the page
            start_ns = self._before(first_ns, size - self._link)
            if start_ns <= hole_ns:
                return self._allowed(start_ns, hole_ns)
        chunk = next(c for c in self._chunks(page) if hole_ns < c.end_ns)
        anchors = min(max(2, min(ANCHORS, size // 64)) * self._tries, max(1, size // 4))
        if count_periods(TimeRange(chunk.start_ns, hole_ns), self._period) < size // 4:
            start_ns = self._before(chunk.start_ns, size // 2 + anchors)
        else:
            known = sorted(t for t in (lead.known if lead else ()) if t < hole_ns)[-anchors:]
            start_ns = known[0] if known else self._before(hole_ns, anchors)
            start_ns = max(start_ns, self._before(hole_ns, size // 2))
        return self._allowed(start_ns, hole_ns)

    def _allowed(self, start_ns: int, through_ns: int) -> TimeRange:
        """As much as one call may ask from ``start_ns`` on, through a time and up to what must not be asked."""
        end_ns = self._closed_end_ns
        start_ns = max(start_ns, self._barrier_before(through_ns))
        if not self._limits.wide:
            end_ns = min(end_ns, next_open(start_ns, self._period, self._limits.candles))
        at = bisect_left(self._barriers, through_ns)
        if at < len(self._barriers):
            end_ns = min(end_ns, self._barriers[at])
        return TimeRange(start_ns, max(end_ns, start_ns))

    def _barrier_before(self, open_ns: int) -> int:
        """The first open time that may be asked for, of those up to ``open_ns``."""
        at = bisect_left(self._barriers, open_ns)
        return self._after(self._barriers[at - 1]) if at else 0

    def _before(self, open_ns: int, count: int) -> int:
        span_ns = TimeRange(0, open_ns)
        return next_open(open_ns, self._period, -min(count, count_periods(span_ns, self._period)))

    def _after(self, open_ns: int) -> int:
        return next_open(open_ns, self._period)

    def _as_ranges(self, opens: Iterable[int]) -> list[TimeRange]:
        return merge(TimeRange(t, self._after(t)) for t in opens)
