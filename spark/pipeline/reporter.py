"""Results to the relay: one report a micro-batch, repeated until it is answered OK."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog
import tenacity

from services.common.model.errors import SuiteError
from services.common.model.time_range import TimeRange
from services.common.rpc.channel import open_sync_channel
from services.common.rpc.client_retry import code_of, details_of
from services.gen.dexorder.relay.v1 import pipeline_service_pb2 as pb
from services.gen.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from services.gen.dexorder.relay.v1 import relay_service_pb2

log = structlog.get_logger(__name__)
_CALL_TIMEOUT_S = 30.0
_LONGEST_WAIT_S = 2.0


class Stopped(SuiteError):
    """The driver is stopping; the batch is not finished and will be replayed."""


@dataclass(frozen=True)
class PageReport:
    """How one page fared; ``refused`` is the reason, None for a good page; ``fetched_ns`` 0 if that can't be told."""

    job_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    rows: int
    empty: tuple[TimeRange, ...] = ()
    refused: str | None = None
    fetched_ns: int = 0


@dataclass(frozen=True)
class FinalReport:
    """One final record; ``status`` is a DataResponse.ResponseStatus."""

    job_id: str
    status: int
    error_message: str | None
    total_records: int


class Reporter(Protocol):
    """Where reports go. ``report`` returns when they are durable there; repeating one changes nothing."""

    def report(self, snapshot_id: int | None, pages: Sequence[PageReport], finals: Sequence[FinalReport]) -> None:
        """Hand over one batch; may block as long as the receiver is away."""


class RelayReporter:
    """Reports to the relay's PipelineService; waits for it as long as it takes, or until ``stop`` is set."""

    def __init__(
        self, address: str, stop: threading.Event, on_try: Callable[[int, str], None] = lambda failed, code: None
    ) -> None:
        """Take the relay's address.

        Args:
            on_try: Told after each failed try how many failed so far, and the status' name; 0 and OK at the end.
        """
        self._stop = stop
        self._on_try = on_try
        self._channel = open_sync_channel(address)
        self._stub = rpc.PipelineServiceStub(self._channel)

    def report(self, snapshot_id: int | None, pages: Sequence[PageReport], finals: Sequence[FinalReport]) -> None:
        """Repeat the call until it is answered OK.

        Raises:
            Stopped: ``stop`` was set first.
        """
        request = to_request(snapshot_id, pages, finals)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(grpc.RpcError),
            wait=tenacity.wait_exponential_jitter(multiplier=0.1, max=_LONGEST_WAIT_S, jitter=0.2),
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=self._tell,
        )
        try:
            attempts(self._stub.ReportJobs, request, timeout=_CALL_TIMEOUT_S)
        except tenacity.RetryError as error:
            raise Stopped("stopping before the relay has answered the report") from error
        self._on_try(0, "OK")

    def _tell(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        code = code_of(error).name if error else "UNKNOWN"
        details = details_of(error) if error else ""
        log.warning("report not answered; the batch waits", attempt=state.attempt_number, code=code, details=details)
        self._on_try(state.attempt_number, code)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def to_request(
    snapshot_id: int | None, pages: Sequence[PageReport], finals: Sequence[FinalReport]
) -> pb.ReportJobsRequest:
    """The message of a batch."""
    return pb.ReportJobsRequest(
        snapshot_id=snapshot_id,
        pages=[
            pb.PageResult(
                job_id=p.job_id,
                ticker=p.ticker,
                period_seconds=p.period_seconds,
                start_time=p.span.start_ns,
                end_time=p.span.end_ns,
                rows=p.rows,
                refused=p.refused,
                fetched_at=p.fetched_ns or None,
                empty=[relay_service_pb2.TimeRange(start_time=r.start_ns, end_time=r.end_ns) for r in p.empty],
            )
            for p in pages
        ],
        finals=[
            pb.FinalResult(
                job_id=f.job_id,
                status=f.status,  # type: ignore[arg-type]
                error_message=f.error_message,
                total_records=f.total_records,
            )
            for f in finals
        ],
    )
