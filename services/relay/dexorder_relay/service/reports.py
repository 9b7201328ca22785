"""RPCs of ingestors and Spark about jobs of history, and about what else these parts tell the relay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc import history_messages as messages
from dexorder_protos.dexorder.relay.v1 import (
    ingestor_service_pb2,
    pipeline_service_pb2,
)
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.instruments import Instruments
from dexorder_relay.service.udfs import UdfRegistryService

log = structlog.get_logger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
M = TypeVar("M")
V = TypeVar("V")
DISPATCHES_IN_A_CALL = 10_000


@dataclass(frozen=True)
class JobReports:
    """RPCs of ingestors about jobs of history and instruments."""

    engine: RelayEngine
    instruments: Instruments

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
        await self.instruments.report(messages.decode_instruments(request.exchange, request))
        return ingestor_service_pb2.ReportMarketsResponse()


@dataclass(frozen=True)
class PipelineReports:
    """RPCs of Spark about records, dispatches, snapshots and UDFs."""

    engine: RelayEngine
    udfs: UdfRegistryService

    async def ReportJobs(  # noqa: N802
        self, request: pipeline_service_pb2.ReportJobsRequest, context: Context
    ) -> pipeline_service_pb2.ReportJobsResponse:
        """Apply one micro-batch. The pipeline repeats it until it is answered, so invalid parts are skipped."""
        pages = self._valid("page", messages.decode_page_result, request.pages)
        finals = self._valid("final", messages.decode_final_result, request.finals)
        await self.engine.jobs.report_jobs(pages, finals)
        await self.engine.realtime.landed(pages)
        return pipeline_service_pb2.ReportJobsResponse()

    async def DescribeDispatches(  # noqa: N802
        self, request: pipeline_service_pb2.DescribeDispatchesRequest, context: Context
    ) -> pipeline_service_pb2.DescribeDispatchesResponse:
        """Return the dispatches that were issued under these ids."""
        if len(request.job_ids) > DISPATCHES_IN_A_CALL:
            raise InvalidRequest(f"job_ids has {len(request.job_ids)} ids; at most {DISPATCHES_IN_A_CALL} are allowed")
        found = await self.engine.queries.dispatches(request.job_ids)
        return pipeline_service_pb2.DescribeDispatchesResponse(dispatches=map(messages.encode_issued_dispatch, found))

    async def ListNamedSnapshots(  # noqa: N802
        self, request: pipeline_service_pb2.ListNamedSnapshotsRequest, context: Context
    ) -> pipeline_service_pb2.ListNamedSnapshotsResponse:
        """Return the snapshots that notifications have named since a time."""
        found = await self.engine.queries.named_snapshots(min(request.since, MAX_TIME_NS))
        snapshots = [pipeline_service_pb2.NamedSnapshot(snapshot_id=each, named_at=named) for each, named in found]
        return pipeline_service_pb2.ListNamedSnapshotsResponse(snapshots=snapshots)

    async def SyncUdfs(  # noqa: N802
        self, request: pipeline_service_pb2.SyncUdfsRequest, context: Context
    ) -> pipeline_service_pb2.SyncUdfsResponse:
        """Take what the driver says of its UDFs, and return which are to run."""
        return self.udfs.sync(request)

    def _valid(self, kind: str, decode: Callable[[M], V], parts: Iterable[M]) -> list[V]:
        decoded = []
        for part in parts:
            try:
                decoded.append(decode(part))
            except InvalidRequest as error:
                self.engine.context.metrics.ignored.labels(kind).inc()
                log.error("part of a pipeline report ignored", part=kind, error=str(error))
        return decoded
