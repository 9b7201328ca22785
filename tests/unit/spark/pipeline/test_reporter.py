import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from services.common.model.history import PageResult
from services.common.model.instrument import Series
from services.gen.dexorder.ingest.v1 import ingest_pb2
from services.gen.dexorder.relay.v1 import pipeline_service_pb2 as pb
from services.gen.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from services.gen.dexorder.relay.v1 import relay_service_pb2
from spark.pipeline.reporter import FinalReport, RelayReporter, Stopped
from tests.fakes.pages import TICKER, span

PAGES = [
    PageResult("job-1", Series(TICKER, 60), span(0, 10), (span(2, 3),), fetched_ns=5_000, rows=7),
    PageResult("job-1", Series(TICKER, 60), span(10, 10), refused="not a DataResponse"),
]
FINALS = [FinalReport("job-1", ingest_pb2.DataResponse.ERROR, "gone", 7)]


class Relay(rpc.PipelineServiceServicer):
    """Fails so many calls, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.requests: list[pb.ReportJobsRequest] = []
        self.called = threading.Event()

    def ReportJobs(self, request: pb.ReportJobsRequest, context: grpc.ServicerContext) -> pb.ReportJobsResponse:
        self.called.set()
        if self.failures:
            self.failures -= 1
            context.abort(grpc.StatusCode.INTERNAL if self.failures % 2 else grpc.StatusCode.UNAVAILABLE, "not now")
        self.requests.append(request)
        return pb.ReportJobsResponse()


@pytest.fixture
def relay() -> Iterator[tuple[Relay, str]]:
    servicer = Relay(failures=2)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    rpc.add_PipelineServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_report_is_repeated_until_it_is_answered(relay: tuple[Relay, str]) -> None:
    servicer, address = relay
    reporter = RelayReporter(address, threading.Event())
    reporter.report(42, PAGES, FINALS)
    reporter.report(None, PAGES[:1], [])
    reporter.close()
    first, second = servicer.requests
    assert first == pb.ReportJobsRequest(
        snapshot_id=42,
        pages=[
            pb.PageResult(
                job_id="job-1",
                ticker=TICKER,
                period_seconds=60,
                start_time=span(0, 10).start_ns,
                end_time=span(0, 10).end_ns,
                rows=7,
                fetched_at=5_000,
                empty=[relay_service_pb2.TimeRange(start_time=span(2, 3).start_ns, end_time=span(2, 3).end_ns)],
            ),
            pb.PageResult(
                job_id="job-1",
                ticker=TICKER,
                period_seconds=60,
                start_time=span(10, 10).start_ns,
                end_time=span(10, 10).end_ns,
                refused="not a DataResponse",
            ),
        ],
        finals=[
            pb.FinalResult(job_id="job-1", status=ingest_pb2.DataResponse.ERROR, error_message="gone", total_records=7)
        ],
    )
    assert not second.HasField("snapshot_id")


def test_stopping_ends_the_wait_for_the_relay(relay: tuple[Relay, str]) -> None:
    servicer, address = relay
    servicer.failures = 1_000_000
    stop = threading.Event()
    reporter = RelayReporter(address, stop)
    stopper = threading.Thread(target=lambda: stop.set() if servicer.called.wait(30) else None)
    stopper.start()
    with pytest.raises(Stopped):
        reporter.report(1, PAGES, [])
    stopper.join()
    reporter.close()
    assert not servicer.requests
