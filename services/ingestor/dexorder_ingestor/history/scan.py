"""Search for a long range without candles by weeks and days, where a call for cells is empty.

Before a listing, hundreds of calls for cells would be empty. One call for weeks reaches over years: agreeing answers
about them prove which are empty. The first week that has one is divided into days, and the first day into cells,
which are proven by their checksum. The candles of both ends of the whole range are queried, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dexorder_common.model.checksum import SETTLED_AFTER_SECONDS
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import count_periods, floor_to_grid, next_open
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.absences import ProvenAbsence
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.history.checksum import CellStream
from dexorder_ingestor.history.evidence import CandleQuery
from dexorder_ingestor.history.job import FetchJob, Unproven
from dexorder_ingestor.history.paging import QueryWindows, chunk_periods

_LONG_CALLS = 2
"""Calls that a range without coarser candles is worth; of longer ones only the ends are queried."""


def settled_end_ns(job: FetchJob, period_seconds: int) -> int:
    """Return the end of the last coarser candle that closed long enough ago to count."""
    return floor_to_grid(max(0, job.closed_end_ns - SETTLED_AFTER_SECONDS * SECOND_NS), period_seconds)


class Scan:
    """Absences for one dispatch: known to its request, or found by the dispatch."""

    def __init__(self, job: FetchJob) -> None:
        self._job = job
        self._known = job.venue.absences.of(job.dispatch.request_id)
        self._windows = QueryWindows(job.dispatch.period_seconds, job.limits, closed_end_ns=job.closed_end_ns)
        self._is_over = False

    def is_long(self, span: TimeRange) -> bool:
        """Return whether an absent range is so long that only its ends are queried."""
        return count_periods(span, self._windows.period) > _LONG_CALLS * self._job.limits.candles

    async def has_empty_ends(self, part: TimeRange) -> bool:
        """Return whether queries about the start and the end of a range are empty."""
        windows, size = self._windows, self._job.limits.candles
        first = TimeRange(part.start_ns, windows.after(part.start_ns, size))
        last = TimeRange(windows.before(part.end_ns, size), part.end_ns)
        try:
            return not any(
                [(await self._job.query(CandleQuery(window), windows.period))[0] for window in (last, first)]
            )
        except ExchangeFailure:
            return False

    def known_at(self, time_ns: int) -> ProvenAbsence | None:
        """Return the part after a time of the known absence that contains it."""
        return self._known.at(time_ns, now_ns=self._job.newest.now_ns)

    async def find(self, time_ns: int, periods: Sequence[int]) -> ProvenAbsence | None:
        """Return the part after a time of the absence that contains it, as far as cells show it, or None.

        Args:
            periods: Periods that divide one another, the longest first; the last is the cells' period.
        """
        async with self._known.turn:
            found = self.known_at(time_ns)
            if found is None and not self._is_over:
                try:
                    found = await self._search(time_ns, periods)
                except (ExchangeFailure, Unproven):
                    self._is_over = True
                if found:
                    self._known.note(found)
        return found and found.part(TimeRange(time_ns, found.span.end_ns))

    async def _search(self, time_ns: int, periods: Sequence[int]) -> ProvenAbsence | None:
        for number, seconds in enumerate(periods[:-1]):
            found, later = await self._absent(time_ns, seconds)
            if found:
                found = await self._continue(found, later, periods[number:])
                return found if await self.has_empty_ends(found.span) else None
        return None

    async def _absent(self, time_ns: int, seconds: int) -> tuple[ProvenAbsence | None, Candle | None]:
        """Return the long absence around a time that agreeing answers of one call's reach prove; the next candle."""
        job, settled_ns = self._job, settled_end_ns(self._job, seconds)
        windows = QueryWindows(seconds, job.limits, closed_end_ns=settled_ns)
        open_ns, size = floor_to_grid(time_ns, seconds), chunk_periods(job.limits.candles)
        if not 0 <= open_ns < settled_ns:
            return None, None
        # some periods back, for another dispatch of the request about an earlier part
        start_ns = windows.before(open_ns, size // 4)
        reach = TimeRange(start_ns, min(windows.after(start_ns, size), settled_ns))
        evidence = job.evidence(reach, seconds, settled_ns)
        try:
            candles, _ = await job.ask(evidence, CandleQuery(reach), seconds)
            absent = _without(candles, reach, open_ns, seconds)
            if not absent or not self.is_long(absent):
                return None, None
            await job.prove(absent, evidence, seconds)
            page = evidence.settle(absent)
        finally:
            evidence.close()
        span = next((part for part in page.empty if part.start_ns <= open_ns < part.end_ns), None)
        if span is None or not self.is_long(span):
            return None, None
        later = next((c for c in sorted({*candles, *page.candles}) if c.open_ns == span.end_ns), None)
        return ProvenAbsence(span, tuple(proof._replace(span=span) for proof in page.proofs)), later

    async def _continue(self, found: ProvenAbsence, later: Candle | None, periods: Sequence[int]) -> ProvenAbsence:
        """Return an absence with the part of the next candle before its first finer one, and so on to the cells."""
        span, proofs = found
        for seconds, finer in pairwise(periods):
            if later is None:
                break
            later, proof = await self._first_inside(later, seconds, finer)
            if later and proof and later.open_ns > span.end_ns:
                part = TimeRange(span.end_ns, later.open_ns)
                span, proofs = TimeRange(span.start_ns, part.end_ns), (*proofs, proof._replace(span=part))
        return ProvenAbsence(span, proofs)

    async def _first_inside(self, cell: Candle, seconds: int, finer: int) -> tuple[Candle | None, Proof | None]:
        """Return a candle's first finer candle, and the proof, if the finer candles tally; otherwise None."""
        job = self._job
        span = TimeRange(cell.open_ns, next_open(cell.open_ns, seconds))
        windows = QueryWindows(finer, job.limits, closed_end_ns=settled_end_ns(job, finer))
        tolerance = job.venue.dialect.candles.volume_tolerance or 0.0
        stream, times_ns = CellStream(span, seconds, {cell.open_ns: cell}, windows, job.venue.shapes, tolerance), []
        while stream.cell:
            window = stream.next_window()
            if stream.retries:
                return None, None
            candles, fetched_ns = await job.query(CandleQuery(window), finer)
            stream.add(window, candles)
            times_ns.append(fetched_ns)
        (checked,) = stream.take()
        return checked.candles[0], Proof(span, ProofKind.CHECKSUM, 1 + len(times_ns), times_ns[0], times_ns[-1])


def _without(candles: Sequence[Candle], reach: TimeRange, open_ns: int, seconds: int) -> TimeRange | None:
    """Return the range around an open time without candles of an answer; None if there is one of that time."""
    start_ns = max((next_open(c.open_ns, seconds) for c in candles if c.open_ns <= open_ns), default=reach.start_ns)
    end_ns = min((c.open_ns for c in candles if c.open_ns > open_ns), default=reach.end_ns)
    return TimeRange(start_ns, end_ns) if start_ns <= open_ns else None
