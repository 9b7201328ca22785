"""Job of one dispatch: its queries, verified pages and missing parts; pages are proven by agreeing answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

import structlog

from dexorder_common.model.history import Dispatch
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import PERIODS, count_periods, floor_to_grid, next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.exchange.trade_pager import PagerQuery, TradePager
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.history.evidence import CandleQuery, Evidence
from dexorder_ingestor.history.newest import REASON, Newest
from dexorder_ingestor.history.paging import MIN_CALL_CANDLES, AnswerSizes, CandlePage, QueryWindows, page_periods

log = structlog.get_logger(__name__)
_MAX_IMPOSSIBLE = 100
"""Impossible candles from which on the rest of their page is given up."""
_LINK = 4
"""Last candles that were handed on, to which the following ones must be linked."""
_PROBE_SECONDS = (0.0, 1.0, 2.0, 4.0)
"""Waits before queries about candles that are not settled, as far as ``close_wait_seconds`` allows."""
_MAX_FAILED_PAGES = 3
"""Pages in a row without a verified candle or hole from which on the rest of the range is given up."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Part of a dispatch that stays unverified, and the reason."""

    span: TimeRange
    reason: str

    def __str__(self) -> str:
        return f"missing {self.span}: {self.reason}"


Put = Callable[[CandlePage], Awaitable[None]]


class Unproven(Exception):
    """The answers about a page do not agree in the allowed number of queries."""

    def __init__(self, parts: list[TimeRange], reason: str) -> None:
        super().__init__(reason)
        self.parts = parts


class SmallerCalls(Unproven):
    """The exchange gives fewer candles a call than its dialect says."""

    def __init__(self, page: TimeRange, limit: int) -> None:
        super().__init__([page], f"a call gives {limit} candles")
        self.limit = limit


class Waits:
    """Waits before the repeated queries of one dispatch.

    Exchanges are untrue for a while, not at random: a replica lags, a cache is stale. So each repetition waits twice as
    long as the one before it. All waits of a dispatch share one budget; otherwise a market with a thousand holes would
    take days.
    """

    def __init__(self, first_seconds: float, total_seconds: float) -> None:
        self._first = first_seconds
        self._left = total_seconds

    def take(self, repetition: int) -> float | None:
        """Return the wait before a repetition, counted from 1; None if it is longer than the budget's rest.

        >>> waits = Waits(0.2, 2.0)
        >>> [waits.take(n) for n in (1, 2, 3, 4, 3, 1)]
        [0.2, 0.4, 0.8, None, None, 0.2]
        """
        seconds = float(self._first * 2 ** (min(repetition, 60) - 1))
        if seconds > self._left:
            return None
        self._left -= seconds
        return seconds

    def take_or_first(self, repetition: int) -> float:
        """Return the same, or the first wait once the budget is used up."""
        seconds = self.take(repetition)
        return self._first if seconds is None else seconds


class FetchJob:
    """Progress of one dispatch through one session. Pages are handed on in time order."""

    def __init__(
        self, dispatch: Dispatch, venue: CcxtVenue, session: CcxtSession, agreement: Agreement, put: Put
    ) -> None:
        self.dispatch = dispatch
        self.venue = venue
        self.limits = venue.limits
        self.missing: list[Missing] = []
        self.closed_end_ns = 0
        self.waits = Waits(venue.settings.hole_spacing_seconds, venue.settings.recheck_seconds)
        self._session = session
        self._agreement = agreement
        self._put = put
        self._impossible: dict[int, str] = {}
        self._found = 0
        self._failed = 0
        self._last: tuple[Candle, ...] = ()
        facts = venue.dialect.candles
        self.newest = Newest(dispatch.period_seconds, facts.publish_seconds, facts.running is not None)
        self._held: list[CandlePage] = []
        self._sizes: defaultdict[int, AnswerSizes] = defaultdict(AnswerSizes)
        self.traded: list[TimeRange] = []
        """Ranges of coarser candles with a volume and finer candles that do not tally."""

    async def start(self) -> None:
        """Check that the exchange has the symbol and the period, and learn which candles are closed.

        Raises:
            ExchangeFailure: It does not have them, or does not answer.
        """
        symbol, period_seconds = self.dispatch.instrument.symbol, self.dispatch.period_seconds
        await self.venue.timeframe(self._session, symbol, period_seconds)
        self.limits = self.venue.limits_of(symbol)
        self.closed_end_ns = await self._closed_end_ns()

    def evidence(self, span: TimeRange, period_seconds: int, closed_end_ns: int) -> Evidence:
        """Return the evidence for a range of candles of a period, of which those up to ``closed_end_ns`` are closed.

        Whose cells these are is shown by finer candles that tally.
        """
        settings, is_fine = self.venue.settings, period_seconds == self.dispatch.period_seconds
        return Evidence(
            span,
            period_seconds,
            self.limits,
            self._agreement,
            are_cells=not is_fine,
            closed_end_ns=closed_end_ns,
            known=self._last if is_fine else (),
            hole_answers=settings.hole_answers,
            empty_job_answers=settings.empty_job_answers,
        )

    @property
    def hosts(self) -> int:
        """Hosts that repeated queries ask in turn."""
        return self._session.hosts

    @property
    def is_over(self) -> bool:
        """The limit is reached, or too many pages in a row failed."""
        return self.is_limit_reached() or self._failed >= _MAX_FAILED_PAGES

    def add_rest(self, part: TimeRange, reason: str) -> None:
        """Note the rest of the range as missing, unless the limit is reached."""
        if part and not self.is_limit_reached():
            self._add_missing(part, reason)

    async def _closed_end_ns(self) -> int:
        """Return the end of the last closed candle; wait for the range's last one if it closes within seconds."""
        settings, dispatch = self.venue.settings, self.dispatch
        lag_ns = int(settings.closing_lag_seconds * SECOND_NS)
        now_ns = await self._session.now_ns(dispatch.span.end_ns) - lag_ns
        wait_ns = dispatch.span.end_ns - now_ns
        if 0 < wait_ns <= settings.close_wait_seconds * SECOND_NS:
            await self.venue.sleep(wait_ns / SECOND_NS)
            now_ns = await self._session.now_ns() - lag_ns
        self.newest.now_ns = max(0, now_ns)
        return floor_to_grid(self.newest.now_ns, dispatch.period_seconds)

    def leave_out(self, error: ImpossibleCandle) -> bool:
        """Query these candles no more; return False if there are too many."""
        self._impossible.update(dict.fromkeys(error.opens, str(error)))
        return len(self._impossible) <= _MAX_IMPOSSIBLE

    @property
    def impossible(self) -> Collection[int]:
        """Open times of the candles that are left out, including ones found later."""
        return self._impossible.keys()

    def is_impossible(self, part: TimeRange) -> bool:
        """Return whether a part holds an impossible candle."""
        return any(part.start_ns <= open_ns < part.end_ns for open_ns in self._impossible)

    async def settle(self, span: TimeRange) -> None:
        """Fetch a range page by page; parts that agreeing answers do not prove are missing."""
        while span and self.limits.candles >= MIN_CALL_CANDLES:
            evidence = self.evidence(span, self.dispatch.period_seconds, self.closed_end_ns)
            try:
                span = await self._settle_pages(span, evidence)
            finally:
                evidence.close()
        few = f"fewer than {MIN_CALL_CANDLES} candles a call"
        self.add_rest(span, f"{self.venue.name} gives {few}, so that answers overlap too little to be checked")

    async def _settle_pages(self, span: TimeRange, evidence: Evidence) -> TimeRange:
        """Settle pages; return the rest of the range if calls turn out to be smaller, for another attempt."""
        period_seconds = self.dispatch.period_seconds
        periods = self.venue.settings.page_candles
        # One call fills one page, because each page may cost a batch of Spark.
        if count_periods(span, period_seconds) > self.limits.candles:
            periods = page_periods(periods, self.limits)
        cell = max((count_periods(cell, period_seconds) for cell in self.traded), default=1)
        periods = max(cell, periods - periods % cell)
        todo = self._leave_out_impossible(split_by_periods(span, period_seconds, periods), evidence)
        while todo and not self.is_limit_reached():
            page = todo[0]
            if self.is_over:
                self._add_missing(TimeRange(page.start_ns, span.end_ns), "not queried")
                break
            try:
                await self.prove(page, evidence, period_seconds)
                await self._hand_on_traded(evidence.settle(page))
                todo = todo[1:]
            except ImpossibleCandle as error:
                if not self.leave_out(error):
                    self.fail(page, str(error))
                    todo = todo[1:]
                todo = self._leave_out_impossible(todo, evidence)
            except SmallerCalls as error:
                self.limits = replace(self.limits, candles=error.limit)
                return TimeRange(page.start_ns, span.end_ns)
            except Unproven as error:
                proven = _proven_start(evidence, TimeRange(page.start_ns, error.parts[0].start_ns))
                self._failed += 1
                if proven:
                    await self._hand_on_traded(evidence.settle(proven))
                todo = todo[1:]
                self.add_rest(TimeRange(proven.end_ns, page.end_ns), str(error))
            except ExchangeFailure as error:
                self.fail(page, str(error))
                evidence.start_anew(page.end_ns)
                todo = todo[1:]
        return TimeRange(span.end_ns, span.end_ns)

    def _leave_out_impossible(self, todo: list[TimeRange], evidence: Evidence) -> list[TimeRange]:
        """Return the pages without the candles known to be impossible, which are missing."""
        for open_ns in self._impossible:
            evidence.avoid(open_ns)
        return self.possible(todo)

    def possible(self, pages: list[TimeRange]) -> list[TimeRange]:
        """Return the parts of pages without the candles known to be impossible, which are missing."""
        for open_ns, reason in self._impossible.items():
            bad = TimeRange(open_ns, next_open(open_ns, self.dispatch.period_seconds))
            known = {each.span for each in self.missing}
            self.missing += [Missing(part, reason) for part in intersect(pages, bad) if part not in known]
            pages = [part for page in pages for part in subtract([page], [bad])]
        return pages

    def fail(self, page: TimeRange, reason: str) -> None:
        """Note a page as missing."""
        self._add_missing(page, reason)
        self._failed += 1

    def _add_missing(self, part: TimeRange, reason: str) -> None:
        """Note the part of a page that failed; pages in a row that fail are one part, with the reason of the first."""
        last = self.missing[-1] if self.missing else None
        if last and last.span.end_ns == part.start_ns:
            self.missing[-1] = Missing(TimeRange(last.span.start_ns, part.end_ns), last.reason)
        else:
            self.missing.append(Missing(part, reason))

    async def prove(self, page: TimeRange, evidence: Evidence, period_seconds: int) -> None:
        """Query candles of a period until the evidence proves the page.

        Raises:
            ExchangeFailure: A query got no valid answer.
            SmallerCalls: The exchange gives fewer candles a call than its dialect says.
            Unproven: The answers do not agree in the allowed number of queries.
        """
        settings, name = self.venue.settings, self.venue.name
        chunks = count_periods(page, period_seconds) // self.limits.candles + 1
        queries, reason = 0, f"{name}'s answers do not agree on which candles exist"
        while query := evidence.next_query(page):
            queries += 1
            spent = max(evidence.queries_without_progress, queries // chunks)
            if spent > settings.evidence_queries or not query.window:
                raise Unproven(evidence.unproven(page) or [page], reason)
            try:
                if query.spaced:
                    await self.venue.sleep(self.waits.take_or_first(evidence.queries_without_progress))
                _, contradiction = await self.ask(evidence, query, period_seconds)
            except ExchangeFailure as error:
                if isinstance(error, ImpossibleCandle) or not query.ahead:
                    raise
                evidence.stop_early_queries()
                continue
            if 0 < (limit := self._sizes[period_seconds].limit) < self.limits.candles:
                raise SmallerCalls(page, limit)
            if contradiction:
                reason = f"{name}'s answers contradict each other: {contradiction}"

    async def ask(self, evidence: Evidence, query: CandleQuery, period_seconds: int) -> tuple[list[Candle], str | None]:
        """Make a query and add the answer to the evidence; return it, and how it contradicts earlier answers.

        Raises:
            ExchangeFailure: There is no valid answer.
        """
        candles, fetched_ns = await self.query(query, period_seconds)
        self._sizes[period_seconds].add(query.window, candles)
        contradiction = evidence.add(query.window, candles, fetched_ns=fetched_ns)
        if contradiction:
            self.venue.metrics.contradictions.labels(self.venue.name).inc()
            log.warning("answers contradict each other", exchange=self.venue.name, detail=contradiction)
        return candles, contradiction

    async def query_trades(self, query: PagerQuery, pager: TradePager) -> int:
        """Add the answer to a query for trades to its pager; return the time of the answer.

        Raises:
            ExchangeFailure: There is no valid answer.
        """
        if query.spaced:
            self._session.renew_connection()
            self.venue.metrics.evidence_calls.labels(self.venue.name).inc()
        return await self._session.trades(self.dispatch.instrument.symbol, query, pager)

    async def query(self, query: CandleQuery, period_seconds: int) -> tuple[list[Candle], int]:
        """Return the answer to a query for candles of a period, and its time.

        Raises:
            ExchangeFailure: There is no valid answer.
        """
        if query.shifted or query.spaced:
            self._session.renew_connection()
            self.venue.metrics.evidence_calls.labels(self.venue.name).inc()
        symbol, skip = self.dispatch.instrument.symbol, self._impossible
        if period_seconds != self.dispatch.period_seconds:
            skip = {}
        timeframe = PERIODS[period_seconds]
        found, fetched_ns = await self._session.candles(symbol, timeframe, period_seconds, query.window, skip)
        self._agreement.advance(fetched_ns)
        if period_seconds == self.dispatch.period_seconds:
            self.newest.note(found)
        return found, fetched_ns

    async def day_file(self, day: TimeRange) -> tuple[list[Candle], int] | None:
        """Return all candles of a UTC day from a file of the exchange, and the time; None without a whole file."""
        return await self._session.day_file(self.dispatch.instrument.symbol, self.dispatch.period_seconds, day)

    def judge_file(self, *, tallies: bool) -> None:
        """Note whether the candles of a file agree with coarser candles; after some that do not, files are not used."""
        self._session.judge_file(tallies=tallies)

    async def _hand_on_traded(self, page: CandlePage) -> None:
        """Hand a page on, except for ranges without a candle in which a coarser candle has trades."""
        bare = merge(cell for cell in self.traded if any(empty.contains(cell) for empty in page.empty))
        for part in sorted([*bare, *subtract([page.span], bare)]):
            if part in bare:
                self.add_rest(part, f"{self.venue.name} has a coarser candle with trades, and no candle")
            elif not self.is_limit_reached():
                await self.hand_on(page.part(part))

    async def hand_on(self, page: CandlePage) -> None:
        """Hand a verified page on, up to the limit's last candle; hold back its unsettled end, and all later pages."""
        self._failed = 0
        self._held.append(page)
        await self._hand_on_settled()

    async def wait_for_newest(self) -> None:
        """Query unsettled candles again, for a short time."""
        left_seconds = self.venue.settings.close_wait_seconds
        for seconds in _PROBE_SECONDS:
            if not self._held or seconds > left_seconds:
                break
            left_seconds -= seconds
            await self.venue.sleep(seconds)
            await self._probe()

    async def finish(self) -> None:
        """Hand on the pages held back, except for their unsettled parts, which are missing."""
        held, self._held = self._held, []
        for page in held:
            await self._put_known(page)

    async def _put_known(self, page: CandlePage) -> None:
        """Hand a page on except for its holes that are not settled."""
        while page.span:
            end_ns = self.newest.settled_end_ns(page)
            await self._put_page(page.part(TimeRange(page.span.start_ns, end_ns)))
            rest_ns = next((c.open_ns for c in page.candles if c.open_ns > end_ns), page.span.end_ns)
            self.add_rest(TimeRange(end_ns, rest_ns), REASON)
            page = page.part(TimeRange(rest_ns, page.span.end_ns))

    async def _probe(self) -> None:
        """Query the pages held back once, up to the candle that is still open; settle them again if they changed."""
        windows = QueryWindows(self.dispatch.period_seconds, self.limits, closed_end_ns=0)
        start_ns = self.newest.settled_end_ns(self._held[0])
        held = TimeRange(start_ns, self._held[-1].span.end_ns)
        known = {c for page in self._held for c in page.candles}
        try:
            closed_end_ns = await self._closed_end_ns()
            windows.closed_end_ns = closed_end_ns if self.newest.is_marked else windows.after(closed_end_ns)
            found, _ = await self.query(CandleQuery(windows.longest(held.start_ns), shifted=True), windows.period)
        except ExchangeFailure:
            return
        if any(c.open_ns < held.end_ns and c not in known for c in found):
            first, self._held = self._held[0], []
            await self._put_page(first.part(TimeRange(first.span.start_ns, start_ns)))
            await self.settle(held)
        else:
            await self._hand_on_settled()

    async def _hand_on_settled(self) -> None:
        while self._held and self.newest.settled_end_ns(self._held[0]) == self._held[0].span.end_ns:
            page, *self._held = self._held
            await self._put_page(page)

    async def _put_page(self, page: CandlePage) -> None:
        if self.is_limit_reached() or not page.span:
            return
        if self.dispatch.limit and self._found + len(page.candles) >= self.dispatch.limit:
            last = page.candles[self.dispatch.limit - self._found - 1]
            page = page.part(TimeRange(page.span.start_ns, next_open(last.open_ns, self.dispatch.period_seconds)))
        self._found += len(page.candles)
        self._last = (*self._last, *page.candles)[-_LINK:]
        await self._put(page)

    def is_limit_reached(self, more: int = 0) -> bool:
        """Return whether the limit is reached, with this number of additional candles."""
        return bool(self.dispatch.limit) and self._found + more >= self.dispatch.limit


def _proven_start(evidence: Evidence, span: TimeRange) -> TimeRange:
    """Return the part from the start of ``span`` that is proven by itself; fewer answers cover it than the page."""
    while span and (parts := evidence.unproven(span)):
        span = TimeRange(span.start_ns, parts[0].start_ns)
    return span
