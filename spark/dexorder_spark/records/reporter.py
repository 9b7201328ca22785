"""Reports to the relay: a micro-batch in parts below the message limit, each repeated until the relay answers OK."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from dexorder_common.model.history import IssuedDispatch, PageResult
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import code_of
from dexorder_common.rpc.history_messages import encode_page_result
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from dexorder_spark.records.relay_client import CALL_TIMEOUT_S, RelayClient

MAX_REPORT_BYTES = 1024 * 1024
"""Largest size of one message; the relay accepts four times as much by default."""


@dataclass(frozen=True)
class FinalReport:
    """A final record; ``status`` is a DataResponse.ResponseStatus, possibly one that this version does not know."""

    dispatch_id: str
    status: int
    error_message: str | None
    total_records: int


class BatchReporter(Protocol):
    """Calls of the relay that the pipeline makes. Both may block while the relay is unavailable."""

    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return the issued ones of these dispatches, by id."""

    def report(self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]) -> None:
        """Report one batch, which is durable there when this returns; repeating a report changes nothing."""


def named_snapshots(address: str, since_ns: int) -> dict[int, int]:
    """Ask the relay which snapshots notifications have named since a time, and when last; RpcError if it is away."""
    with open_sync_channel(address) as channel:
        stub, found = rpc.PipelineServiceStub(channel), dict[int, int]()
        request = pb.ListNamedSnapshotsRequest(since_ns=since_ns, page_size=1_000)
        while True:
            answer = stub.ListNamedSnapshots(request, timeout=CALL_TIMEOUT_S)
            found |= {each.snapshot_id: each.named_ns for each in answer.snapshots}
            request.page_token = answer.next_page_token
            if not request.page_token:
                return found


class RelayReporter(RelayClient):
    """The relay's PipelineService for a table's query."""

    def __init__(
        self, address: str, stop: threading.Event, on_attempt: Callable[[int, str], None] = lambda failed, code: None
    ) -> None:
        """Open a channel to the relay.

        Args:
            on_attempt: Called after each failed attempt with the number of failures so far and the status' name; at
                the end with 0 and OK.
        """
        super().__init__(address, stop, "the batch", on_attempt)
        self._on_attempt = on_attempt

    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Ask for dispatches until every part is answered OK; Stopped if ``stop`` is set first."""
        found = super().describe(dispatch_ids)
        self._on_attempt(0, "OK")
        return found

    def report(self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]) -> None:
        """Send a report in parts, each until it is answered OK; Stopped if ``stop`` is set first."""
        parts = split_report(to_request(snapshot_id, pages, finals), MAX_REPORT_BYTES)
        for error in self.send(self.stub.ReportJobs, parts, halve):
            self._on_attempt(1, code_of(error).name)
        self._on_attempt(0, "OK")


def to_request(
    snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]
) -> pb.ReportJobsRequest:
    """Return the message for a batch."""
    return pb.ReportJobsRequest(
        snapshot_id=snapshot_id,
        pages=map(encode_page_result, pages),
        finals=[
            pb.FinalResult(
                job_id=f.dispatch_id,
                status=f.status,  # type: ignore[arg-type]
                error_message=f.error_message,
                total_records=f.total_records,
            )
            for f in finals
        ],
    )


def split_report(report: pb.ReportJobsRequest, max_bytes: int) -> list[pb.ReportJobsRequest]:
    """Return parts of at most ``max_bytes``, or of one page or final; pages before finals, all in order.

    There is at least one part, as also a report without pages names a snapshot.
    """
    if report.ByteSize() <= max_bytes:
        return [report]
    return [each for half in halve(report) for each in split_report(half, max_bytes)] or [report]


def halve(report: pb.ReportJobsRequest) -> list[pb.ReportJobsRequest]:
    """Return two reports with the same pages and finals in the same order; none if there is at most one of them."""
    parts: list[pb.PageResult | pb.FinalResult] = [*report.pages, *report.finals]
    middle = len(parts) // 2
    return [_part(report, half) for half in (parts[:middle], parts[middle:])] if middle else []


def _part(report: pb.ReportJobsRequest, parts: Sequence[pb.PageResult | pb.FinalResult]) -> pb.ReportJobsRequest:
    return pb.ReportJobsRequest(
        snapshot_id=report.snapshot_id if report.HasField("snapshot_id") else None,
        pages=[part for part in parts if isinstance(part, pb.PageResult)],
        finals=[part for part in parts if isinstance(part, pb.FinalResult)],
    )
