"""Requests of the relay itself: they query provisional ranges again, and announce candles that turned up there."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator

import structlog

from services.common.model.errors import Unavailable
from services.common.model.history import HistoryRequest
from services.common.model.instrument import Series
from services.common.model.periods import ceil_to_grid, floor_to_grid
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS
from services.relay.history.context import Context
from services.relay.history.provisional import join_near
from services.relay.history.submitter import Submitter

log = structlog.get_logger(__name__)
INTERVAL_SECONDS = 2.0
PATIENCE_NS = 600 * SECOND_NS
"""Time for which a query waits behind the other jobs of its exchange at most."""


class Rechecker:
    """Submits a request when a range is due, its exchange is idle, and not too many of them run."""

    def __init__(self, context: Context, submitter: Submitter) -> None:
        self._context = context
        self._submitter = submitter

    async def run(self) -> None:
        """Submit requests until cancelled."""
        while True:
            if requests := list(self.due()):
                log.info("querying provisional ranges again", requests=len(requests))
                try:
                    await self._submitter.fetch_again(requests)
                except Unavailable as error:
                    log.warning("provisional ranges wait", error=str(error))
            await asyncio.sleep(INTERVAL_SECONDS)

    def due(self) -> Iterator[HistoryRequest]:
        """Yield the requests to submit now."""
        state, now_ns = self._context.state, self._context.clock.wall_ns()
        live = [each.request for each in state.requests.values() if each.request.again]
        running = Counter(each.series.exchange for each in live)
        load = state.leases.load()
        for series, span, due_ns in [*self._found(), *state.provisional.due(now_ns=now_ns)]:
            exchange = series.exchange
            if running[exchange] >= self._context.settings.parallel_rechecks:
                continue
            if any(each.series == series and each.span.overlaps(span) for each in live):
                continue
            if exchange in load and load[exchange].queued and now_ns - due_ns < PATIENCE_NS:
                continue
            running[exchange] += 1
            yield _request(series, span)

    def _found(self) -> Iterator[tuple[Series, TimeRange, int]]:
        """Yield ranges with candles that turned up and are not announced: their query has waited for long enough."""
        for series, known in self._context.state.coverage.items():
            for span, due_ns in join_near(((each, 0) for each in known.found), series.period_seconds):
                yield series, span, due_ns


def _request(series: Series, span: TimeRange) -> HistoryRequest:
    start_ns, end_ns = (
        floor_to_grid(span.start_ns, series.period_seconds),
        ceil_to_grid(span.end_ns, series.period_seconds),
    )
    return HistoryRequest(
        f"recheck-{uuid.uuid4().hex}", series.ticker, start_ns, end_ns, series.period_seconds, again=True
    )
