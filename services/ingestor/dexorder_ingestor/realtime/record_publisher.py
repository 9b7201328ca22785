"""Task of a realtime job: released trades and closed candles to Kafka, one record after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dexorder_common.clock import Clock
from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.dispatches import StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.alarm import Alarm
from dexorder_ingestor.realtime.live_candles import ClosedCandles
from dexorder_ingestor.realtime.live_series import DueTrades, LiveSeries
from dexorder_ingestor.realtime.records import RecordHeaders, candle_pages, trades_value
from dexorder_ingestor.realtime.relay_client import Reports, SeriesReport

_SHORTEST_WAIT_NS, _LONGEST_WAIT_NS = SECOND_NS // 1_000, SECOND_NS


class RecordPublisher:
    """Publishes the records of one dispatch, and reports each to the relay once Kafka has it."""

    def __init__(
        self,
        headers: RecordHeaders,
        series: LiveSeries,
        on_closed: Callable[[ClosedCandles], None],
        changed: Callable[[], None],
        publisher: IngestorPublisher,
        reports: Reports,
        clock: Clock,
        metrics: IngestorMetrics,
    ) -> None:
        """Take the dispatch.

        Args:
            on_closed: Called with candles that Kafka has.
            changed: Called after each change of the series.
        """
        self.job_id = headers.dispatch.dispatch_id
        self.alarm = Alarm()
        self.is_fenced = False
        self._headers = headers
        self._ticker = headers.dispatch.ticker
        self._exchange = headers.dispatch.instrument.venue
        self._series = series
        self._on_closed = on_closed
        self._changed = changed
        self._publisher = publisher
        self._reports = reports
        self._clock = clock
        self._metrics = metrics

    def fence(self) -> None:
        """End without a completion: the relay no longer wants the job."""
        self.is_fenced = True
        self.alarm.ring()

    async def run(self, stop: StopSignal) -> DispatchEnd | None:
        """Publish until the stop or the fence; return a completion only if that fails."""
        try:
            while not self.is_fenced and not stop.is_set:
                self.alarm.reset()
                if not await self._publish(flush=False):
                    await self._until_due()
            if not self.is_fenced:
                await self._publish(flush=True)
                await self._reports.flush()
        except Unavailable as error:
            return DispatchEnd(self.job_id, success=False, message=str(error))
        return None

    async def _until_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        wait_ns = max(_SHORTEST_WAIT_NS, min(self._series.due_ns - now_ns, _LONGEST_WAIT_NS))
        if await self.alarm.wait(wait_ns, now_ns=now_ns):
            await asyncio.sleep(0)

    async def _publish(self, *, flush: bool) -> bool:
        """Publish the records that are due; return whether there were any."""
        due = self._series.take_records(now_ns=self._clock.monotonic_ns(), flush=flush)
        self._changed()
        for record in due.trades:
            await self._produce_trades(record)
        for closed in due.closed:
            await self._produce_candles(closed)
        return bool(due.trades or due.closed)

    async def _produce_trades(self, record: DueTrades) -> None:
        span, trades = record.batch
        headers = self._headers.next(Kind.TRADES, 0, span, fetched_ns=self._clock.wall_ns())
        await self._publisher.produce(headers, trades_value(trades), dataset=TRADES, key=self._ticker)
        self._metrics.trades.labels(self._exchange).inc(len(trades))
        self._report(0, span, len(trades), self._series.recorded(record))

    async def _produce_candles(self, closed: ClosedCandles) -> None:
        period = closed.period_seconds
        for page in candle_pages(closed):
            headers = self._headers.next(
                Kind.PAGE,
                period,
                page.span,
                fetched_ns=self._clock.wall_ns(),
                empty=page.empty,
                amends=closed.amends,
            )
            value = page_value(self._headers.dispatch.request_id, page.candles)
            await self._publisher.produce(headers, value, key=self._ticker)
            self._metrics.candles.labels(self._exchange).inc(len(page.candles))
            self._report(period, page.span, len(page.candles))
        self._on_closed(closed)

    def _report(self, period_seconds: int, span: TimeRange, count: int, last_trade_id: str = "") -> None:
        lag_ns = self._clock.wall_ns() - span.end_ns
        self._reports.add(self, SeriesReport(self.job_id, period_seconds, span, count, last_trade_id, lag_ns))
