"""Run of one dispatch, from its first query to its final record.

The order is safe against a crash at any point: produce page n, wait for Kafka, report the page, and only then page n +
1; after the last page the final record, and WorkComplete only when Kafka has that record. A crash leaves at most one
page without a report. The relay has it fetched again by another dispatch, and the larger ``dx-fetched-ns`` wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import structlog
from opentelemetry.trace import get_current_span

from dexorder_common import tracing
from dexorder_common.clock import Clock
from dexorder_common.kafka.page_record import final_value, page_value
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Delay, Dispatch
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.history.fetch import Fetcher
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.traces import job_span, trace_id_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

log = structlog.get_logger(__name__)


class DispatchRunner:
    """Runs dispatches; keeps only each venue's knowledge of its exchange between them."""

    def __init__(
        self,
        venues: Mapping[str, CcxtVenue],
        publisher: IngestorPublisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
    ) -> None:
        self.venues = venues
        self.publisher = publisher
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.deadline_seconds = settings.dispatch_deadline_seconds
        """Longest time of a dispatch that starts now."""

    async def run(self, dispatch: Dispatch) -> DispatchEnd | None:
        """Fetch and publish one dispatch; return how it ended, or None if the relay no longer wants it."""
        deadline_seconds = self.deadline_seconds
        ticker, period_seconds = dispatch.series.ticker, dispatch.period_seconds
        trace, traced = trace_id_of(dispatch.dispatch_id), job_span(dispatch.dispatch_id, dispatch.instrument.venue)
        with structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace), traced as span:
            span.set_attributes({"dexorder.ticker": ticker, "dexorder.period_seconds": period_seconds})
            log.info("dispatch started", ticker=ticker, period_seconds=period_seconds, span=str(dispatch.span))
            try:
                async with asyncio.timeout(deadline_seconds):
                    completion = await _Run(self, dispatch, trace).run()
            except TimeoutError:
                completion = DispatchEnd(
                    dispatch.dispatch_id, success=False, message=f"took longer than {deadline_seconds:g} s"
                )
            if completion is None or not completion.success:
                outcome = "fenced" if completion is None else "handed_back"
                self.metrics.dispatches.labels(dispatch.instrument.venue, outcome).inc()
                tracing.fail(span, outcome)
                log.warning("dispatch ended", outcome=outcome, message=completion.message if completion else None)
            return completion


class _Run:
    """State of one run: pages and candles so far."""

    def __init__(self, runner: DispatchRunner, dispatch: Dispatch, trace: str) -> None:
        self._runner = runner
        self._dispatch = dispatch
        self._venue = dispatch.instrument.venue
        self._trace = trace
        self._session: CcxtSession | None = None
        self._pages = 0
        self._candles = 0

    async def run(self) -> DispatchEnd | None:
        queue: asyncio.Queue[CandlePage | list[Missing]] = asyncio.Queue(self._runner.settings.prefetch_pages)
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._fetch(queue))
            completion = await self._publish(queue)
            fetching.cancel()  # still runs if the dispatch is fenced or the gateway is unavailable
        return completion

    async def _fetch(self, queue: asyncio.Queue[CandlePage | list[Missing]]) -> None:
        venue = self._runner.venues[self._venue]
        venue.learnt.share(now_ns=venue.clock.wall_ns())
        async with venue.session() as session, asyncio.TaskGroup() as group:
            self._session = session
            reporting = group.create_task(self._report_delays(session))
            try:
                missing = await Fetcher(self._dispatch, venue, session, venue.learnt.agreement).run(queue.put)
            finally:
                venue.learnt.share(now_ns=venue.clock.wall_ns())
            await queue.put(missing)
            reporting.cancel()

    async def _report_delays(self, session: CcxtSession) -> None:
        """Report the session's delay with each heartbeat's interval, and once the end of the delay."""
        last: Delay | None = None
        while True:
            await asyncio.sleep(self._runner.settings.heartbeat_seconds)
            delay = session.delay()
            if delay or last:
                await self._runner.publisher.report_delay(self._dispatch.dispatch_id, delay)
            last = delay

    async def _publish(self, queue: asyncio.Queue[CandlePage | list[Missing]]) -> DispatchEnd | None:
        try:
            while isinstance(item := await queue.get(), CandlePage):
                if not await self._publish_page(item):
                    return None
            return await self._publish_final(item)
        except Unavailable as error:
            return DispatchEnd(self._dispatch.dispatch_id, success=False, message=str(error))

    async def _publish_page(self, page: CandlePage) -> bool:
        publisher, metrics = self._runner.publisher, self._runner.metrics
        headers = replace(
            self._headers(Kind.PAGE, page.span, page.fetched_ns),
            empty=page.empty,
            proofs=page.proofs,
        )
        await publisher.produce(headers, page_value(self._dispatch.request_id, page.candles))
        self._pages += 1
        self._candles += len(page.candles)
        metrics.pages.labels(self._venue).inc()
        metrics.candles.labels(self._venue).inc(len(page.candles))
        return await publisher.report_page(headers, len(page.candles), self._session.calls if self._session else 0)

    async def _publish_final(self, missing: list[Missing]) -> DispatchEnd:
        status, text = pb.DataResponse.OK, None
        if missing:
            status, text = pb.DataResponse.ERROR, "; ".join(map(str, missing))
        elif not self._candles:
            status = pb.DataResponse.NOT_FOUND
        headers = self._headers(Kind.FINAL, self._dispatch.span, self._runner.clock.wall_ns())
        value = final_value(self._dispatch.request_id, status, self._candles, text)
        await self._runner.publisher.produce(headers, value)
        outcome = pb.DataResponse.ResponseStatus.Name(status).lower()
        get_current_span().set_attributes(
            {"dexorder.status": outcome, "dexorder.pages": self._pages, "dexorder.rows": self._candles}
        )
        self._runner.metrics.dispatches.labels(self._venue, outcome).inc()
        log.info("dispatch ended", outcome=outcome, pages=self._pages, candles=self._candles, message=text)
        return DispatchEnd(self._dispatch.dispatch_id, success=True)

    def _headers(self, kind: Kind, span: TimeRange, fetched_ns: int) -> PageHeaders:
        return PageHeaders(
            kind=kind,
            ticker=self._dispatch.series.ticker,
            period_seconds=self._dispatch.period_seconds,
            dispatch_id=self._dispatch.dispatch_id,
            page=self._pages,
            span=span,
            fetched_ns=fetched_ns,
            trace=self._trace,
        )
