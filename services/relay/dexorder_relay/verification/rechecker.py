"""Requests of the relay itself: they query provisional ranges again, and announce candles that turned up there."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import ceil_to_grid, floor_to_grid
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.provisional import join_near
from dexorder_relay.verification.second_look import SecondLook

log = structlog.get_logger(__name__)
INTERVAL_SECONDS = 2.0
PREFIX = "recheck-"
"""Start of the ids of its requests."""
MAX_WAIT_NS = 600 * SECOND_NS
"""Time for which a query waits behind the other jobs of its exchange at most."""


class Rechecker:
    """Submits a request when a range is due, its exchange is idle, and not too many of them run."""

    def __init__(self, context: Context, submitter: Submitter) -> None:
        self._context = context
        self._submitter = submitter
        self.second_look: SecondLook | None = None
        """Looks at the ranges of thin markets; without it they are fetched again like all others."""
        self._looks: set[tuple[Series, TimeRange]] = set()

    async def run(self) -> None:
        """Submit requests until cancelled."""
        while True:
            due = list(self.due())
            thin = [each for each in due if self.second_look and self.second_look.is_worthwhile(*each)]
            for series, span in thin:
                self._looks.add((series, span))
                self._context.start(self._look(series, span))
            await self._fetch([each for each in due if each not in thin])
            await asyncio.sleep(INTERVAL_SECONDS)

    async def _look(self, series: Series, span: TimeRange) -> None:
        assert self.second_look
        try:
            doubtful = await self.second_look.look(series, span)
            near = join_near(((each, 0) for each in doubtful), series.period_seconds)
            await self._fetch([(series, part) for part, _ in near])
        except Unavailable as error:
            log.warning("provisional ranges wait", error=str(error))
        finally:
            self._looks.remove((series, span))

    async def _fetch(self, parts: Sequence[tuple[Series, TimeRange]]) -> None:
        if not parts:
            return
        log.info("querying provisional ranges again", requests=len(parts))
        try:
            await self._submitter.fetch_again([recheck_request(*each) for each in parts])
        except Unavailable as error:
            log.warning("provisional ranges wait", error=str(error))

    def due(self) -> Iterator[tuple[Series, TimeRange]]:
        """Yield the ranges to query now."""
        state, now_ns = self._context.state, self._context.clock.wall_ns()
        requests = [each.request for each in state.requests.values() if each.request.again]
        live = [*((each.series, each.span) for each in requests), *self._looks]
        # the requests of a verification, or of a second look, are no queries of their own
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


def recheck_request(series: Series, span: TimeRange) -> HistoryRequest:
    """Return the request that fetches a range again."""
    start_ns, end_ns = (
        floor_to_grid(span.start_ns, series.period_seconds),
        ceil_to_grid(span.end_ns, series.period_seconds),
    )
    return HistoryRequest(
        f"{PREFIX}{uuid.uuid4().hex}", series.ticker, start_ns, end_ns, series.period_seconds, again=True
    )
