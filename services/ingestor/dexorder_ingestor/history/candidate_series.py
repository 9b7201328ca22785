"""Candidate series: candles on which some answers agree, told apart from another market's candles. Pure.

The answers of many exchanges do not name the market. Two answers belong to the same series if they
agree on more than half of the candles they share. An answer that shares no candle with others is a separate series,
until an answer joins the two. The lead is the series with the most answers; the series that share candles with it are
its rivals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.history.paging import QueryWindows

_PROVEN_VOTES = 20
"""Answers that the candles of earlier pages count as."""


@dataclass(frozen=True, slots=True)
class CandidateAnswer:
    """One answer of an exchange.

    Attributes:
        window: The range that it covers; ends after the last candle if the call's limit cut it.
        opens: Open times of its candles.
        inner: Range from its first candle to the end of its last; None without candles.
    """

    window: TimeRange
    opens: frozenset[int]
    inner: TimeRange | None
    fetched_ns: int


@dataclass(slots=True, eq=False)
class CandidateSeries:
    """The candles that some answers agree on.

    Attributes:
        votes: Answers that belong to it, including those forgotten since.
        disputed: Open times at which its answers differ, with the number of answers for each value.
    """

    known: dict[int, Candle] = field(default_factory=dict)
    answers: list[CandidateAnswer] = field(default_factory=list)
    votes: int = 0
    disputed: dict[int, Counter[Candle]] = field(default_factory=dict)
    published: bool = False

    def agrees(self, candles: Sequence[Candle]) -> bool:
        """Return whether these are candles of this series."""
        shared = [c for c in candles if c.open_ns in self.known]
        return 2 * sum(self.known[c.open_ns] == c for c in shared) > len(shared)

    def shares(self, other: CandidateSeries) -> bool:
        """Return whether both have a candle of the same time."""
        return not self.known.keys().isdisjoint(other.known)

    def add(self, answer: CandidateAnswer, candles: Sequence[Candle], *, final: TimeRange) -> Candle | None:
        """Add an answer; return a candle in which it differs. Published candles, those in ``final``, do not change."""
        by_open = {c.open_ns: c for c in candles}
        odd = [c for t, c in by_open.items() if t in self.known and (self.known[t] != c or t in self.disputed)]
        settled = final if self.published else TimeRange(0, 0)
        late = [c for t, c in by_open.items() if settled.start_ns <= t < settled.end_ns and self.known.get(t) != c]
        for c in odd:
            if c not in late:
                self._dispute(c)
        for t, c in by_open.items():
            if t not in self.known and not settled.start_ns <= t < settled.end_ns:
                self.known[t] = c
        self.answers.append(answer)
        self.votes += 1
        return next(iter(late + [c for c in odd if self.known[c.open_ns] != c]), None)

    def is_denied(self, answer: CandidateAnswer) -> bool:
        """Return whether an answer covers a time at which this series has a candle, and lacks it."""
        window = answer.window
        return any(window.start_ns <= t < window.end_ns and t not in answer.opens for t in self.known)

    def count_with(self, open_ns: int) -> int:
        """Return the number of answers with a candle of that time."""
        return sum(open_ns in a.opens for a in self.answers)

    def join(self, other: CandidateSeries) -> None:
        """Add another series that turned out to be the same one."""
        for open_ns in self.known.keys() & other.known.keys() - self.disputed.keys():
            if self.known[open_ns] != other.known[open_ns]:
                self.disputed[open_ns] = Counter({s.known[open_ns]: s.count_with(open_ns) for s in (self, other)})
        self.known = other.known | self.known
        self.answers += other.answers
        self.votes += other.votes
        self.published |= other.published
        for open_ns, votes in other.disputed.items():
            self.disputed.setdefault(open_ns, Counter()).update(votes)

    def settle_disputes(self, lead: int) -> None:
        """End the disputes in which one value leads by this many answers."""
        for open_ns, votes in list(self.disputed.items()):
            (_, first), *rest = votes.most_common(2)
            if first - (rest[0][1] if rest else 0) >= lead:
                del self.disputed[open_ns]

    def forget(self, before_ns: int, *, keep_ns: int, keep_last: int) -> list[CandidateAnswer]:
        """Drop answers that end by ``before_ns`` and candles before ``keep_ns`` but the last; return the answers."""
        gone = [a for a in self.answers if a.window.end_ns <= before_ns]
        self.answers = [a for a in self.answers if a.window.end_ns > before_ns]
        if keep_last:
            keep_ns = min([keep_ns, *sorted(self.known)[-keep_last:]])
        self.known = {t: c for t, c in self.known.items() if t >= keep_ns}
        self.disputed = {t: v for t, v in self.disputed.items() if t >= before_ns}
        return gone

    def _dispute(self, candle: Candle) -> None:
        open_ns = candle.open_ns
        if open_ns not in self.disputed:
            self.disputed[open_ns] = Counter({self.known[open_ns]: self.count_with(open_ns)})
        votes = self.disputed[open_ns]
        votes[candle] += 1
        self.known[open_ns] = votes.most_common(1)[0][0]


class Candidates:
    """All candidate series of one job, and the answers without any candle."""

    def __init__(
        self, windows: QueryWindows, agreement: Agreement, proven: Sequence[Candle] = (), *, are_cells: bool = False
    ) -> None:
        self._windows = windows
        self._agreement = agreement
        self._are_cells = are_cells
        self._series: list[CandidateSeries] = []
        if proven:
            known = {c.open_ns: c for c in proven}
            self._series.append(CandidateSeries(known, votes=_PROVEN_VOTES, published=True))
        self._empty: list[CandidateAnswer] = []

    def add(
        self, answer: CandidateAnswer, candles: Sequence[Candle], *, final: TimeRange
    ) -> tuple[CandidateSeries | None, Candle | None]:
        """Add an answer; return the series it belongs to, None without candles, and a candle in which it differs."""
        series, odd = None, None
        if candles:
            series = self._find(candles)
            odd = series.add(answer, candles, final=final)
            series = self._join_trusted(series)
        else:
            self._empty.append(answer)
        self._drop_denied()
        return series, odd

    def lead(self, page: TimeRange) -> CandidateSeries | None:
        """Return the series with the most answers, of those about or near the page and their rivals."""
        limits = self._windows.limits
        reach_ns = 0 if limits.wide else self._windows.before(page.start_ns, limits.candles)
        near = [s for s in self._series if any(reach_ns <= t < page.end_ns for t in s.known)]
        near = near or [s for s in self._series if any(a.window.intersect(page) for a in s.answers)]
        # an untrue answer may be the only one that reaches the page
        rivals = [s for s in self._series if any(s.shares(other) for other in near)]
        return max((*near, *rivals), key=lambda series: series.votes, default=None)

    def stray(self, unproven: Sequence[TimeRange], lead: CandidateSeries | None) -> CandidateSeries | None:
        """Return a series apart from the lead that has candles in the lead's holes, if there is one.

        Otherwise one with answers about the first of these holes: they do not count before it joins the lead.
        """
        apart = self._apart(lead)
        inside = (s for s in apart if any(p.start_ns <= t < p.end_ns for p in unproven for t in s.known))
        about = (s for s in apart if any(a.window.contains(unproven[0]) for a in s.answers))
        return next(inside, None) or next(about, None)

    def undecided(self, lead: CandidateSeries | None) -> set[int]:
        """Return the open times of candles that may belong to the lead: all candles of the series apart from it."""
        return {t for series in self._apart(lead) for t in series.known}

    def is_trusted(self, lead: CandidateSeries) -> bool:
        """Return whether enough answers show that these are the queried market's candles."""
        if self._windows.limits.names_symbol:
            return True
        rivals = [s for s in self._series if s is not lead and s.shares(lead)]
        if any(s.published for s in rivals):
            return False
        if self._are_cells:
            return True  # `fetch` decides by the finer candles
        against = sum(s.votes for s in rivals)
        return self._agreement.is_lead(lead.votes, max(against, self._denials(lead)))

    def answers(self, page: TimeRange) -> list[CandidateAnswer]:
        """Return the answers about the page: its lead's, and the ones without a candle."""
        lead = self.lead(page)
        return [a for a in (*(lead.answers if lead else ()), *self._empty) if a.window.intersect(page)]

    def forget(self, lead: CandidateSeries | None, before_ns: int, *, keep_ns: int) -> None:
        """Forget answers that end by ``before_ns``, and count in the agreement which of them were true."""
        known = sorted(lead.known) if lead else []
        gone = [a for a in self._empty if a.window.end_ns <= before_ns]
        self._empty = [a for a in self._empty if a.window.end_ns > before_ns]
        for series in list(self._series):
            foreign = lead is not None and series is not lead and series.shares(lead)
            keep_last = self._windows.link if series is lead else 0
            ended = series.forget(before_ns, keep_ns=keep_ns, keep_last=keep_last)
            self._agreement.foreign.note(**{"untrue" if foreign else "true": len(ended)})
            gone += [] if foreign else ended
            if not series.known:
                self._series.remove(series)
        true = len(complete(gone, known))
        self._agreement.incomplete.note(true=true, untrue=len(gone) - true)

    def drop(self, open_ns: int) -> None:
        """Forget a candle."""
        for series in self._series:
            series.known.pop(open_ns, None)
            series.disputed.pop(open_ns, None)
        self._series = [series for series in self._series if series.known]

    def _apart(self, lead: CandidateSeries | None) -> list[CandidateSeries]:
        return [series for series in self._series if lead and _is_apart(series, lead)]

    def _find(self, candles: Sequence[Candle]) -> CandidateSeries:
        """Return the series that these candles belong to; if they join several, make one of them."""
        same = [series for series in self._series if series.agrees(candles)]
        if not same:
            same = [CandidateSeries()]
            self._series.append(same[0])
        first, *others = sorted(same, key=lambda series: -series.votes)
        for other in others:
            first.join(other)
            self._series.remove(other)
        return first

    def _join_trusted(self, series: CandidateSeries) -> CandidateSeries:
        """Join series that share no candle and are each trusted: no window has connected or opposed them."""
        for other in list(self._series):
            if _is_apart(series, other) and self.is_trusted(series) and self.is_trusted(other):
                other.join(series)
                self._series.remove(series)
                series = other
        return series

    def _drop_denied(self) -> None:
        """Forget series over which the answers that deny them lead."""
        is_known = self._windows.limits.names_symbol or self._are_cells
        for series in [] if is_known else list(self._series):
            if not series.published and self._agreement.is_lead(self._denials(series), series.votes):
                self._series.remove(series)
                self._agreement.foreign.note(untrue=len(series.answers))

    def _denials(self, series: CandidateSeries) -> int:
        """Return how many answers, without a candle or of a series apart, deny candles that only this series has."""
        apart = [a for other in self._series if _is_apart(series, other) for a in other.answers]
        return sum(series.is_denied(a) for a in (*self._empty, *apart))


def _is_apart(series: CandidateSeries, other: CandidateSeries) -> bool:
    return series is not other and not series.shares(other)


def complete(answers: Iterable[CandidateAnswer], known: Sequence[int]) -> list[CandidateAnswer]:
    """Return the answers that hold every known candle of their window; ``known`` ascends."""
    return [
        a
        for a in answers
        if a.opens.issuperset(known[bisect_left(known, a.window.start_ns) : bisect_left(known, a.window.end_ns)])
    ]
