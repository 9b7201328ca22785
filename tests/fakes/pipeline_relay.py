"""Fake relay for the Spark driver: accepts reports, refuses them, or delays its answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc

from dexorder_common.model.udf import UdfRegistration
from dexorder_common.rpc.history_messages import encode_issued_dispatch
from dexorder_common.rpc.udf_messages import encode_registration
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from dexorder_protos.dexorder.relay.v1.common_pb2 import Cursor
from tests.rig.dispatches import issued

_MAX_DELAY_SECONDS = 600.0


class PipelineRelay(rpc.PipelineServiceServicer):
    """Answers reports with OK, with ``refusal``, or not before a delay ends.

    Attributes:
        reports: Reports that were answered with OK.
        waiting: Set once a report waits for its answer.
        udfs: What SyncUdfs answers.
        synced: The last report of SyncUdfs, of all its parts.
        udf_lines: Lines of all requests of SyncUdfs by UDF.
    """

    def __init__(self) -> None:
        self.refusal: grpc.StatusCode | None = None
        self.reports: list[pb.ReportJobsRequest] = []
        self.waiting = threading.Event()
        self.udfs: list[UdfRegistration] = []
        self.synced = pb.SyncUdfsRequest()
        self.udf_lines: dict[str, list[str]] = {}
        self.udfs_in_a_page = 2
        self._parts: list[pb.SyncUdfsRequest] = []
        self._free = threading.Event()
        self._free.set()

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Answer no report before the block ends; ``waiting`` is set by the first one."""
        self.waiting.clear()
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def ReportJobs(self, request: pb.ReportJobsRequest, context: Any) -> pb.ReportJobsResponse:
        if not self._free.is_set():
            self.waiting.set()
            self._free.wait(_MAX_DELAY_SECONDS)
        if self.refusal:
            context.abort(self.refusal, "as the test says")
        self.reports.append(request)
        return pb.ReportJobsResponse()

    def DescribeDispatches(self, request: pb.DescribeDispatchesRequest, context: Any) -> pb.DescribeDispatchesResponse:
        return pb.DescribeDispatchesResponse(dispatches=map(encode_issued_dispatch, issued(request.job_ids).values()))

    def ListNamedSnapshots(self, request: pb.ListNamedSnapshotsRequest, context: Any) -> pb.ListNamedSnapshotsResponse:
        return pb.ListNamedSnapshotsResponse()

    def WatchTriggers(self, request: pb.WatchTriggersRequest, context: Any) -> Iterator[pb.WatchTriggersResponse]:
        yield pb.WatchTriggersResponse(cursor=Cursor(epoch="none"))  # there are none

    def ReportTriggerEvents(
        self, request: pb.ReportTriggerEventsRequest, context: Any
    ) -> pb.ReportTriggerEventsResponse:
        return pb.ReportTriggerEventsResponse()

    def SyncUdfs(self, request: pb.SyncUdfsRequest, context: Any) -> pb.SyncUdfsResponse:
        for each in request.logs:
            self.udf_lines.setdefault(each.name, []).extend(line.text for line in each.lines)
        if not request.page_token:
            self._parts = [*self._parts, request] if request.part else [request]
            assert [each.part for each in self._parts] == [*range(len(self._parts))]
            if request.more:
                return pb.SyncUdfsResponse()
            synced = pb.SyncUdfsRequest()
            for part in self._parts:
                synced.MergeFrom(part)
            self.synced = synced
        at, size = int(request.page_token or 0), self.udfs_in_a_page
        token = str(at + size) if at + size < len(self.udfs) else ""
        return pb.SyncUdfsResponse(
            registrations=map(encode_registration, self.udfs[at : at + size]), next_page_token=token
        )


@contextmanager
def served(relay: PipelineRelay) -> Iterator[str]:
    """Serve the relay on a free port; yields host:port."""
    with futures.ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        rpc.add_PipelineServiceServicer_to_server(relay, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
