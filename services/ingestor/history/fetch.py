"""Pages of one dispatch: fetched, verified and handed on in time order; parts that stay unverified are listed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from services.common.model.page import Candle
from services.common.model.periods import count_periods, floor_to_grid, next_open, split_by_periods
from services.common.model.time_range import TimeRange, intersect, subtract
from services.common.model.times import SECOND_NS
from services.ingestor.broker.slots import Dispatch
from services.ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from services.ingestor.exchange.venue import Session, Venue
from services.ingestor.history.agreement import Agreement
from services.ingestor.history.evidence import Evidence, Query
from services.ingestor.history.paging import Page, page_periods

log = structlog.get_logger(__name__)
_MAX_IMPOSSIBLE = 100
"""Impossible candles from which on the rest of their page is given up."""
_MAX_FAILED_PAGES = 3
"""Pages in a row without a verified candle or hole from which on the rest of the range is given up."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Part of a dispatch that stays unverified, and the reason."""

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
    """Fetches one dispatch through one session."""

    def __init__(self, dispatch: Dispatch, venue: Venue, session: Session, agreement: Agreement) -> None:
        self._dispatch = dispatch
        self._venue = venue
        self._session = session
        self._agreement = agreement
        self._timeframe = ""
        self._limits = venue.limits
        self._missing: list[Missing] = []
        self._impossible: set[int] = set()
        self._found = 0

    async def run(self, put: Put) -> list[Missing]:
        """Hand every verified page to ``put`` in time order; return the missing parts in time order."""
        dispatch, span = self._dispatch, self._dispatch.span
        symbol, period_seconds = dispatch.instrument.symbol, dispatch.period_seconds
        try:
            self._timeframe = await self._venue.timeframe(self._session, symbol, period_seconds)
            self._limits = self._venue.limits_of(symbol)
            closed_end_ns = await self._closed_end_ns()
        except ExchangeFailure as error:
            return [Missing(span, str(error))]
        closed = TimeRange(span.start_ns, max(span.start_ns, min(span.end_ns, closed_end_ns)))
        evidence = Evidence(
            closed,
            period_seconds,
            self._limits,
            self._agreement,
            closed_end_ns=closed_end_ns,
            hole_answers=self._venue.settings.hole_answers,
            empty_job_answers=self._venue.settings.empty_job_answers,
        )
        try:
            await self._fetch(closed, evidence, put)
        finally:
            evidence.close()
        if closed.end_ns < span.end_ns and not self._is_limit_reached():
            self._missing.append(Missing(TimeRange(closed.end_ns, span.end_ns), "not closed yet"))
        return sorted(self._missing, key=lambda m: m.span)

    async def _closed_end_ns(self) -> int:
        """Return the end of the last closed candle; wait for the range's last one if it closes within seconds."""
        settings, dispatch = self._venue.settings, self._dispatch
        lag_ns = int(settings.closing_lag_seconds * SECOND_NS)
        now_ns = await self._session.now_ns() - lag_ns
        wait_ns = dispatch.span.end_ns - now_ns
        if 0 < wait_ns <= settings.close_wait_seconds * SECOND_NS:
            await self._venue.sleep(wait_ns / SECOND_NS)
            now_ns = await self._session.now_ns() - lag_ns
        return floor_to_grid(max(0, now_ns), dispatch.period_seconds)

    async def _fetch(self, span: TimeRange, evidence: Evidence, put: Put) -> None:
        period_seconds = self._dispatch.period_seconds
        periods = self._venue.settings.page_candles
        # What one call returns is one page, as each page may cost a batch of Spark.
        if count_periods(span, period_seconds) > self._limits.candles:
            periods = page_periods(periods, self._limits)
        todo = split_by_periods(span, period_seconds, periods)
        failed = 0
        while todo and not self._is_limit_reached():
            page = todo[0]
            if failed == _MAX_FAILED_PAGES:
                self._add_missing(TimeRange(page.start_ns, span.end_ns), "not queried")
                return
            try:
                await self._settle(page, evidence, put)
                todo, failed = todo[1:], 0
            except ImpossibleCandle as error:
                bad = [TimeRange(t, next_open(t, period_seconds)) for t in error.opens]
                if len(self._impossible | set(error.opens)) > _MAX_IMPOSSIBLE:
                    bad, failed = [page], failed + 1
                for open_ns in error.opens:
                    evidence.avoid(open_ns)
                self._impossible.update(error.opens)
                self._missing += [Missing(part, str(error)) for each in bad for part in intersect(todo, each)]
                todo = [part for p in todo for part in subtract([p], bad)]
            except _Unproven as error:
                proven = _proven_start(evidence, TimeRange(page.start_ns, error.parts[0].start_ns))
                if proven:
                    await self._hand_on(proven, evidence, put)
                todo, failed = todo[1:], 0 if proven else failed + 1
                if not self._is_limit_reached():
                    self._add_missing(TimeRange(proven.end_ns, page.end_ns), str(error))
            except ExchangeFailure as error:
                self._add_missing(page, str(error))
                evidence.start_anew(page.end_ns)
                todo, failed = todo[1:], failed + 1

    def _add_missing(self, part: TimeRange, reason: str) -> None:
        """Note the part of a page that failed; pages in a row that fail are one part, with the reason of the first."""
        last = self._missing[-1] if self._missing else None
        if last and last.span.end_ns == part.start_ns:
            self._missing[-1] = Missing(TimeRange(last.span.start_ns, part.end_ns), last.reason)
        else:
            self._missing.append(Missing(part, reason))

    async def _settle(self, page: TimeRange, evidence: Evidence, put: Put) -> None:
        """Query until the page is proven, then hand it on.

        Raises:
            ExchangeFailure: A query had no valid answer.
            _Unproven: The answers do not agree in the allowed number of queries.
        """
        settings, name = self._venue.settings, self._venue.name
        chunks = count_periods(page, self._dispatch.period_seconds) // self._limits.candles + 1
        queries, reason = 0, f"{name}'s answers do not agree on which candles exist"
        while query := evidence.next_query(page):
            queries += 1
            spent = max(evidence.queries_without_progress, queries // chunks)
            if spent > settings.evidence_queries or not query.window:
                raise _Unproven(evidence.unproven(page) or [page], reason)
            try:
                candles, fetched_ns = await self._query(query)
            except ExchangeFailure as error:
                if isinstance(error, ImpossibleCandle) or not query.ahead:
                    raise
                evidence.stop_early_queries()
                continue
            contradiction = evidence.add(query.window, candles, fetched_ns=fetched_ns)
            if contradiction:
                self._venue.metrics.contradictions.labels(name).inc()
                reason = f"{name}'s answers contradict each other: {contradiction}"
                log.warning("answers contradict each other", exchange=name, detail=contradiction)
        await self._hand_on(page, evidence, put)

    async def _query(self, query: Query) -> tuple[list[Candle], int]:
        if query.spaced:
            await self._venue.sleep(self._venue.settings.hole_spacing_seconds)
        if query.shifted:
            self._venue.metrics.evidence_calls.labels(self._venue.name).inc()
        symbol, period_seconds = self._dispatch.instrument.symbol, self._dispatch.period_seconds
        return await self._session.candles(symbol, self._timeframe, period_seconds, query.window, self._impossible)

    async def _hand_on(self, span: TimeRange, evidence: Evidence, put: Put) -> None:
        page = evidence.settle(span)
        if self._dispatch.limit and self._found + len(page.candles) >= self._dispatch.limit:
            page = self._cut(page, self._dispatch.limit - self._found)
        self._found += len(page.candles)
        await put(page)

    def _cut(self, page: Page, candles: int) -> Page:
        """Return the page up to and including its n-th candle."""
        kept = page.candles[:candles]
        span = TimeRange(page.span.start_ns, next_open(kept[-1].open_ns, self._dispatch.period_seconds))
        return replace(page, span=span, candles=kept, empty=tuple(intersect(page.empty, span)))

    def _is_limit_reached(self) -> bool:
        return bool(self._dispatch.limit) and self._found >= self._dispatch.limit


def _proven_start(evidence: Evidence, span: TimeRange) -> TimeRange:
    """Return the part from the start of ``span`` that is proven by itself; fewer answers cover it than the page."""
    while span and (parts := evidence.unproven(span)):
        span = TimeRange(span.start_ns, parts[0].start_ns)
    return span
