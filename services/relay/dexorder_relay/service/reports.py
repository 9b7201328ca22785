"""RPCs of ingestors and Spark about jobs of history, and their other reports to the relay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc import history_messages as messages
from dexorder_common.rpc.common_messages import decode_ranges
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.queries import page_size, read_token

log = structlog.get_logger(__name__)
M = TypeVar("M")
V = TypeVar("V")


@dataclass(frozen=True)
class JobReports:
    """RPCs of ingestors about jobs of history and instruments."""

    engine: RelayEngine

    async def ReportPage(self, request: ipb.ReportPageRequest, _: object) -> ipb.ReportPageResponse:
        """Record a page that Kafka has acknowledged."""
        span, empty = TimeRange(request.start_ns, request.end_ns), decode_ranges(request.empty)
        current = await self.engine.jobs.report_page(request.job_id, span, empty, request.calls)
        return ipb.ReportPageResponse(current=current)

    async def ReportDelay(self, request: ipb.ReportDelayRequest, _: object) -> ipb.ReportDelayResponse:
        """Keep the reason for the delay of a dispatch."""
        delay = messages.decode_delay(request.delay) if request.HasField("delay") else None
        current = self.engine.jobs.report_delay(request.job_id, delay)
        return ipb.ReportDelayResponse(current=current)

    async def ReportInstruments(
        self, request: ipb.ReportInstrumentsRequest, _: object
    ) -> ipb.ReportInstrumentsResponse:
        """Store the instruments of an exchange."""
        await self.engine.instruments.report(messages.decode_instruments(request.exchange, request))
        return ipb.ReportInstrumentsResponse()


@dataclass(frozen=True)
class PipelineReports:
    """RPCs of Spark about records, dispatches and snapshots."""

    engine: RelayEngine

    async def ReportJobs(self, request: ppb.ReportJobsRequest, _: object) -> ppb.ReportJobsResponse:
        """Apply one micro-batch. The pipeline repeats it until it is answered, so invalid parts are skipped."""
        pages = self._valid("page", messages.decode_page_result, request.pages)
        finals = self._valid("final", messages.decode_final_result, request.finals)
        await self.engine.jobs.report_jobs(pages, finals)
        await self.engine.realtime.landed(pages)
        return ppb.ReportJobsResponse()

    async def DescribeDispatches(
        self, request: ppb.DescribeDispatchesRequest, _: object
    ) -> ppb.DescribeDispatchesResponse:
        """Return the dispatches that were issued under these ids."""
        found = await self.engine.context.store.dispatches(request.job_ids)
        return ppb.DescribeDispatchesResponse(dispatches=map(messages.encode_issued_dispatch, found))

    async def ListNamedSnapshots(
        self, request: ppb.ListNamedSnapshotsRequest, _: object
    ) -> ppb.ListNamedSnapshotsResponse:
        """Return a page of the snapshots that notifications have named since a time; the token is the last id."""
        since_ns, size = min(request.since_ns, MAX_TIME_NS), page_size(request.page_size)
        found = await self.engine.context.store.named_snapshots(since_ns, read_token(request.page_token), size)
        return ppb.ListNamedSnapshotsResponse(
            snapshots=[ppb.NamedSnapshot(snapshot_id=each, named_ns=named) for each, named in found],
            next_page_token=str(found[-1][0]) if len(found) == size else "",
        )

    def _valid(self, kind: str, decode: Callable[[M], V], parts: Iterable[M]) -> list[V]:
        decoded = []
        for part in parts:
            try:
                decoded.append(decode(part))
            except InvalidRequest as error:
                self.engine.context.metrics.ignored.labels(kind).inc()
                log.error("part of a pipeline report ignored", part=kind, error=str(error))
        return decoded
