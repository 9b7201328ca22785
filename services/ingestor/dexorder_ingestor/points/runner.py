"""Run of one dispatch of a dataset whose rows are known by their time alone: its pages, then the final record.

The order is safe against a crash at any point, as in ``history/dispatch_runner.py``: each page waits for Kafka and is
reported before the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import structlog

from dexorder_common.clock import Clock
from dexorder_common.kafka.page_record import final_value
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Delay, Dispatch
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.points.fetch import PointFetcher, PointSource
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.traces import job_span, trace_id_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

log = structlog.get_logger(__name__)


class PointsRunner:
    """Runs dispatches of any of these datasets."""

    def __init__(
        self,
        sources: Mapping[Dataset, PointSource],
        venues: Mapping[str, CcxtVenue],
        publisher: IngestorPublisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
    ) -> None:
        self.sources = sources
        self.venues = venues
        self.publisher = publisher
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.deadline_seconds = settings.dispatch_deadline_seconds
        """Longest time of a dispatch that begins now."""

    async def run(self, dispatch: Dispatch) -> DispatchEnd | None:
        """Fetch and publish one dispatch; return how it ended, or None if the relay no longer wants it."""
        trace, venue = trace_id_of(dispatch.dispatch_id), dispatch.series.exchange
        with (
            structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace),
            job_span(dispatch.dispatch_id, venue),
        ):
            log.info("dispatch started", ticker=dispatch.series.ticker, dataset=str(dispatch.series.dataset))
            try:
                async with asyncio.timeout(self.deadline_seconds):
                    outcome = await _PointsRun(self, dispatch, trace).run()
                end = None if outcome == "fenced" else DispatchEnd(dispatch.dispatch_id, success=True)
            except (Unavailable, TimeoutError) as error:
                outcome, message = "handed_back", str(error) or f"took longer than {self.deadline_seconds:g} s"
                end = DispatchEnd(dispatch.dispatch_id, success=False, message=message)
            self.metrics.dispatches.labels(venue, outcome).inc()
            log.info("dispatch ended", outcome=outcome)
            return end


class _PointsRun:
    """State of one run: pages and rows so far."""

    def __init__(self, runner: PointsRunner, dispatch: Dispatch, trace: str) -> None:
        self._runner = runner
        self._dispatch = dispatch
        self._trace = trace
        self._source = runner.sources[dispatch.series.dataset]
        self._pages = 0
        self._rows = 0

    async def run(self) -> str:
        dispatch = self._dispatch
        async with self._runner.venues[dispatch.series.exchange].session() as session:
            reporting = asyncio.create_task(self._report_delays(session))
            try:
                fetcher = PointFetcher(
                    self._source, session, Instrument.parse(dispatch.series.ticker).symbol, dispatch.span
                )
                if not await self._publish_pages(fetcher, session):
                    return "fenced"
                missing = fetcher.missing
            except ExchangeFailure as error:
                missing = str(error)
            finally:
                reporting.cancel()
        status = pb.DataResponse.ERROR if missing else pb.DataResponse.OK if self._rows else pb.DataResponse.NOT_FOUND
        headers = self._headers(Kind.FINAL, dispatch.span)
        value = final_value(dispatch.request_id, status, self._rows, missing or None)
        await self._produce(headers, value)
        return pb.DataResponse.ResponseStatus.Name(status).lower()

    async def _publish_pages(self, fetcher: PointFetcher, session: CcxtSession) -> bool:
        """Publish all pages; return whether the relay still wants the dispatch."""
        venue = self._dispatch.series.exchange
        async with aclosing(fetcher.pages()) as pages:  # type: ignore[type-var]
            async for page in pages:
                headers = self._headers(Kind.PAGE, page.span)
                await self._produce(headers, self._source.encode(page.points))
                self._pages += 1
                self._rows += len(page.points)
                self._runner.metrics.pages.labels(venue).inc()
                if not await self._runner.publisher.report_page(headers, len(page.points), session.calls):
                    return False
        return True

    async def _produce(self, headers: PageHeaders, value: bytes) -> None:
        await self._runner.publisher.produce(headers, value, dataset=self._dispatch.series.dataset)

    async def _report_delays(self, session: CcxtSession) -> None:
        """Report what the session waits for, and once that it waits no longer, with each heartbeat's interval."""
        last: Delay | None = None
        while True:
            await asyncio.sleep(self._runner.settings.heartbeat_seconds)
            delay = session.delay()
            if delay or last:
                await self._runner.publisher.report_delay(self._dispatch.dispatch_id, delay)
            last = delay

    def _headers(self, kind: Kind, span: TimeRange) -> PageHeaders:
        return PageHeaders(
            kind=kind,
            ticker=self._dispatch.series.ticker,
            period_seconds=0,
            dispatch_id=self._dispatch.dispatch_id,
            page=self._pages,
            span=span,
            fetched_ns=self._runner.clock.wall_ns(),
            trace=self._trace,
        )
