import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import IssuedDispatch, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.proof import Proof, ProofKind, encode_proofs
from dexorder_common.rpc.history_messages import encode_issued_dispatch
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.records.reporter import (
    MAX_REPORT_BYTES,
    FinalReport,
    RelayReporter,
    split_report,
    to_request,
)
from tests.fakes.pages import TICKER, dispatch_id, span
from tests.fakes.pipeline_relay import PipelineRelay
from tests.series_messages import series

FINAL_MINUTE = encode_proofs([Proof(span(2, 1), ProofKind.TRADE_IDS, 2, 5_000, 5_000)])
"""A final proof of the first of three absent minutes."""
PAGES = [
    PageResult(
        dispatch_id(1), Series(TICKER, 60), span(0, 10), (span(2, 3),), fetched_ns=5_000, rows=7, evidence=FINAL_MINUTE
    ),
    PageResult(dispatch_id(1), Series(TICKER, 60), span(10, 10), refused="not a DataResponse"),
]
FINALS = [FinalReport(dispatch_id(1), ingest_pb2.DataResponse.ERROR, "gone", 7)]


REFUSED_TICKER = "REFUSED/USDT.SIM"
MAX_MESSAGE_BYTES = 64 * 1024


class Relay(PipelineRelay):
    """Fails so many calls, then answers, but refuses every message with a page of ``REFUSED_TICKER``."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.requests: list[pb.ReportJobsRequest] = []
        self.called = threading.Event()

    def fail(self, context: grpc.ServicerContext) -> None:
        self.called.set()
        if self.failures:
            self.failures -= 1
            context.abort(grpc.StatusCode.INTERNAL if self.failures % 2 else grpc.StatusCode.UNAVAILABLE, "not now")

    def DescribeDispatches(
        self, request: pb.DescribeDispatchesRequest, context: grpc.ServicerContext
    ) -> pb.DescribeDispatchesResponse:
        """Know the dispatches with even numbers."""
        self.fail(context)
        assert len(request.job_ids) <= 1_000
        known = [job_id for job_id in request.job_ids if number_of(job_id) % 2 == 0]
        issued = [IssuedDispatch(job_id, Series(TICKER, 60), span(0, number_of(job_id))) for job_id in known]
        return pb.DescribeDispatchesResponse(dispatches=map(encode_issued_dispatch, issued))

    def ReportJobs(self, request: pb.ReportJobsRequest, context: grpc.ServicerContext) -> pb.ReportJobsResponse:
        self.fail(context)
        if any(page.series.ticker == REFUSED_TICKER for page in request.pages):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "ticker")
        self.requests.append(request)
        return pb.ReportJobsResponse()


@pytest.fixture
def relay() -> Iterator[tuple[Relay, str]]:
    servicer = Relay(failures=2)
    limit = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), options=limit)
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
                job_id=dispatch_id(1),
                series=series(TICKER, 60),
                start_ns=span(0, 10).start_ns,
                end_ns=span(0, 10).end_ns,
                rows=7,
                fetched_ns=5_000,
                empty=[common_pb2.TimeRange(start_ns=span(2, 3).start_ns, end_ns=span(2, 3).end_ns)],
                provisional=[common_pb2.TimeRange(start_ns=span(3, 2).start_ns, end_ns=span(3, 2).end_ns)],
            ),
            pb.PageResult(
                job_id=dispatch_id(1),
                series=series(TICKER, 60),
                start_ns=span(10, 10).start_ns,
                end_ns=span(10, 10).end_ns,
                refused="not a DataResponse",
            ),
        ],
        finals=[
            pb.FinalResult(
                job_id=dispatch_id(1), status=ingest_pb2.DataResponse.ERROR, error_message="gone", total_records=7
            )
        ],
    )
    assert not second.HasField("snapshot_id")


def thin_pages(number: int) -> list[PageResult]:
    holes = tuple(span(minute, 1) for minute in range(0, 500, 2))
    return [
        PageResult(dispatch_id(n + 1), Series(TICKER, 60), span(0, 500), holes, fetched_ns=1, rows=250)
        for n in range(number)
    ]


@given(pages=st.integers(0, 5), finals=st.integers(0, 5), max_bytes=st.integers(1, 20_000))
def test_parts_keep_everything_in_order_with_pages_before_finals(pages: int, finals: int, max_bytes: int) -> None:
    whole = to_request(7, thin_pages(pages), FINALS * finals)
    parts = split_report(whole, max_bytes)
    joined = pb.ReportJobsRequest()
    for part in parts:
        assert part.ByteSize() <= max_bytes or len(part.pages) + len(part.finals) <= 1
        assert not (joined.finals and part.pages)
        joined.MergeFrom(part)
    assert joined == whole
    assert parts


def test_a_report_above_the_relays_limit_arrives_in_parts(relay: tuple[Relay, str]) -> None:
    servicer, address = relay
    attempts: list[tuple[int, str]] = []
    reporter = RelayReporter(address, threading.Event(), lambda failed, code: attempts.append((failed, code)))
    pages = thin_pages(70)
    assert MAX_MESSAGE_BYTES < to_request(1, pages, FINALS).ByteSize() < MAX_REPORT_BYTES
    reporter.report(1, pages, FINALS)
    reporter.close()
    assert [page.job_id for each in servicer.requests for page in each.pages] == [page.dispatch_id for page in pages]
    assert [len(each.finals) for each in servicer.requests][-1] == 1
    assert attempts[-1] == (0, "OK")


def test_a_page_that_the_relay_refuses_does_not_hold_up_the_others(relay: tuple[Relay, str]) -> None:
    servicer, address = relay
    attempts: list[tuple[int, str]] = []
    reporter = RelayReporter(address, threading.Event(), lambda failed, code: attempts.append((failed, code)))
    bad = PageResult(dispatch_id(9), Series(REFUSED_TICKER, 60), span(0, 10), fetched_ns=1, rows=10)
    good = thin_pages(10)
    reporter.report(1, [*good[:3], bad, *good[3:]], FINALS)
    reporter.close()
    assert [page.job_id for each in servicer.requests for page in each.pages] == [page.dispatch_id for page in good]
    assert [final.job_id for each in servicer.requests for final in each.finals] == [dispatch_id(1)]
    assert (1, "INVALID_ARGUMENT") in attempts
    assert attempts[-1] == (0, "OK")


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


def test_dispatches_are_described_in_parts_until_every_part_is_answered(relay: tuple[Relay, str]) -> None:
    servicer, address = relay
    servicer.failures = 3
    attempts: list[int] = []
    reporter = RelayReporter(address, threading.Event(), lambda failed, code: attempts.append(failed))
    found = reporter.describe([dispatch_id(number) for number in range(1, 2_502)])
    reporter.close()
    assert found == {
        dispatch_id(number): IssuedDispatch(dispatch_id(number), Series(TICKER, 60), span(0, number))
        for number in range(2, 2_502, 2)
    }
    assert attempts == [1, 2, 3, 0], "as for a report, the failures are counted"
