"""One job's pages, fetched, verified and handed on in time order; what could not be verified is named at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from services.common.model.page import Candle
from services.common.model.periods import count_periods, floor_to_grid, next_open
from services.common.model.time_range import TimeRange, intersect, subtract
from services.common.model.times import SECOND_NS
from services.ingestor.broker.dispatch import Dispatch
from services.ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from services.ingestor.exchange.venue import Session, Venue
from services.ingestor.history.evidence import Evidence, Query
from services.ingestor.history.paging import is_one_call, page_periods, plan_pages

log = structlog.get_logger(__name__)
_MOST_IMPOSSIBLE = 16


@dataclass(frozen=True, slots=True)
class Page:
    """A verified page: candles and empty ranges fill its span."""

    span: TimeRange
    candles: tuple[Candle, ...]
    empty: tuple[TimeRange, ...]
    fetched_ns: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of the job that stays unverified, and why."""

    span: TimeRange
    reason: str

    def __str__(self) -> str:
        return f"missing {self.span}: {self.reason}"


Put = Callable[[Page], Awaitable[None]]


class _Unproven(Exception):
    def __init__(self, parts: list[TimeRange], reason: str) -> None:
        super().__init__(reason)
        self.parts = parts


class Fetcher:
    """Fetches one job through one session."""

    def __init__(self, job: Dispatch, venue: Venue, session: Session) -> None:
        self._job = job
        self._venue = venue
        self._session = session
        self._timeframe = ""
        self._limits = venue.limits
        self._missing: list[Missing] = []
        self._found = 0

    async def run(self, put: Put) -> list[Missing]:
        """Hand every verified page to ``put``, in time order; what is missing then, in time order."""
        span = self._job.span
        try:
            self._timeframe = await self._venue.check(self._session, self._job.ticker.symbol, self._job.period_seconds)
            self._limits = self._venue.limits_of(self._job.ticker.symbol)
            closed_end_ns = await self._closed_end_ns()
        except ExchangeFailure as error:
            return [Missing(span, str(error))]
        closed = TimeRange(span.start_ns, max(span.start_ns, min(span.end_ns, closed_end_ns)))
        evidence = Evidence(
            closed,
            self._job.period_seconds,
            self._limits,
            self._venue.rates,
            closed_end_ns=closed_end_ns,
            hole_answers=self._venue.settings.hole_answers,
            empty_job_answers=self._venue.settings.empty_job_answers,
        )
        try:
            await self._fetch(closed, evidence, put)
        finally:
            evidence.close()
        if closed.end_ns < span.end_ns and not self._enough():
            self._missing.append(Missing(TimeRange(closed.end_ns, span.end_ns), "not closed yet"))
        return sorted(self._missing, key=lambda m: m.span)

    async def _closed_end_ns(self) -> int:
        """End of the last closed candle; waits for the range's last one if that is a matter of seconds."""
        settings, job = self._venue.settings, self._job
        lag_ns = int(settings.closing_lag_seconds * SECOND_NS)
        now_ns = await self._session.now_ns() - lag_ns
        wait_ns = job.span.end_ns - now_ns
        if 0 < wait_ns <= settings.close_wait_seconds * SECOND_NS:
            await self._venue.sleep(wait_ns / SECOND_NS)
            now_ns = await self._session.now_ns() - lag_ns
        return floor_to_grid(max(0, now_ns), job.period_seconds)

    async def _fetch(self, span: TimeRange, evidence: Evidence, put: Put) -> None:
        most, period_seconds = self._venue.settings.page_candles, self._job.period_seconds
        one = is_one_call(
            span, period_seconds, self._limits
        )  # a page of its own for the rest would cost a batch of Spark
        periods = most if one else page_periods(most, self._limits)
        todo = plan_pages(span, period_seconds, periods)
        impossible = 0
        while todo and not self._enough():
            page = todo[0]
            try:
                await self._settle(page, evidence, put)
                todo.pop(0)
            except ImpossibleCandle as error:
                impossible += 1
                if impossible > _MOST_IMPOSSIBLE:
                    self._missing.append(Missing(TimeRange(page.start_ns, span.end_ns), f"too often, {error}"))
                    return
                evidence.avoid(error.open_ns)
                bad = TimeRange(error.open_ns, next_open(error.open_ns, self._job.period_seconds))
                self._missing += [Missing(part, str(error)) for part in intersect(todo, bad)]
                todo = [part for p in todo for part in subtract([p], [bad])]
            except _Unproven as error:
                proven = _proven(evidence, TimeRange(page.start_ns, error.parts[0].start_ns))
                if proven:
                    await self._hand_on(proven, evidence, put)
                if not self._enough():
                    self._missing.append(Missing(TimeRange(proven.end_ns, span.end_ns), str(error)))
                return
            except ExchangeFailure as error:
                self._missing.append(Missing(TimeRange(page.start_ns, span.end_ns), str(error)))
                return

    async def _settle(self, page: TimeRange, evidence: Evidence, put: Put) -> None:
        """Ask until the page is proven, then hand it on.

        Raises:
            ExchangeFailure: A question stays without a sound answer.
            _Unproven: The answers do not come to agree.
        """
        settings, name = self._venue.settings, self._venue.name
        chunks = count_periods(page, self._job.period_seconds) // self._limits.candles + 1
        asks, reason = 0, f"{name}'s answers do not agree on which candles exist"
        while ask := evidence.next_query(page):
            asks += 1
            if max(evidence.futile, asks // chunks) > settings.evidence_queries or not ask.window:
                raise _Unproven(evidence.unproven(page) or [page], reason)
            try:
                candles, fetched_ns = await self._ask(ask)
            except ExchangeFailure as error:
                if isinstance(error, ImpossibleCandle) or not ask.ahead:
                    raise
                evidence.look_no_further()
                continue
            contradiction = evidence.add(ask.window, candles, fetched_ns=fetched_ns)
            if contradiction:
                self._venue.metrics.contradictions.labels(name).inc()
                reason = f"{name}'s answers contradict each other: {contradiction}"
                log.warning("answers contradict each other", exchange=name, detail=contradiction)
        await self._hand_on(page, evidence, put)

    async def _ask(self, ask: Query) -> tuple[list[Candle], int]:
        if ask.spaced:
            await self._venue.sleep(self._venue.settings.hole_spacing_seconds)
        if ask.shifted:
            self._venue.metrics.evidence_calls.labels(self._venue.name).inc()
        job = self._job
        return await self._session.candles(job.ticker.symbol, self._timeframe, job.period_seconds, ask.window)

    async def _hand_on(self, span: TimeRange, evidence: Evidence, put: Put) -> None:
        settled = evidence.settle(span)
        page = Page(span, settled.candles, settled.empty, settled.fetched_ns)
        if self._job.limit and self._found + len(page.candles) >= self._job.limit:
            page = self._cut(page, self._job.limit - self._found)
        self._found += len(page.candles)
        await put(page)

    def _cut(self, page: Page, candles: int) -> Page:
        """The page up to and with its n-th candle."""
        kept = page.candles[:candles]
        span = TimeRange(page.span.start_ns, next_open(kept[-1].open_ns, self._job.period_seconds))
        return replace(page, span=span, candles=kept, empty=tuple(intersect(page.empty, span)))

    def _enough(self) -> bool:
        return bool(self._job.limit) and self._found >= self._job.limit


def _proven(evidence: Evidence, span: TimeRange) -> TimeRange:
    """As much from the start of ``span`` on as is proven by itself; fewer answers speak of a part than of the page."""
    while span and (parts := evidence.unproven(span)):
        span = TimeRange(span.start_ns, parts[0].start_ns)
    return span
