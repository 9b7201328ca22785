"""SIGSTOP of an ingestor with jobs: another one takes them over, and its late messages change nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import zmq

from dexorder_common.kafka.page_record import final_value, page_value
from dexorder_common.messaging.frames import encode_work
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ingestor_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as ingestor_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from tests.nightly.backfills import FIRST_MINUTE, UNUSED_MINUTE, historical, submit
from tests.nightly.watching import RelayFile, Unacked
from tests.paths import ROOT
from tests.rig.oracle import assert_equal, minutes, oracle
from tests.rig.processes import free_ports, metric_at, until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite

NOT_CURRENT = 'dexorder_relay_frames_dropped_total{reason="not_current"}'
PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class Seen:
    """Result of a campaign.

    Attributes:
        held: Jobs that the ingestor held when it was stopped.
        reassigned_s: Seconds until another one worked on all of them.
        stopped_s: Seconds for which it was stopped.
        late_frames: Frames of its dispatches that the relay dropped, made up ones included.
        late_reports: Page reports answered "not current".
    """

    held: int
    rows: int
    reassigned_s: float
    stopped_s: float
    late_frames: int
    late_reports: int


def stop_and_continue(suite: Suite, symbol: str, *, first_minute: int, candles: int, stop_seconds: float) -> Seen:
    """Run as many requests as two ingestors have slots, and stop one ingestor in the middle.

    Args:
        candles: Candles of each of the eight requests; one job each.
        stop_seconds: Shortest time of the stop, which lasts until all requests have ended.
    """
    file = RelayFile(suite)
    with second_ingestor(suite) as second:
        spans = {f"stop-{uuid.uuid4().hex}": minutes(first_minute + i * candles, candles) for i in range(8)}
        for request_id, span in spans.items():
            submit(suite, historical(request_id, symbol, span))

        def held() -> list[Unacked]:
            return [job for job in file.held().values() if job.job_id in second.log.read_text() and job.in_the_middle]

        until(lambda: bool(held()), PATIENCE_SECONDS, suite.logs)
        jobs = held()
        second.process.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        until(lambda: all(_runs_elsewhere(file, job) for job in jobs), PATIENCE_SECONDS, suite.logs)
        reassigned_s = time.monotonic() - stopped_s
        before = {request_id: suite.ended(request_id) for request_id in spans}
        time.sleep(max(0.0, stop_seconds - (time.monotonic() - stopped_s)))
        stop_s = time.monotonic() - stopped_s

        dropped = suite.metric("relay", NOT_CURRENT)
        second.process.send_signal(signal.SIGCONT)
        until(lambda: second.jobs_given_up() >= len(jobs), PATIENCE_SECONDS, second.log.read_text)
        late_reports = int(second.metric('dexorder_ingestor_dispatches_total{outcome="fenced",venue="SIM"}'))
        for job in jobs:
            assert not report_page(suite, job), "a page report of a dispatch that was taken away"
            produce_late(suite, job, symbol)
        complete_late(suite, jobs)
        until(lambda: suite.metric("relay", NOT_CURRENT) >= dropped + 2 * len(jobs), 60, suite.logs)
        late_frames = int(suite.metric("relay", NOT_CURRENT) - dropped)

        # Kafka's partitions are read in order: once this request has ended, Spark has seen all that came late.
        barrier = f"stop-{uuid.uuid4().hex}"
        submit(suite, historical(barrier, symbol, minutes(first_minute + 8 * candles, 100)))
        suite.ended(barrier)
    for request_id, record in before.items():
        assert suite.record(request_id) == record, "a final status changed"
        assert (record.status, record.row_count) == (RequestStatus.OK, candles)
        assert suite.notifications(request_id, 1) == ["OK"]
    whole = minutes(first_minute, 8 * candles + 100)
    assert_equal(suite.rows(f"{symbol}.SIM", 60, whole), oracle(symbol, "1m", whole))
    return Seen(len(jobs), 8 * candles, reassigned_s, stop_s, late_frames, late_reports + len(jobs))


@dataclass(frozen=True)
class Second:
    """A second ingestor."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int

    def metric(self, name: str) -> float:
        return metric_at(f"127.0.0.1:{self.metrics_port}", name)

    def jobs_given_up(self) -> float:
        """Return the dispatches that the ingestor dropped without finishing them."""
        return sum(
            self.metric(f'dexorder_ingestor_dispatches_total{{outcome="{outcome}",venue="SIM"}}')
            for outcome in ("fenced", "handed_back")
        )


@contextmanager
def second_ingestor(suite: Suite) -> Iterator[Second]:
    """Start an ingestor with the settings of the suite's own; stop it at the end."""
    metrics_port, log = free_ports(1)[0], suite.directory / "logs" / f"second-{uuid.uuid4().hex[:6]}.log"
    at = f"127.0.0.1:{suite.base_port}"
    settings = {
        "LISTEN": "127.0.0.1:0",
        "METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
        "RELAY": at,
        "BROKER": f"tcp://127.0.0.1:{suite.base_port + 5}",
        "GATEWAY": suite.address("gateway"),
        "RATE_LIMIT_DIR": str(suite.directory / "budgets"),
    }
    environment = os.environ | suite.environment | {f"DEXORDER_INGESTOR_{k}": v for k, v in settings.items()}
    environment["DEXORDER_EXCHANGES"] = str(suite.directory / "exchanges.yaml")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dexorder_ingestor"], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
    try:
        until(lambda: "connected to the broker" in log.read_text(), 60, log.read_text)
        yield Second(process, log, metrics_port)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()[-3_000:]
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def report_page(suite: Suite, job: Unacked) -> bool:
    """Report a page that nobody has settled; return whether the dispatch is current."""
    request = ingestor_pb.ReportPageRequest(
        job_id=job.job_id, start_ns=job.end_ns - 60 * 10**9, end_ns=job.end_ns, candles=1
    )
    with open_sync_channel(suite.relay) as channel:
        return bool(ingestor_rpc.IngestorServiceStub(channel).ReportPage(request, timeout=10).current)


def produce_late(suite: Suite, job: Unacked, symbol: str) -> None:
    """Produce a page and then an ERROR final of a fenced dispatch, as late as possible."""
    span = TimeRange(job.start_ns, job.start_ns + 100 * 60 * 10**9)
    page = PageHeaders(Kind.PAGE, job.ticker, 60, job.job_id, 0, span, time.time_ns(), (), "late")
    final = replace(page, kind=Kind.FINAL, span=TimeRange(job.start_ns, job.end_ns), page=1)
    candles = [
        Candle(row["open_time"] * 1_000, row["open"], row["high"], row["low"], row["close"], row["volume"])
        for row in oracle(symbol, "1m", span).to_pylist()
    ]
    values = {
        page: page_value(job.request_id, candles),
        final: final_value(job.request_id, ingest_pb2.DataResponse.ERROR, 0, "said too late"),
    }
    with open_sync_channel(suite.address("gateway")) as channel:
        for control, value in values.items():
            headers = [pixy_pb.RecordHeader(key=k, value=v.encode()) for k, v in control.encode().items()]
            pixy_rpc.KafkaPixyStub(channel).Produce(
                pixy_pb.ProdRq(topic="dexorder.ohlc", key_value=job.job_id.encode(), message=value, headers=headers),
                timeout=30,
            )


def complete_late(suite: Suite, jobs: list[Unacked]) -> None:
    """Send a heartbeat and a WorkComplete of each fenced dispatch."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 5_000)
        socket.connect(f"tcp://127.0.0.1:{suite.base_port + 5}")
        for job in jobs:
            socket.send_multipart(encode_work(ingest_pb2.WorkHeartbeat(job_id=job.job_id)))
            socket.send_multipart(encode_work(ingest_pb2.WorkComplete(job_id=job.job_id, success=True)))


def _runs_elsewhere(file: RelayFile, job: Unacked) -> bool:
    """Return whether another dispatch has settled further pages."""
    now = file.held().get(job.job)
    return (now is None or now.job_id != job.job_id) and file.ran_on(job, job.settled_ns)


SECONDS = float(os.environ.get("DEXORDER_SOAK_STOP_SECONDS", "90"))
CANDLES = 50_000


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1_200)
def test_a_stopped_ingestor_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running_suite(tmp_path / "state", DEXORDER_SIM_LATENCY_MS="400") as suite:
        started_s = time.monotonic()
        seen = stop_and_continue(suite, "LTC/USDT", first_minute=FIRST_MINUTE, candles=CANDLES, stop_seconds=SECONDS)
    print_campaign(
        f"SIGSTOP of an ingestor for {seen.stopped_s:.0f} s",
        ["jobs held", "worked on by another one", "late frames dropped", "late page reports refused", "result"],
        [
            seen.held,
            f"after {seen.reassigned_s:.1f} s",
            seen.late_frames,
            seen.late_reports,
            f"{seen.rows:,} rows, 0 lost, 0 doubled, one status each",
        ],
        since_s=started_s,
    )
    assert seen.late_reports > seen.held, "its own, and one made up for each job"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_reports_of_an_ingestor_that_was_suspended_change_nothing(smoke_suite: Suite) -> None:
    seen = stop_and_continue(smoke_suite, "LTC/USDT", first_minute=UNUSED_MINUTE, candles=6_000, stop_seconds=8)
    assert seen.late_reports > seen.held, "its own, and a forged one for each job"
