"""Runs of dispatches that are not realtime: the common part of all datasets, from the start to the final record.

The order is safe against a crash at any point: produce page n, wait for Kafka, report the page, and only then page n +
1; after the last page the final record, and WorkComplete only when Kafka has that record. A crash leaves at most one
page without a report. The relay has it fetched again by another dispatch, and the larger ``dx-fetched-ns`` wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog

from dexorder_common import tracing
from dexorder_common.clock import Clock
from dexorder_common.kafka.page_record import final_value
from dexorder_common.model.datasets import Dataset
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Delay, Dispatch
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.proof import Proof
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.traces import job_span, trace_id_of
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

log = structlog.get_logger(__name__)
Fetch = Callable[["DispatchRun"], Awaitable[DispatchEnd | None]]
"""Publishes one dispatch; returns how it ended, or None if the relay no longer wants it."""


@dataclass(eq=False)
class DispatchRunner:
    """Runs dispatches; keeps only each venue's knowledge of its exchange between them."""

    fetchers: Mapping[Dataset, Fetch]
    venues: Mapping[str, CcxtVenue]
    publisher: IngestorPublisher
    settings: IngestorSettings
    metrics: IngestorMetrics
    clock: Clock
    deadline_seconds: float = field(init=False)
    """Longest time of a dispatch that starts now."""

    def __post_init__(self) -> None:
        self.deadline_seconds = self.settings.dispatch_deadline_seconds

    async def run(self, dispatch: Dispatch, fetched: Callable[[], None] = lambda: None) -> DispatchEnd | None:
        """Fetch and publish one dispatch; return how it ended, or None if the relay no longer wants it.

        Args:
            fetched: Called once, if at all, when only publishing is left.
        """
        deadline_seconds, series = self.deadline_seconds, dispatch.series
        trace, traced = trace_id_of(dispatch.dispatch_id), job_span(dispatch.dispatch_id, series.exchange)
        with structlog.contextvars.bound_contextvars(dispatch_id=dispatch.dispatch_id, trace=trace), traced as span:
            span.set_attributes({"dexorder.ticker": series.ticker, "dexorder.period_seconds": series.period_seconds})
            log.info("dispatch started", series=str(series), span=str(dispatch.span))
            run = DispatchRun(self, dispatch, trace, fetched)
            try:
                async with asyncio.timeout(deadline_seconds):
                    end = await self.fetchers[series.dataset](run)
            except (Unavailable, TimeoutError) as error:
                end = run.hand_back(str(error) or f"took longer than {deadline_seconds:g} s")
            if end is not None and end.success:
                outcome, message, tell = run.outcome, run.missing or None, log.info
                span.set_attributes(
                    {"dexorder.status": outcome, "dexorder.pages": run.pages, "dexorder.rows": run.rows}
                )
            else:
                outcome, message = ("fenced", None) if end is None else ("handed_back", end.message)
                tell = log.warning
                tracing.fail(span, outcome)
            self.metrics.dispatches.labels(series.exchange, outcome).inc()
            tell("dispatch ended", outcome=outcome, pages=run.pages, rows=run.rows, message=message)
            return end


class DispatchRun:
    """One run of a dispatch: its session with the exchange, and its records so far."""

    def __init__(self, runner: DispatchRunner, dispatch: Dispatch, trace: str, fetched: Callable[[], None]) -> None:
        self.dispatch = dispatch
        self.fetched = fetched
        """To be called when the exchange is asked no more and only publishing is left."""
        self.venue = runner.venues[dispatch.series.exchange]
        self.settings = runner.settings
        self.pages = self.rows = 0
        """Numbers of the records, and of the rows in them, that Kafka has."""
        self.outcome = ""
        self.missing = ""
        """Reason for which rows are missing, once the final record is published; empty if all are there."""
        self._runner = runner
        self._trace = trace
        self._session: CcxtSession | None = None
        self._calls = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[CcxtSession]:
        """Lend a session; its delays are reported to the relay."""
        async with self.venue.session() as session:
            self._session = session
            reporting = asyncio.create_task(self._report_delays(session))
            try:
                yield session
            finally:
                reporting.cancel()
                self._session, self._calls = None, session.calls  # the next dispatch counts its own

    async def publish_page(
        self,
        span: TimeRange,
        value: bytes,
        rows: int,
        *,
        fetched_ns: int | None = None,
        empty: tuple[TimeRange, ...] = (),
        proofs: tuple[Proof, ...] = (),
    ) -> bool:
        """Publish and report a page; return whether the relay still wants the dispatch.

        Raises:
            Unavailable: The gateway or the relay refuses it, or is unavailable for too long.
        """
        headers = replace(self._headers(Kind.PAGE, span, fetched_ns), empty=empty, proofs=proofs)
        await self._produce(headers, value, rows)
        self._runner.metrics.pages.labels(self.venue.name).inc()
        calls = self._session.calls if self._session else self._calls
        return await self._runner.publisher.report_page(headers, rows, calls)

    async def publish_snapshots(self, span: TimeRange, value: bytes, rows: int) -> None:
        """Publish a page of snapshots without a report; Unavailable as above."""
        await self._produce(self._headers(Kind.TICKERS, span), value, rows)

    async def publish_final(self, missing: str, span: TimeRange | None = None) -> DispatchEnd:
        """Publish the final record; return the end of the dispatch. Unavailable as above.

        Args:
            missing: Reason for which rows are missing; empty if all are there.
            span: Time of the rows; by default the dispatch's range.
        """
        status = pb.DataResponse.ERROR if missing else pb.DataResponse.OK if self.rows else pb.DataResponse.NOT_FOUND
        value = final_value(self.dispatch.request_id, status, self.rows, missing or None)
        await self._produce(self._headers(Kind.FINAL, span or self.dispatch.span), value)
        self.outcome, self.missing = pb.DataResponse.ResponseStatus.Name(status).lower(), missing
        return DispatchEnd(self.dispatch.dispatch_id, success=True)

    def hand_back(self, reason: str) -> DispatchEnd:
        """Return the end of a dispatch with an unfetched rest, which the relay has to queue again."""
        return DispatchEnd(self.dispatch.dispatch_id, success=False, message=reason)

    async def _produce(self, headers: PageHeaders, value: bytes, rows: int | None = None) -> None:
        dataset = self.dispatch.series.dataset
        key = headers.ticker if dataset.whole_exchange else headers.dispatch_id
        await self._runner.publisher.produce(headers, value, dataset=dataset, key=key)
        if rows is not None:
            self.pages += 1
            self.rows += rows

    async def _report_delays(self, session: CcxtSession) -> None:
        """Report the session's delay with each heartbeat's interval, and once the end of the delay."""
        last: Delay | None = None
        while True:
            await asyncio.sleep(self.settings.heartbeat_seconds)
            delay = session.delay()
            if delay or last:
                await self._runner.publisher.report_delay(self.dispatch.dispatch_id, delay)
            last = delay

    def _headers(self, kind: Kind, span: TimeRange, fetched_ns: int | None = None) -> PageHeaders:
        return PageHeaders(
            kind=kind,
            ticker=self.dispatch.series.ticker,
            period_seconds=self.dispatch.period_seconds,
            dispatch_id=self.dispatch.dispatch_id,
            page=self.pages,
            span=span,
            fetched_ns=self._runner.clock.wall_ns() if fetched_ns is None else fetched_ns,
            trace=self._trace,
        )
