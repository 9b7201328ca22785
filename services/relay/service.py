"""The relay's RPCs: convert, call the engine, convert back. Errors are mapped by `services.common.rpc.policy`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog

from services.common.lake.catalog import CatalogSettings
from services.common.model.errors import InvalidRequest
from services.common.model.history import RequestState, Submission
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange
from services.common.model.times import MAX_TIME_NS
from services.common.rpc.identity import current_caller
from services.gen.dexorder.ingest.v1 import ingest_pb2 as ingest
from services.gen.dexorder.relay.v1 import (
    ingestor_service_pb2,
    ingestor_service_pb2_grpc,
    pipeline_service_pb2,
    pipeline_service_pb2_grpc,
    relay_service_pb2,
    relay_service_pb2_grpc,
)
from services.relay import access, convert
from services.relay.history import request as requests
from services.relay.history.coverage_queries import CoverageQueries
from services.relay.history.engine import Engine
from services.relay.history.fetch_ohlc import Answers
from services.relay.history.verification import Step, Verifier
from services.relay.instruments import Instruments
from services.relay.metrics import RelayMetrics

log = structlog.get_logger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
M = TypeVar("M")
V = TypeVar("V")
PAGE_SIZE, LARGEST_PAGE_SIZE = 100, 1_000
LONGEST_LIST = 10_000
RANGES_IN_AN_ANSWER, PAGES_IN_AN_ANSWER = 10_000, 1_000


class RelayService(relay_service_pb2_grpc.RelayServiceServicer):
    """What clients call."""

    def __init__(
        self,
        engine: Engine,
        answers: Answers,
        markets: Instruments,
        ledger: CoverageQueries,
        verifier: Verifier,
        metrics: RelayMetrics,
        catalog: CatalogSettings,
    ) -> None:
        self._engine = engine
        self._answers = answers
        self._markets = markets
        self._coverage = ledger
        self._verifier = verifier
        self._metrics = metrics
        self._catalog = catalog

    async def SubmitHistorical(  # noqa: N802
        self, request: ingest.SubmitHistoricalRequest, context: Context
    ) -> ingest.SubmitResponse:
        """Accept a request; a bad field is status INVALID in the answer, not a gRPC error."""
        return await self._submit(convert.submission(request))

    async def RefreshHistorical(  # noqa: N802
        self, request: relay_service_pb2.RefreshHistoricalRequest, context: Context
    ) -> ingest.SubmitResponse:
        """The same, fetched anew."""
        return await self._submit(convert.submission(request.request, refresh=True))

    async def _submit(self, submission: Submission) -> ingest.SubmitResponse:
        caller = current_caller()
        answer = ingest.SubmitResponse(request_id=submission.request_id)
        try:
            accepted = await self._engine.submitter.submit(access.signed(caller, submission), caller)
        except InvalidRequest as error:
            answer.status = ingest.SubmitResponse.INVALID
            answer.error_message = str(error)
        else:
            duplicate = accepted.duplicate
            answer.status = ingest.SubmitResponse.DUPLICATE if duplicate else ingest.SubmitResponse.QUEUED
            answer.notification_topic = accepted.topic
        self._metrics.submitted.labels(ingest.SubmitResponse.SubmitStatus.Name(answer.status)).inc()
        return answer

    async def GetRequest(  # noqa: N802
        self, request: relay_service_pb2.GetRequestRequest, context: Context
    ) -> relay_service_pb2.GetRequestResponse:
        """One record."""
        record = access.seen(current_caller(), await self._engine.queries.record(request.request_id))
        return relay_service_pb2.GetRequestResponse(record=convert.record(record))

    async def ListRequests(  # noqa: N802
        self, request: relay_service_pb2.ListRequestsRequest, context: Context
    ) -> relay_service_pb2.ListRequestsResponse:
        """A page of records; the token is the sequence number of its last one."""
        size = request.page_size or PAGE_SIZE
        if size > LARGEST_PAGE_SIZE:
            raise InvalidRequest(f"page_size {size} is over {LARGEST_PAGE_SIZE}")
        if request.state not in (0, *RequestState):
            raise InvalidRequest(f"state {request.state} is none of 0 to 3")
        state = RequestState(request.state) if request.state else None
        client_id = access.listed(current_caller(), request.client_id)
        records = await self._engine.queries.records(client_id, state, _token(request.page_token), size)
        token = str(records[-1].sequence) if len(records) == size else ""
        return relay_service_pb2.ListRequestsResponse(
            records=[convert.record(record) for record in records], next_page_token=token
        )

    async def CancelRequest(  # noqa: N802
        self, request: relay_service_pb2.CancelRequestRequest, context: Context
    ) -> relay_service_pb2.CancelRequestResponse:
        """End a request; one that has ended keeps its status."""
        await self._check_seen(request.request_id)
        await self._engine.completion.cancel(request.request_id)
        record = await self._engine.queries.record(request.request_id)
        return relay_service_pb2.CancelRequestResponse(record=convert.record(record))

    async def WatchProgress(  # noqa: N802
        self, request: relay_service_pb2.WatchProgressRequest, context: Context
    ) -> AsyncIterator[relay_service_pb2.WatchProgressResponse]:
        """State and progress until FINISHED."""
        await self._check_seen(request.request_id)
        with self._engine.quotas.stream(current_caller()):
            async with aclosing(self._engine.queries.watch(request.request_id)) as changes:
                async for state, progress in changes:
                    yield relay_service_pb2.WatchProgressResponse(
                        state=state.value,  # type: ignore[arg-type]
                        progress=convert.progress(progress),
                    )

    async def SubscribeNotifications(  # noqa: N802
        self, request: relay_service_pb2.SubscribeNotificationsRequest, context: Context
    ) -> AsyncIterator[relay_service_pb2.SubscribeNotificationsResponse]:
        """A topic's log from a cursor on, without an end."""
        after = min(request.after_cursor, MAX_TIME_NS)  # SQLite's integers end there, cursors long before
        caller = current_caller()
        form, _, name = request.topic.partition(":")
        if form == "RESPONSE":
            access.listed(caller, name)
        elif form == "HISTORY_READY":
            await self._check_seen(name)
        with self._engine.quotas.stream(caller):
            async with aclosing(self._engine.queries.notifications(request.topic, after)) as found:
                async for notification in found:
                    if access.sees(caller, notification.submission):  # an id may come back once it is forgotten
                        yield convert.notification(notification)

    async def GetCatalog(  # noqa: N802
        self, request: relay_service_pb2.GetCatalogRequest, context: Context
    ) -> relay_service_pb2.GetCatalogResponse:
        """Where the tables are."""
        return relay_service_pb2.GetCatalogResponse(
            name=self._catalog.name, properties=self._catalog.public_properties()
        )

    async def ListMarkets(  # noqa: N802
        self, request: relay_service_pb2.ListMarketsRequest, context: Context
    ) -> relay_service_pb2.ListMarketsResponse:
        """An exchange's markets."""
        return convert.markets(await self._markets.listed(request.exchange))

    async def FetchOhlc(  # noqa: N802
        self, request: ingest.OHLCRequest, context: Context
    ) -> AsyncIterator[ingest.Response]:
        """The older form: the rows themselves, once the request has ended."""
        caller = current_caller()
        submission = access.signed(caller, convert.older_submission(request))
        with self._engine.quotas.stream(caller):
            async with aclosing(self._answers.pages(submission, caller)) as pages:
                async for page in pages:
                    yield convert.answer_page(request.request_id, page)

    async def GetCoverage(  # noqa: N802
        self, request: relay_service_pb2.GetCoverageRequest, context: Context
    ) -> AsyncIterator[relay_service_pb2.GetCoverageResponse]:
        """What is known of a market; the same for every caller."""
        series, span = self._asked(request)
        with self._engine.quotas.stream(current_caller()):
            found = [convert.coverage_range(each) for each in self._coverage.known(series, span)]
            for first in range(0, len(found) or 1, RANGES_IN_AN_ANSWER):
                yield relay_service_pb2.GetCoverageResponse(ranges=found[first : first + RANGES_IN_AN_ANSWER])
            pages = await self._coverage.pages(series, span) if request.detail else []
            for first in range(0, len(pages), PAGES_IN_AN_ANSWER):
                yield relay_service_pb2.GetCoverageResponse(
                    pages=[convert.coverage_page(*each) for each in pages[first : first + PAGES_IN_AN_ANSWER]]
                )

    async def VerifyCoverage(  # noqa: N802
        self, request: relay_service_pb2.VerifyCoverageRequest, context: Context
    ) -> AsyncIterator[relay_service_pb2.VerifyCoverageResponse]:
        """Progress, then the result."""
        caller, (series, span) = current_caller(), self._asked(request)
        step = Step()
        with self._engine.quotas.stream(caller):
            async with aclosing(self._verifier.check(series, span)) as steps:
                async for step in steps:
                    yield relay_service_pb2.VerifyCoverageResponse(progress=convert.verify_progress(step, series))
            repair = await self._verifier.repair(series, step.finding.lost if request.repair else [], caller)
        result = convert.verify_result(step, series, repair, LONGEST_LIST)
        yield relay_service_pb2.VerifyCoverageResponse(result=result)

    def _asked(
        self, request: relay_service_pb2.GetCoverageRequest | relay_service_pb2.VerifyCoverageRequest
    ) -> tuple[Series, TimeRange]:
        series = Series(request.ticker, request.period_seconds)
        start_ns = request.start_time if request.HasField("start_time") else None
        end_ns = request.end_time if request.HasField("end_time") else None
        return series, requests.check_part(series, start_ns, end_ns, self._engine.venues)

    async def _check_seen(self, request_id: str) -> None:
        """Refuse another's request as one that is not there."""
        if (caller := current_caller()) is not None:
            access.seen(caller, await self._engine.queries.record(request_id))


class IngestorService(ingestor_service_pb2_grpc.IngestorServiceServicer):
    """What ingestors call."""

    def __init__(self, engine: Engine, markets: Instruments) -> None:
        self._engine = engine
        self._markets = markets

    async def ReportPage(  # noqa: N802
        self, request: ingestor_service_pb2.ReportPageRequest, context: Context
    ) -> ingestor_service_pb2.ReportPageResponse:
        """A page that Kafka has."""
        if not request.job_id:
            raise InvalidRequest("job_id is missing")
        span = convert.time_range(request)
        empty = [convert.time_range(part) for part in request.empty]
        current = await self._engine.dispatcher.report_page(request.job_id, span, empty)
        return ingestor_service_pb2.ReportPageResponse(current=current)

    async def ReportMarkets(  # noqa: N802
        self, request: ingestor_service_pb2.ReportMarketsRequest, context: Context
    ) -> ingestor_service_pb2.ReportMarketsResponse:
        """An exchange's markets."""
        await self._markets.report(request.exchange, convert.listed(request))
        return ingestor_service_pb2.ReportMarketsResponse()


class PipelineService(pipeline_service_pb2_grpc.PipelineServiceServicer):
    """What Spark calls."""

    def __init__(self, engine: Engine, metrics: RelayMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def ReportJobs(  # noqa: N802
        self, request: pipeline_service_pb2.ReportJobsRequest, context: Context
    ) -> pipeline_service_pb2.ReportJobsResponse:
        """One micro-batch. The pipeline repeats it until it is answered, so nonsense in it is left out, not refused."""
        pages = self._sane("page", convert.page_result, request.pages)
        finals = self._sane("final", convert.final_result, request.finals)
        snapshot_id = request.snapshot_id if request.HasField("snapshot_id") else None
        await self._engine.dispatcher.report_jobs(snapshot_id, pages, finals)
        return pipeline_service_pb2.ReportJobsResponse()

    def _sane(self, kind: str, parse: Callable[[M], V], messages: Iterable[M]) -> list[V]:
        parsed = []
        for message in messages:
            try:
                parsed.append(parse(message))
            except InvalidRequest as error:
                self._metrics.ignored.labels(kind).inc()
                log.error("part of a pipeline report ignored", part=kind, error=str(error))
        return parsed


def _token(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"page_token {text[:32]!r} is none of ours")
    return int(text)


def register(
    server: grpc.aio.Server,
    engine: Engine,
    answers: Answers,
    markets: Instruments,
    ledger: CoverageQueries,
    verifier: Verifier,
    metrics: RelayMetrics,
    catalog: CatalogSettings,
) -> Sequence[str]:
    """Add the three services; returns their names."""
    relay = RelayService(engine, answers, markets, ledger, verifier, metrics, catalog)
    relay_service_pb2_grpc.add_RelayServiceServicer_to_server(relay, server)
    ingestor_service_pb2_grpc.add_IngestorServiceServicer_to_server(IngestorService(engine, markets), server)
    pipeline_service_pb2_grpc.add_PipelineServiceServicer_to_server(PipelineService(engine, metrics), server)
    return [f"dexorder.relay.v1.{name}" for name in ("RelayService", "IngestorService", "PipelineService")]
