"""Requests of the relay itself: they query provisional ranges again, and announce candles that turned up there.

Of a thin market the coarser candles are fetched again, and the rows compared with them: a second look. The first look
compared candles with coarser ones of the same minutes. An exchange that computes these at each call, from candles that
it does not show for a while, agrees with itself. Ten minutes later it does not agree with the rows. A call for 1,000
hours looks at 60,000 minutes, where fetching them again would take 60.

A client's request over provisional ranges has them looked at before it is answered, unless that was done within the
last half minute: a client that has read "provisional" and asks again gets the current state of the exchange.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import ceil_to_grid, count_periods, floor_to_grid, next_open
from dexorder_common.model.proof import SETTLED_AFTER_NS
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.changes import AbsencesChanged, Changes
from dexorder_relay.state.provisional import LOOK_AGE_NS, MANY_RANGES, join_near
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.verification.compare_values import whole_cells
from dexorder_relay.verification.value_verification import ValueCheck, ValueVerifier

log = structlog.get_logger(__name__)
INTERVAL_SECONDS = 2.0
PREFIX = "recheck-"
"""Start of the ids of its requests."""
MAX_WAIT_NS = 600 * SECOND_NS
"""Time for which a query waits behind the other jobs of its exchange at most."""
LOOK_SECONDS = 60.0
"""Time for which a client's request waits for a new look; then it is answered, and the look continues by itself."""
MAX_LOOKS = 10
"""Ranges that are looked at for one request, the latest of them."""
MAX_LOOK_PERIODS = 10_000
"""Their periods at most: ten calls or so."""


class Judgement(NamedTuple):
    """Result of a second look at the provisional ranges of a series.

    Attributes:
        doubtful: To be fetched again: cells differ, or were not compared.
        repeated: The exchange has repeated the absence, of a whole cell or within the last hour.
        final: The rest: cells agree with the rows, of which there are some.
    """

    doubtful: list[TimeRange]
    repeated: list[TimeRange]
    final: list[TimeRange]


def judge(
    provisional: Sequence[TimeRange],
    empty: Sequence[TimeRange],
    compared: Sequence[TimeRange],
    differing: Sequence[TimeRange],
    cell_seconds: int,
    *,
    now_ns: int,
) -> Judgement:
    """Judge provisional ranges by a comparison with cells of one period. Pure.

    Args:
        empty: The verified-empty ranges among them.
        compared: Ranges of whole cells that were compared.
        differing: Those of them that differ.
    """
    uncompared = subtract(empty, compared)
    doubtful = merge([*uncompared, *(each for each in differing if any(map(each.overlaps, empty)))])
    bare = whole_cells(empty, cell_seconds, settled_ns=now_ns)
    young = TimeRange(floor_to_grid(max(0, now_ns - SETTLED_AFTER_NS), cell_seconds), MAX_TIME_NS)
    repeated = subtract([part for each in (*bare, young) for part in intersect(empty, each)], doubtful)
    return Judgement(doubtful, repeated, subtract(provisional, [*doubtful, *repeated]))


class Rechecker:
    """Submits a request when a range is due, its exchange is idle, and not too many of them run."""

    def __init__(self, context: Context, submitter: Submitter, values: ValueVerifier) -> None:
        self._context = context
        self._submitter = submitter
        self._values = values
        self._looks: dict[tuple[Series, TimeRange], asyncio.Event] = {}

    async def run(self, interval_seconds: float | None = None) -> None:
        """Submit requests until cancelled."""
        while True:
            due = list(self.due())
            thin = [each for each in due if self._is_thin(*each)]
            for each in thin:
                self._start_second_look(*each, before_ns=self._context.clock.wall_ns(), is_due=True)
            await self._fetch([each for each in due if each not in thin])
            await asyncio.sleep(interval_seconds or INTERVAL_SECONDS)

    async def look(self, live: LiveRequest) -> None:
        """Query ranges that were provisional half a minute before a client's request; return once the answers are
        committed.

        Ranges that the exchange does not answer in time stay provisional.
        """
        request, provisional = live.request, self._context.state.provisional
        before_ns = live.submitted_ns - LOOK_AGE_NS
        if request.fetches_covered or not request.dataset.has_periods:
            return
        parts = provisional.unseen(request.series, live.planned, before_ns=before_ns)
        if not parts:
            return
        live.waiting = f"the exchange is queried again about {len(parts)} provisional ranges"
        self._context.changed([request.request_id])
        try:
            async with asyncio.timeout(min(LOOK_SECONDS, self._context.settings.request_timeout_seconds / 2)):
                await self._look_at(request.series, parts, before_ns)
        except TimeoutError:
            log.warning("a request is answered without a new look", request_id=request.request_id)
        live.progress_ns = self._context.clock.monotonic_ns()

    async def _look_at(self, series: Series, parts: Sequence[TimeRange], before_ns: int) -> None:
        near = join_near(((part, 0) for part in parts), series.period_seconds)[-MAX_LOOKS:]
        for span, _ in near:
            if self._is_thin(series, span):
                await self._start_second_look(series, span, before_ns=before_ns).wait()
        for span in latest((part for part, _ in near), series.period_seconds):
            running = self._running(series, span, before_ns)
            left = subtract([span], [each.span for each in running])
            waited = [each.request_id for each in running]
            waited += await self._fetch([(series, each) for each in left if self._is_unseen(series, each, before_ns)])
            for request_id in waited:
                async for _waiting in self._values.wait(request_id):
                    pass

    def _running(self, series: Series, span: TimeRange, before_ns: int) -> list[HistoryRequest]:
        """Return the requests of the relay that query a range at the moment."""
        live = (each for each in self._context.state.requests.values() if each.submitted_ns >= before_ns)
        found = (each.request for each in live if each.request.request_id.startswith(PREFIX))
        return [each for each in found if each.series == series and each.span.overlaps(span)]

    def _is_unseen(self, series: Series, span: TimeRange, before_ns: int) -> bool:
        return bool(self._context.state.provisional.unseen(series, span, before_ns=before_ns))

    def _start_second_look(
        self, series: Series, span: TimeRange, *, before_ns: int, is_due: bool = False
    ) -> asyncio.Event:
        """Start a look at a thin market, or find one that overlaps it; return the event that is set at its end."""
        for (each, part), done in self._looks.items():
            if each == series and part.overlaps(span):
                return done
        done = self._looks[series, span] = asyncio.Event()
        self._context.start(self._look(series, span, before_ns, is_due=is_due))
        return done

    async def _look(self, series: Series, span: TimeRange, before_ns: int, *, is_due: bool) -> None:
        try:
            doubtful = await self._second_look(series, span, before_ns, is_due=is_due)
            near = [part for part, _ in join_near(((each, 0) for each in doubtful), series.period_seconds)]
            await self._fetch([(series, part) for part in (near if is_due else latest(near, series.period_seconds))])
        except Unavailable as error:
            log.warning("provisional ranges wait", error=str(error))
        finally:
            self._looks.pop((series, span)).set()

    def _is_thin(self, series: Series, span: TimeRange) -> bool:
        coverage = self._context.state.coverage.get(series)
        return coverage is not None and len(coverage.empty.within(span)) > MANY_RANGES

    async def _second_look(self, series: Series, span: TimeRange, before_ns: int, *, is_due: bool) -> list[TimeRange]:
        """Compare a range with its cells, note the result, and return the parts to fetch again.

        A look before its time makes no absence final: the exchange may not have recovered yet.
        """
        state, clock, asked_ns = self._context.state, self._context.clock, self._context.clock.wall_ns()
        check = ValueCheck(series, is_second_look=True)
        try:
            async with aclosing(self._values.check(check, span, (), None)) as waits:
                async for _ in waits:
                    pass
        except SuiteError as error:
            check.errors.append(str(error))
        seconds, compared = next(iter(check.compared.items()), (series.period_seconds, []))
        due = state.provisional.due_within(series, span, now_ns=asked_ns)
        provisional = due if is_due else state.provisional.unseen(series, span, before_ns=before_ns)
        coverage = state.coverage[series]
        empty = [part for each in provisional for part in coverage.empty.within(each)]
        now_ns = clock.wall_ns()
        found = judge(provisional, empty, compared, check.differing_ranges, seconds, now_ns=now_ns)
        log.info(
            "looked at absences again",
            ticker=series.ticker,
            span=str(span),
            calls=check.calls,
            doubtful=len(found.doubtful),
            errors=check.errors,
        )
        for part in subtract([span], found.doubtful):
            state.provisional.looked(series, part, asked_ns=asked_ns, now_ns=now_ns)
        final = [part for each in due for part in intersect(found.final, each)]
        changes: Changes = [AbsencesChanged(series, state.provisional.remove(series, final))]
        for part in found.repeated:
            change = state.provisional.queried(series, part, asked_ns=asked_ns, now_ns=now_ns, answered=True)
            changes.append(AbsencesChanged(series, change))
        await self._context.store.commit(changes)
        return found.doubtful

    async def _fetch(self, parts: Sequence[tuple[Series, TimeRange]]) -> list[str]:
        """Submit the requests for ranges; return their ids, none if they cannot be stored now."""
        if not parts:
            return []
        log.info("querying provisional ranges again", requests=len(parts))
        requests = [recheck_request(self._context.new_id(PREFIX), *each) for each in parts]
        try:
            await self._submitter.fetch_again(requests)
        except Unavailable as error:
            log.warning("provisional ranges wait", error=str(error))
            return []
        return [each.request_id for each in requests]

    def due(self) -> Iterator[tuple[Series, TimeRange]]:
        """Yield the ranges to query now."""
        state, now_ns = self._context.state, self._context.clock.wall_ns()
        requests = [each.request for each in state.requests.values() if each.request.again]
        live = [*((each.series, each.span) for each in requests), *self._looks]
        # the requests of a verification, or of a second look, are not separate queries
        running = Counter(each.series.exchange for each in requests if each.request_id.startswith(PREFIX))
        running.update(series.exchange for series, _ in self._looks)
        load = state.leases.load()
        for series, span, due_ns in [*self._found(), *state.provisional.due(now_ns=now_ns)]:
            exchange = series.exchange
            if running[exchange] >= self._context.settings.parallel_rechecks:
                continue
            if any(each == series and part.overlaps(span) for each, part in live):
                continue
            if exchange in load and load[exchange].queued and now_ns - due_ns < MAX_WAIT_NS:
                continue
            running[exchange] += 1
            yield series, span

    def _found(self) -> Iterator[tuple[Series, TimeRange, int]]:
        """Yield ranges with candles that turned up and are not announced: their query has waited for long enough."""
        for series, known in self._context.state.coverage.items():
            for span, due_ns in join_near(((each, 0) for each in known.found), series.period_seconds):
                yield series, span, due_ns


def latest(parts: Iterable[TimeRange], period_seconds: int) -> list[TimeRange]:
    """Return the latest of ranges in time order, as many as are looked at for one request; the first may be cut."""
    found, left = list[TimeRange](), MAX_LOOK_PERIODS
    for part in reversed(list(parts)):
        if left <= 0 or len(found) == MAX_LOOKS:
            break
        periods = count_periods(part, period_seconds)
        start_ns = part.start_ns if periods <= left else next_open(part.start_ns, period_seconds, periods - left)
        found.append(TimeRange(start_ns, part.end_ns))
        left -= periods
    return found[::-1]


def recheck_request(request_id: str, series: Series, span: TimeRange) -> HistoryRequest:
    """Return the request that fetches a range again."""
    start_ns, end_ns = (
        floor_to_grid(span.start_ns, series.period_seconds),
        ceil_to_grid(span.end_ns, series.period_seconds),
    )
    return HistoryRequest(request_id, series.ticker, start_ns, end_ns, series.period_seconds, again=True)
