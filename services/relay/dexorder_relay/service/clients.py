"""RPCs of the relay: each converts its message, calls the engine and converts the result.

``dexorder_common/rpc/server_interceptor.py`` turns errors into statuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog
from opentelemetry.trace import get_current_span

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import TICKERS
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest, RequestState
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc import history_messages as messages
from dexorder_common.rpc.identity import current_caller
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import (
    ingestor_service_pb2,
    ingestor_service_pb2_grpc,
    pipeline_service_pb2,
    pipeline_service_pb2_grpc,
    relay_service_pb2_grpc,
)
from dexorder_protos.dexorder.relay.v1 import relay_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1.realtime_pb2 import SnapshotTickersRequest
from dexorder_protos.dexorder.relay.v1.rows_pb2 import ReadRowsRequest, ReadRowsResponse
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.reading.fetch_ohlc import OhlcAnswers, Submit
from dexorder_relay.reading.row_stream import RowStreams
from dexorder_relay.requests.instruments import Instruments
from dexorder_relay.requests.queries import CoverageQueries
from dexorder_relay.service.paging import page_size, read_token
from dexorder_relay.service.realtime import RealtimeCalls, RealtimeReports
from dexorder_relay.service.triggers import TriggerCalls, TriggerReports
from dexorder_relay.service.udfs import UDFS, UdfRegistryService
from dexorder_relay.state.request import check_part, check_rows
from dexorder_relay.triggers.backtest import Backtests
from dexorder_relay.verification.verification import VerificationState, Verifier

log = structlog.get_logger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
M = TypeVar("M")
V = TypeVar("V")
RANGES_IN_AN_ANSWER, PAGES_IN_AN_ANSWER = 10_000, 1_000
DISPATCHES_IN_A_CALL = 10_000


@dataclass
class RelayService(RealtimeCalls, TriggerCalls, relay_service_pb2_grpc.RelayServiceServicer):
    """RPCs for clients."""

    engine: RelayEngine
    answers: OhlcAnswers
    instruments: Instruments
    rows: RowStreams
    coverage: CoverageQueries
    verifier: Verifier
    udfs: UdfRegistryService
    metrics: RelayMetrics
    catalog: CatalogSettings
    backtests: Backtests

    async def SubmitHistorical(  # noqa: N802
        self, request: ingest.SubmitHistoricalRequest, context: Context
    ) -> ingest.SubmitResponse:
        """Accept a request; an invalid field is status INVALID in the answer, not a gRPC error."""
        submit = self.engine.submitter.submit
        return await self._submit(request.request_id, lambda: messages.decode_request(request), submit)

    async def RefreshHistorical(self, request: pb.RefreshHistoricalRequest, context: Context) -> ingest.SubmitResponse:  # noqa: N802
        """Accept a request that fetches its whole range again."""
        given, submit = request.request, self.engine.submitter.submit
        return await self._submit(given.request_id, lambda: messages.decode_request(given, refresh=True), submit)

    async def SnapshotTickers(self, request: SnapshotTickersRequest, context: Context) -> ingest.SubmitResponse:  # noqa: N802
        """Accept a request for a snapshot of all tickers of an exchange."""
        wanted = HistoryRequest.of_exchange(request.request_id, request.exchange, TICKERS, request.client_id)
        return await self._submit(request.request_id, lambda: wanted, self.engine.submitter.submit_for_exchange)

    async def _submit(
        self, request_id: str, decode: Callable[[], HistoryRequest], submit: Submit
    ) -> ingest.SubmitResponse:
        caller = current_caller()
        answer = ingest.SubmitResponse(request_id=request_id)
        try:
            request = access.signed(caller, decode())
            new = await submit(request, caller)
        except InvalidRequest as error:
            answer.status = ingest.SubmitResponse.INVALID
            answer.error_message = str(error)
        else:
            answer.status = ingest.SubmitResponse.QUEUED if new else ingest.SubmitResponse.DUPLICATE
            answer.notification_topic = request.topics[-1]
        self.metrics.submitted.labels(ingest.SubmitResponse.SubmitStatus.Name(answer.status)).inc()
        return answer

    async def FetchOhlc(self, request: ingest.OHLCRequest, context: Context) -> AsyncIterator[ingest.Response]:  # noqa: N802
        """Submit a request in its older form and stream the rows once it has ended."""
        caller = current_caller()
        submitted = access.signed(caller, messages.decode_request(request))
        with self.engine.quotas.stream(caller):
            async with aclosing(self.answers.pages(submitted, caller)) as pages:
                async for page in pages:
                    yield page

    async def GetRequest(self, request: pb.GetRequestRequest, context: Context) -> pb.GetRequestResponse:  # noqa: N802
        """Return one record."""
        record = access.seen(current_caller(), await self.engine.queries.record(request.request_id))
        return pb.GetRequestResponse(record=messages.encode_record(record))

    async def ListRequests(self, request: pb.ListRequestsRequest, context: Context) -> pb.ListRequestsResponse:  # noqa: N802
        """Return a page of records; the token is the sequence number of its last one."""
        size = page_size(request.page_size)
        if not 0 <= request.state < len(RequestState):
            raise InvalidRequest(f"state {request.state} is not one of 0 to 3")
        state = RequestState.from_number(request.state) if request.state else None
        client_id = access.listed(current_caller(), request.client_id)
        records = await self.engine.queries.records(client_id, state, read_token(request.page_token), size)
        token = str(records[-1].sequence) if len(records) == size else ""
        return pb.ListRequestsResponse(records=map(messages.encode_record, records), next_page_token=token)

    async def CancelRequest(self, request: pb.CancelRequestRequest, context: Context) -> pb.CancelRequestResponse:  # noqa: N802
        """End a request; one that has ended keeps its status."""
        await self._check_seen(request.request_id)
        access.check_may_cancel(current_caller(), (await self.engine.queries.record(request.request_id)).request)
        await self.engine.completion.cancel(request.request_id)
        record = await self.engine.queries.record(request.request_id)
        return pb.CancelRequestResponse(record=messages.encode_record(record))

    async def WatchProgress(  # noqa: N802
        self, request: pb.WatchProgressRequest, context: Context
    ) -> AsyncIterator[pb.WatchProgressResponse]:
        """Stream state and progress until FINISHED."""
        await self._check_seen(request.request_id)
        with self.engine.quotas.stream(current_caller()):
            async with aclosing(self.engine.queries.watch(request.request_id)) as changes:
                async for progress in changes:
                    yield pb.WatchProgressResponse(
                        state=messages.encode_state(progress.state), progress=messages.encode_progress(progress)
                    )

    async def SubscribeNotifications(  # noqa: N802
        self, request: pb.SubscribeNotificationsRequest, context: Context
    ) -> AsyncIterator[pb.SubscribeNotificationsResponse]:
        """Stream a topic's notifications after a cursor, without end."""
        after = min(request.after_cursor, MAX_TIME_NS)  # SQLite's largest integer; cursors stay far below
        caller = current_caller()
        form, _, name = request.topic.partition(":")
        if form == "RESPONSE":
            access.listed(caller, name)
        elif form == "HISTORY_READY":
            await self._check_seen(name)
        with self.engine.quotas.stream(caller):
            async with aclosing(self.engine.queries.notifications(request.topic, after)) as found:
                async for notification in found:
                    if access.sees(caller, notification.request):  # a forgotten id may be used by another client
                        note = {"dexorder.request_id": notification.request_id}
                        get_current_span().add_event("notification sent", note)
                        yield messages.encode_notification(notification)

    async def _check_seen(self, request_id: str) -> None:
        """Raise NotFound for a request of another client."""
        if (caller := current_caller()) is not None:
            access.seen(caller, await self.engine.queries.record(request_id))

    async def GetCatalog(self, request: pb.GetCatalogRequest, context: Context) -> pb.GetCatalogResponse:  # noqa: N802
        """Return name and properties of the Iceberg catalog."""
        return pb.GetCatalogResponse(name=self.catalog.name, properties=self.catalog.public_properties())

    async def ListMarkets(self, request: pb.ListMarketsRequest, context: Context) -> pb.ListMarketsResponse:  # noqa: N802
        """Return the instruments of an exchange."""
        return messages.encode_instruments(await self.instruments.listed(request.exchange))

    async def GetCoverage(  # noqa: N802
        self, request: pb.GetCoverageRequest, context: Context
    ) -> AsyncIterator[pb.GetCoverageResponse]:
        """Stream the coverage of a series, which is the same for every caller."""
        series, span = self._part(request, request.dataset, without_periods=True)
        with self.engine.quotas.stream(current_caller()):
            found = list(map(messages.encode_coverage_range, self.coverage.known(series, span)))
            for first in range(0, len(found) or 1, RANGES_IN_AN_ANSWER):
                yield pb.GetCoverageResponse(ranges=found[first : first + RANGES_IN_AN_ANSWER])
            pages = await self.coverage.pages(series, span) if request.detail else []
            for first in range(0, len(pages), PAGES_IN_AN_ANSWER):
                yield pb.GetCoverageResponse(
                    pages=map(messages.encode_coverage_page, pages[first : first + PAGES_IN_AN_ANSWER])
                )

    async def ReadRows(self, request: ReadRowsRequest, context: Context) -> AsyncIterator[ReadRowsResponse]:  # noqa: N802
        """Stream the rows of a series, which are the same for every caller."""
        series = Series.decode(request.ticker, request.period_seconds, request.dataset)
        span = check_rows(series, *_ends(request), self.engine.venues)
        snapshot_id = request.snapshot_id if request.HasField("snapshot_id") else None
        with self.engine.quotas.stream(current_caller()):
            async with aclosing(self.rows.messages(series, span, snapshot_id)) as messages:
                async for message in messages:
                    yield message

    async def VerifyCoverage(  # noqa: N802
        self, request: pb.VerifyCoverageRequest, context: Context
    ) -> AsyncIterator[pb.VerifyCoverageResponse]:
        """Stream the progress of a verification, then its result."""
        caller, (series, span) = current_caller(), self._part(request)
        current = VerificationState(series)
        with self.engine.quotas.stream(caller):
            run = self.verifier.run(series, span, caller, values=request.values, repair=request.repair)
            async with aclosing(run) as states:
                async for current in states:
                    yield messages.encode_verification_progress(current.progress())
        yield messages.encode_verification(current.result())

    def _part(
        self,
        request: pb.GetCoverageRequest | pb.VerifyCoverageRequest,
        dataset: str = "",
        *,
        without_periods: bool = False,
    ) -> tuple[Series, TimeRange]:
        series = Series.decode(request.ticker, request.period_seconds, dataset)
        return series, check_part(series, *_ends(request), self.engine.venues, without_periods=without_periods)


def _ends(
    request: pb.GetCoverageRequest | pb.VerifyCoverageRequest | ReadRowsRequest,
) -> tuple[int | None, int | None]:
    start_ns = request.start_time if request.HasField("start_time") else None
    return start_ns, request.end_time if request.HasField("end_time") else None


class IngestorService(RealtimeReports, ingestor_service_pb2_grpc.IngestorServiceServicer):
    """RPCs for ingestors."""

    def __init__(self, engine: RelayEngine, instruments: Instruments) -> None:
        self.engine = engine
        self._instruments = instruments

    async def ReportPage(  # noqa: N802
        self, request: ingestor_service_pb2.ReportPageRequest, context: Context
    ) -> ingestor_service_pb2.ReportPageResponse:
        """Record a page that Kafka has acknowledged."""
        if not request.job_id:
            raise InvalidRequest("job_id is missing")
        span, empty = TimeRange(request.start_time, request.end_time), messages.decode_ranges(request.empty)
        current = await self.engine.jobs.report_page(request.job_id, span, empty, request.calls)
        return ingestor_service_pb2.ReportPageResponse(current=current)

    async def ReportDelay(  # noqa: N802
        self, request: ingestor_service_pb2.ReportDelayRequest, context: Context
    ) -> ingestor_service_pb2.ReportDelayResponse:
        """Keep what holds up a dispatch."""
        if not request.job_id:
            raise InvalidRequest("job_id is missing")
        delay = messages.decode_delay(request.delay) if request.HasField("delay") else None
        current = self.engine.jobs.report_delay(request.job_id, delay)
        return ingestor_service_pb2.ReportDelayResponse(current=current)

    async def ReportMarkets(  # noqa: N802
        self, request: ingestor_service_pb2.ReportMarketsRequest, context: Context
    ) -> ingestor_service_pb2.ReportMarketsResponse:
        """Store the instruments of an exchange."""
        await self._instruments.report(messages.decode_instruments(request.exchange, request))
        return ingestor_service_pb2.ReportMarketsResponse()


class PipelineService(TriggerReports, pipeline_service_pb2_grpc.PipelineServiceServicer):
    """RPCs for Spark."""

    def __init__(self, engine: RelayEngine, udfs: UdfRegistryService, metrics: RelayMetrics) -> None:
        self._engine = engine
        self._udfs = udfs
        self._metrics = metrics

    async def ReportJobs(  # noqa: N802
        self, request: pipeline_service_pb2.ReportJobsRequest, context: Context
    ) -> pipeline_service_pb2.ReportJobsResponse:
        """Apply one micro-batch. The pipeline repeats it until it is answered, so invalid parts are skipped."""
        pages = self._valid("page", messages.decode_page_result, request.pages)
        finals = self._valid("final", messages.decode_final_result, request.finals)
        await self._engine.jobs.report_jobs(pages, finals)
        await self._engine.realtime.landed(pages)
        return pipeline_service_pb2.ReportJobsResponse()

    async def DescribeDispatches(  # noqa: N802
        self, request: pipeline_service_pb2.DescribeDispatchesRequest, context: Context
    ) -> pipeline_service_pb2.DescribeDispatchesResponse:
        """Return the dispatches that were issued under these ids."""
        if len(request.job_ids) > DISPATCHES_IN_A_CALL:
            raise InvalidRequest(f"job_ids has {len(request.job_ids)} ids; at most {DISPATCHES_IN_A_CALL} are allowed")
        found = await self._engine.queries.dispatches(request.job_ids)
        return pipeline_service_pb2.DescribeDispatchesResponse(dispatches=map(messages.encode_issued_dispatch, found))

    async def ListNamedSnapshots(  # noqa: N802
        self, request: pipeline_service_pb2.ListNamedSnapshotsRequest, context: Context
    ) -> pipeline_service_pb2.ListNamedSnapshotsResponse:
        """Return the snapshots that notifications have named since a time."""
        found = await self._engine.queries.named_snapshots(min(request.since, MAX_TIME_NS))
        snapshots = [pipeline_service_pb2.NamedSnapshot(snapshot_id=each, named_at=named) for each, named in found]
        return pipeline_service_pb2.ListNamedSnapshotsResponse(snapshots=snapshots)

    async def SyncUdfs(  # noqa: N802
        self, request: pipeline_service_pb2.SyncUdfsRequest, context: Context
    ) -> pipeline_service_pb2.SyncUdfsResponse:
        """Take what the driver says of its UDFs, and return which are to run."""
        return self._udfs.sync(request)

    def _valid(self, kind: str, decode: Callable[[M], V], parts: Iterable[M]) -> list[V]:
        decoded = []
        for part in parts:
            try:
                decoded.append(decode(part))
            except InvalidRequest as error:
                self._metrics.ignored.labels(kind).inc()
                log.error("part of a pipeline report ignored", part=kind, error=str(error))
        return decoded


def register(server: grpc.aio.Server, relay: RelayService) -> Sequence[str]:
    """Add the service for clients and those for ingestors and Spark, which share its parts; return their names."""
    ingestor = IngestorService(relay.engine, relay.instruments)
    pipeline = PipelineService(relay.engine, relay.udfs, relay.metrics)
    relay_service_pb2_grpc.add_RelayServiceServicer_to_server(relay, server)
    ingestor_service_pb2_grpc.add_IngestorServiceServicer_to_server(ingestor, server)
    pipeline_service_pb2_grpc.add_PipelineServiceServicer_to_server(pipeline, server)
    udf_registry_service_pb2_grpc.add_UdfRegistryServiceServicer_to_server(relay.udfs, server)
    return [UDFS, *(f"dexorder.relay.v1.{name}" for name in ("RelayService", "IngestorService", "PipelineService"))]
