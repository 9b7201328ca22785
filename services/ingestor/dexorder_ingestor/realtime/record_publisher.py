"""Task of a realtime job: released trades and closed candles to Kafka, one record after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import Kind
from dexorder_common.model.realtime import Knowledge
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.dispatches import StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.realtime.candle_checks import CandleChecks
from dexorder_ingestor.realtime.exchange_tasks import Alarm, Services
from dexorder_ingestor.realtime.live_candles import ClosedCandles
from dexorder_ingestor.realtime.live_series import DueTrades, LiveSeries
from dexorder_ingestor.realtime.records import RecordHeaders, candle_pages, trades_value
from dexorder_ingestor.realtime.relay_client import SeriesReport
from dexorder_ingestor.realtime.trade_batches import tick_of

_SHORTEST_WAIT_NS, _LONGEST_WAIT_NS = SECOND_NS // 1_000, SECOND_NS


@dataclass(eq=False)
class RecordPublisher:
    """Publishes the records of one dispatch, and reports each to the relay once Kafka has it.

    Attributes:
        changed: Called after each change of the series.
        checks: Candles that Kafka has, which are to be compared.
        waiting: Why the job does not settle data, as `tell` reports it.
    """

    services: Services
    headers: RecordHeaders
    series: LiveSeries
    changed: Callable[[], None]
    checks: CandleChecks
    alarm: Alarm = field(default_factory=Alarm)
    is_fenced: bool = False
    waiting: str = ""

    def __post_init__(self) -> None:
        self.job_id = self.headers.dispatch.dispatch_id
        self._clock = self.services.venue.clock
        self._told = Knowledge(self.series.provisional, self.checks.unchecked())

    def fence(self) -> None:
        """End without a completion: the relay no longer wants the job."""
        self.is_fenced = True
        self.alarm.ring()

    async def run(self, stop: StopSignal) -> DispatchEnd | None:
        """Publish until the stop or the fence; return a completion only if that fails."""
        try:
            while not self.is_fenced and not stop.is_set:
                self.alarm.reset()
                self.series.set_tick(tick_of(self.services.joiner.markets))
                if not await self._publish(flush=False):
                    await self._until_due()
            if not self.is_fenced:
                await self._publish(flush=True)
                await self.services.reports.flush()
        except Unavailable as error:
            return DispatchEnd(self.job_id, success=False, message=str(error))
        return None

    @property
    def wake_ns(self) -> int:
        """Time before which no record may be due; records due soon after it are published when the task wakes up."""
        return self.alarm.at_ns - _SHORTEST_WAIT_NS

    async def _until_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        wait_ns = max(_SHORTEST_WAIT_NS, min(self.series.due_ns - now_ns, _LONGEST_WAIT_NS))
        if await self.alarm.wait(wait_ns, now_ns=now_ns):
            await asyncio.sleep(0)

    async def _publish(self, *, flush: bool) -> bool:
        """Publish the records that are due; return whether there were any."""
        due = self.series.take_records(now_ns=self._clock.monotonic_ns(), flush=flush)
        self.changed()
        if self.tell():
            await self.services.reports.flush()  # before a record claims the time of a provisional span
        for record in due.trades:
            await self._produce_trades(record)
        for closed in due.closed:
            await self._produce_candles(closed)
        return bool(due.trades or due.closed)

    async def _produce_trades(self, record: DueTrades) -> None:
        span, trades = record.batch
        headers = self.headers.next(Kind.TRADES, 0, span, fetched_ns=self._clock.wall_ns())
        await self.services.joiner.produce(headers, trades_value(trades))
        self.services.metrics.trades.labels(self.services.venue.name).inc(len(trades))
        self._report(0, span, len(trades), self.series.recorded(record), record.compared_ns)

    async def _produce_candles(self, closed: ClosedCandles) -> None:
        period = closed.period_seconds
        for page in candle_pages(closed):
            headers = self.headers.next(
                Kind.PAGE,
                period,
                page.span,
                fetched_ns=self._clock.wall_ns(),
                empty=page.empty,
                amends=closed.amends,
            )
            value = page_value(self.headers.dispatch.request_id, page.candles)
            await self.services.publisher.produce(headers, value, key=headers.ticker)
            self.services.metrics.candles.labels(self.services.venue.name).inc(len(page.candles))
            self._report(period, page.span, len(page.candles))
        self.checks.add(closed)
        self.tell()

    def tell(self, *, again: bool = False) -> bool:
        """Report the job's knowledge that is not in its records, if it has changed, or again.

        Returns:
            Whether provisional spans have changed.
        """
        series, told = self.series, self._told
        checked = self.checks.unchecked()
        known = Knowledge(series.provisional, checked, series.corrected, series.late, self.waiting)
        if known == told and not again:
            return False
        metrics, venue = self.services.metrics, self.services.venue.name
        metrics.corrected_trades.labels(venue).inc(known.corrected - told.corrected)
        metrics.late_trades.labels(venue).inc(known.late - told.late)
        self._told = known
        self.services.reports.tell(self, known)
        return known.provisional != told.provisional

    def _report(
        self, period_seconds: int, span: TimeRange, count: int, last_trade_id: str = "", compared_ns: int = 0
    ) -> None:
        ticker, lag_ns = self.headers.dispatch.ticker, self._clock.wall_ns() - span.end_ns
        report = SeriesReport(self.job_id, ticker, period_seconds, span, count, last_trade_id, lag_ns, compared_ns)
        self.services.reports.add(self, report)
