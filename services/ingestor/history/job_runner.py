"""One dispatch from first question to final record.

Order, safe against a crash at any point: produce page n, wait for Kafka, report it, and only then page n + 1; after the
last one the final record, and only when Kafka has that one WorkComplete. A crash leaves at most a page nobody heard of;
the relay has it fetched again under a new job_id and the larger ``dx-fetched-ns`` wins.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping

import structlog

from services.common.clock import Clock
from services.common.kafka.page_record import final_value, page_value
from services.common.model.errors import Unavailable
from services.common.model.page import Kind, PageHeaders
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.ingestor.broker.dispatch import Dispatch
from services.ingestor.broker.slots import Completion
from services.ingestor.config import IngestorSettings
from services.ingestor.exchange.venue import Venue
from services.ingestor.history.fetch import Fetcher, Missing, Page
from services.ingestor.metrics import IngestorMetrics
from services.ingestor.publisher import Publisher

log = structlog.get_logger(__name__)
_Item = Page | list[Missing]


class DispatchRunner:
    """Runs dispatches; holds nothing between them but the venues' clients."""

    def __init__(
        self,
        venues: Mapping[str, Venue],
        publisher: Publisher,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
    ) -> None:
        self._venues = venues
        self._publisher = publisher
        self._settings = settings
        self._metrics = metrics
        self._clock = clock

    async def run(self, job: Dispatch) -> Completion | None:
        """Fetch and publish one job; how it ended, or None when the relay no longer wants it."""
        trace = uuid.uuid4().hex
        with structlog.contextvars.bound_contextvars(job_id=job.job_id, trace=trace):
            log.info("job starts", ticker=str(job.ticker), period_seconds=job.period_seconds, span=str(job.span))
            try:
                async with asyncio.timeout(self._settings.job_deadline_seconds):
                    completion = await _Run(self, job, trace).run()
            except TimeoutError:
                text = f"took longer than {self._settings.job_deadline_seconds:g} s"
                completion = Completion(job.job_id, success=False, message=text)
            if completion is None or not completion.success:
                outcome = "fenced" if completion is None else "handed_back"
                self._metrics.jobs.labels(job.ticker.venue, outcome).inc()
                log.warning("job ends", outcome=outcome, message=completion.message if completion else None)
            return completion


class _Run:
    """The state of one run: pages and candles so far."""

    def __init__(self, runner: DispatchRunner, job: Dispatch, trace: str) -> None:
        self._runner = runner
        self._job = job
        self._trace = trace
        self._pages = 0
        self._candles = 0

    async def run(self) -> Completion | None:
        queue: asyncio.Queue[_Item] = asyncio.Queue(self._runner._settings.prefetch_pages)
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(self._fetch(queue))
            completion = await self._publish(queue)
            fetching.cancel()  # still running when the job is fenced or the gateway is away
        return completion

    async def _fetch(self, queue: asyncio.Queue[_Item]) -> None:
        venue = self._runner._venues[self._job.ticker.venue]
        async with venue.session() as session:
            await queue.put(await Fetcher(self._job, venue, session).run(queue.put))

    async def _publish(self, queue: asyncio.Queue[_Item]) -> Completion | None:
        try:
            while isinstance(item := await queue.get(), Page):
                if not await self._publish_page(item):
                    return None
            return await self._publish_final(item)
        except Unavailable as error:
            return Completion(self._job.job_id, success=False, message=str(error))

    async def _publish_page(self, page: Page) -> bool:
        publisher, metrics, venue = self._runner._publisher, self._runner._metrics, self._job.ticker.venue
        control = self._control(Kind.PAGE, page)
        await publisher.produce(control, page_value(self._job.request_id, page.candles))
        self._pages += 1
        self._candles += len(page.candles)
        metrics.pages.labels(venue).inc()
        metrics.candles.labels(venue).inc(len(page.candles))
        return await publisher.report(control, len(page.candles))

    async def _publish_final(self, missing: list[Missing]) -> Completion:
        status, text = pb.DataResponse.OK, None
        if missing:
            status, text = pb.DataResponse.ERROR, "; ".join(map(str, missing))
        elif not self._candles:
            status = pb.DataResponse.NOT_FOUND
        value = final_value(self._job.request_id, status, self._candles, text)
        await self._runner._publisher.produce(self._control(Kind.FINAL, None), value)
        outcome = pb.DataResponse.ResponseStatus.Name(status).lower()
        self._runner._metrics.jobs.labels(self._job.ticker.venue, outcome).inc()
        log.info("job ends", outcome=outcome, pages=self._pages, candles=self._candles, message=text)
        return Completion(self._job.job_id, success=True)

    def _control(self, kind: Kind, page: Page | None) -> PageHeaders:
        return PageHeaders(
            kind=kind,
            ticker=str(self._job.ticker),
            period_seconds=self._job.period_seconds,
            dispatch_id=self._job.job_id,
            page=self._pages,
            span=page.span if page else self._job.span,
            fetched_ns=page.fetched_ns if page else self._runner._clock.wall_ns(),
            empty=page.empty if page else (),
            trace=self._trace,
        )
