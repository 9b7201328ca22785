"""The newest candles of finished requests are fetched once more, a minute later: no coarser candle proves their values.

A candle that the exchange has changed by then replaces the row, as with any later dispatch, and its range is announced.
The times are kept in memory: candles that wait for their look when the relay ends are not looked at again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import structlog

from dexorder_common.model.errors import NotFound, Unavailable
from dexorder_common.model.history import HistoryRequest, Outcome, RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import floor_to_grid, next_open
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.reading.rows import CANDLE_COLUMNS
from dexorder_relay.reading.series_times import open_times
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.compare import runs
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.verification.value_verification import ValueVerifier

log = structlog.get_logger(__name__)
PREFIX = "newest-"
"""Start of the ids of its requests."""
INTERVAL_SECONDS = 2.0
AFTER_NS = 60 * SECOND_NS
NEWEST_NS = 600 * SECOND_NS
"""Age below which no coarser candle counts as a checksum; the ingestor's rule."""
MAX_WAIT_NS = 600 * SECOND_NS
"""Time for which a look waits behind the other jobs of its exchange; then it is left out."""
MAX_SERIES = 10_000
"""Series that wait for a look; a new one replaces the one that waits longest."""


class Look(NamedTuple):
    """Candles to fetch again, and the time at which that is due."""

    span: TimeRange
    due_ns: int


class NewestLooks:
    """Looks that wait, at most one of a series: however often it is requested, it is looked at once a minute. Pure."""

    def __init__(self) -> None:
        self._waiting: dict[Series, Look] = {}

    def add(self, series: Series, span: TimeRange, *, now_ns: int) -> None:
        """Look at candles in a minute, or together with candles of the series that already wait."""
        known = self._waiting.get(series)
        if known is not None:
            start_ns, end_ns = min(known.span.start_ns, span.start_ns), max(known.span.end_ns, span.end_ns)
            self._waiting[series] = known._replace(span=TimeRange(start_ns, end_ns))
            return
        if len(self._waiting) == MAX_SERIES:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[series] = Look(span, now_ns + AFTER_NS)

    def due(self, *, now_ns: int) -> Iterator[tuple[Series, Look]]:
        """Yield the looks that are due; looks that have waited for too long are left out."""
        for series, look in list(self._waiting.items()):
            if now_ns >= look.due_ns + MAX_WAIT_NS:
                del self._waiting[series]
            elif now_ns >= look.due_ns:
                yield series, look

    def remove(self, series: Series) -> None:
        """Note that a look starts."""
        del self._waiting[series]


def newest(request: HistoryRequest, outcome: Outcome, *, now_ns: int) -> TimeRange | None:
    """Return the candles of an answer that ended in the last ten minutes; None without any. Pure."""
    answered = outcome.status in (RequestStatus.OK, RequestStatus.ERROR) and outcome.end_ns > request.start_ns
    if not (request.dataset.has_periods and answered):
        return None
    parts = subtract([TimeRange(request.start_ns, min(request.end_ns, outcome.end_ns))], outcome.missing)
    young_ns = max(0, now_ns - NEWEST_NS)
    if not parts or parts[-1].end_ns <= young_ns:
        return None
    period, end_ns = request.period_seconds, parts[-1].end_ns
    first_ns = min(floor_to_grid(young_ns, period), next_open(end_ns, period, -1))
    return TimeRange(max(parts[-1].start_ns, first_ns), end_ns)


def changed_candles(before: pa.Table, after: pa.Table, period_seconds: int) -> list[TimeRange]:
    """Return the candles that both tables have, with other values; rows by open time, in ``CANDLE_COLUMNS``. Pure."""
    values = [name for name in CANDLE_COLUMNS if name != "open_time"]
    old = dict(zip(open_times(before).tolist(), before.select(values).to_pylist(), strict=True))
    new = zip(open_times(after).tolist(), after.select(values).to_pylist(), strict=True)
    changed = [open_ns for open_ns, candle in new if open_ns in old and old[open_ns] != candle]
    return runs(np.array(changed, np.int64), period_seconds)


class NewestValues:
    """Submits the requests that are due while their exchange is idle, and returns the ranges that they changed."""

    def __init__(self, context: Context, submitter: Submitter, values: ValueVerifier) -> None:
        self._context = context
        self._submitter = submitter
        self._values = values
        self._looks = NewestLooks()
        self._before: dict[str, pa.Table] = {}

    def ended(self, live: LiveRequest, outcome: Outcome) -> None:
        """Note the end of a request: of candles that it has fetched, the newest are looked at again."""
        request, now_ns = live.request, self._context.clock.wall_ns()
        is_on = bool(self._context.settings.recheck_after_seconds)
        if is_on and live.jobs and not request.again and (span := newest(request, outcome, now_ns=now_ns)):
            self._looks.add(request.series, span, now_ns=now_ns)

    async def run(self, interval_seconds: float | None = None) -> None:
        """Submit requests until cancelled."""
        while True:
            for series, span in self.take():
                self._context.start(self._look(series, span))
            await asyncio.sleep(interval_seconds or INTERVAL_SECONDS)

    def take(self) -> Iterator[tuple[Series, TimeRange]]:
        """Yield the looks to start now, at most ``parallel_rechecks`` at an exchange without queued jobs."""
        state, now_ns = self._context.state, self._context.clock.wall_ns()
        requests = (each.request for each in state.requests.values())
        running = Counter(each.series.exchange for each in requests if each.request_id.startswith(PREFIX))
        load = state.leases.load()
        for series, look in self._looks.due(now_ns=now_ns):
            exchange = series.exchange
            is_busy = exchange in load and load[exchange].queued
            if is_busy or running[exchange] >= self._context.settings.parallel_rechecks:
                continue
            running[exchange] += 1
            self._looks.remove(series)
            yield series, look.span

    async def _look(self, series: Series, span: TimeRange) -> None:
        request_id = self._context.new_id(PREFIX)
        period = series.period_seconds
        request = HistoryRequest(request_id, series.ticker, span.start_ns, span.end_ns, period, again=True)
        try:
            self._before[request_id] = await asyncio.to_thread(self._rows, request)
            await self._submitter.fetch_again([request])
            async for _ in self._values.wait(request_id):
                pass
        except (Unavailable, NotFound) as error:
            log.warning("the newest candles are not looked at again", ticker=series.ticker, error=str(error))
        finally:
            self._before.pop(request_id, None)

    async def changed(self, request: HistoryRequest) -> list[TimeRange]:
        """Return the candles that one of these requests has changed; Unavailable if the table can't be read."""
        before = self._before.get(request.request_id)
        if before is None:
            return []
        after = await asyncio.to_thread(self._rows, request)
        found = changed_candles(before, after, request.period_seconds)
        for span in found:
            log.warning("the exchange has changed a candle", ticker=request.ticker, span=str(span))
        return found

    def _rows(self, request: HistoryRequest) -> pa.Table:
        return self._context.reader.candles().candles(request.series, request.span)
