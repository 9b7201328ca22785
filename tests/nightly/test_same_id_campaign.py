"""One request submitted thousands of times from several processes while the relay is killed: it is planned once."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from dexorder_common.model.history import RequestStatus
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from tests.nightly.backfills import FIRST_MINUTE, UNUSED_MINUTE, historical
from tests.rig.oracle import assert_equal, minutes, oracle
from tests.rig.processes import until
from tests.rig.report import print_campaign
from tests.rig.suite import Suite, running_suite

CLIENTS = 8
ANSWERED = "dexorder_relay_submissions_total"
KLINES = "/api/v3/klines"
PAGE = 1_000
Answers = Counter[tuple[str, str]]
"""Status and topic -> how often."""


@dataclass(frozen=True)
class Seen:
    """Result of a campaign; ``queued`` is 0 if the only such answer was lost in the kill."""

    queued: int
    duplicate: int
    lost: int
    jobs: int
    pages: int
    calls: int


def submit_from_all(suite: Suite, symbol: str, *, first_minute: int, candles: int, submissions: int) -> Seen:
    """Let every client submit its share; kill the relay once a third has been answered."""
    span, request_id = minutes(first_minute, candles), f"same-{uuid.uuid4().hex}"
    request = historical(request_id, symbol, span)
    share = submissions // CLIENTS
    context = multiprocessing.get_context("forkserver")
    with honest_exchange(suite), ProcessPoolExecutor(CLIENTS, mp_context=context) as pool:
        calls = exchange_calls(suite)
        work = [
            pool.submit(submit_again_and_again, suite.relay, request.SerializeToString(), share) for _ in range(CLIENTS)
        ]
        until(lambda: suite.metric("relay", ANSWERED) >= submissions / 3, 120, suite.logs)
        suite.kill_and_wait("relay", 60)
        results = [each.result(timeout=600) for each in work]
        record = suite.ended(request_id)
        calls = exchange_calls(suite) - calls
    answers = sum((each for each, _ in results), Answers())
    statuses = Counter[str]()
    for (status, _), count in answers.items():
        statuses[status] += count
    assert {topic for _, topic in answers} == {f"HISTORY_READY:{request_id}"}, answers
    assert statuses.total() == share * CLIENTS
    lost = sum(each for _, each in results)
    assert statuses["QUEUED"] == 1 or (statuses["QUEUED"] == 0 and lost > 0), statuses
    assert set(statuses) <= {"QUEUED", "DUPLICATE"}, statuses

    assert (record.status, record.row_count) == (RequestStatus.OK, candles)
    assert record.progress.jobs == -(-candles // 50_000), "planned more than once"
    pages = -(-candles // PAGE)
    assert pages <= calls < 2 * pages, f"{calls} calls for {pages} pages"
    assert suite.notifications(request_id, 1) == ["OK"]
    assert_equal(suite.rows(f"{symbol}.SIM", 60, span), oracle(symbol, "1m", span))
    other = historical(request_id, symbol, minutes(first_minute, candles + 1))
    with open_sync_channel(suite.relay) as channel:
        answer = BlockingRelayStubs(channel).history.SubmitHistorical(other, timeout=30).answer
    assert answer.status == ingest_pb2.SubmitResponse.INVALID, answer
    assert request_id in answer.error_message
    return Seen(statuses["QUEUED"], statuses["DUPLICATE"], lost, record.progress.jobs, pages, calls)


def submit_again_and_again(relay: str, message: bytes, times: int) -> tuple[Answers, int]:
    """Submit a number of times; return the answers and the number without an answer. Runs in a process of its own."""
    request = ingest_pb2.SubmitHistoricalRequest.FromString(message)
    answers, lost = Answers(), 0
    while answers.total() < times:
        with open_sync_channel(relay) as channel:
            stub = BlockingRelayStubs(channel)
            try:
                while answers.total() < times:
                    answer = stub.history.SubmitHistorical(request, timeout=10).answer
                    name = ingest_pb2.SubmitResponse.SubmitStatus.Name(answer.status)
                    answers[name, answer.notification_topic] += 1
            except grpc.RpcError:
                lost += 1
        time.sleep(0.05)
    return answers, lost


@contextmanager
def honest_exchange(suite: Suite) -> Iterator[None]:
    """Remove the faults of the suite's exchange, so that calls can be counted."""
    rules = json.loads(suite.environment.get("DEXORDER_SIM_FAULTS", "[]"))
    suite.exchange("/sim/faults", [])
    try:
        yield
    finally:
        suite.exchange("/sim/faults", rules)


def exchange_calls(suite: Suite) -> int:
    """Return the number of candle requests that the simulated exchange received."""
    return int(suite.exchange("/sim/stats")["requests"].get(KLINES, 0))


SUBMISSIONS = int(os.environ.get("DEXORDER_SOAK_SUBMISSIONS", "10000"))


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_one_id_is_planned_once(tmp_path: Path) -> None:
    with running_suite(tmp_path / "state", DEXORDER_SIM_LATENCY_MS="100") as suite:
        started_s = time.monotonic()
        seen = submit_from_all(suite, "BTC/USDT", first_minute=FIRST_MINUTE, candles=100_000, submissions=SUBMISSIONS)
    print_campaign(
        f"{SUBMISSIONS:,} submissions of one id from {CLIENTS} processes, the relay killed meanwhile",
        ["QUEUED", "DUPLICATE", "calls without an answer", "jobs", "pages", "calls to the exchange"],
        [seen.queued, f"{seen.duplicate:,}", seen.lost, seen.jobs, seen.pages, seen.calls],
        since_s=started_s,
    )


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_id_submitted_many_times_is_planned_once(smoke_suite: Suite) -> None:
    seen = submit_from_all(smoke_suite, "LINK/USDT", first_minute=UNUSED_MINUTE, candles=12_000, submissions=2_000)
    assert seen.jobs == 1
