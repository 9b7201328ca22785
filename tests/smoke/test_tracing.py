"""One history request of the command is one trace through every part, also while a part of it is killed."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.fakes.otlp import CollectedSpan, Collector
from tests.rig.oracle import minutes
from tests.rig.processes import until
from tests.rig.suite import Suite
from tests.smoke.test_kills import start_history

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]

RELAY, ROWS = "dexorder.relay.v1.HistoryService", "dexorder.relay.v1.RowsService"
CLIENT = ("cli: dexorder.history", f"cli: {RELAY}/SubmitHistorical")
REQUEST = (*CLIENT, "relay: history request")
READ = (CLIENT[0], "cli: read trading.ohlc")
JOB = (*REQUEST, "ingestor: process job")
PRODUCE = (*JOB, "ingestor: send dexorder.ohlc")
PIPELINE = (*REQUEST, "spark: process dexorder.ohlc")
TREE = {
    CLIENT[:1],
    CLIENT,
    (*CLIENT, f"relay: {RELAY}/SubmitHistorical"),
    REQUEST,
    (*REQUEST, "relay: send job"),
    JOB,
    (*JOB, "ingestor: exchange call"),
    PRODUCE,
    (*PRODUCE, "gateway: KafkaPixy/Produce"),
    PIPELINE,
    (*PIPELINE, "spark: decode"),
    (*PIPELINE, "spark: commit trading.ohlc"),
    (*PIPELINE, "spark: report to the relay"),
    (*REQUEST, "relay: decide outcome"),
    *(
        path
        for name in ("WatchProgress", "WatchNotifications", "GetRequest")
        for path in (
            (CLIENT[0], f"cli: {RELAY}/{name}"),
            (CLIENT[0], f"cli: {RELAY}/{name}", f"relay: {RELAY}/{name}"),
        )
    ),
    READ,
    (*READ, f"cli: {ROWS}/GetCatalog"),
    (*READ, f"cli: {ROWS}/GetCatalog", f"relay: {ROWS}/GetCatalog"),
}
"""From the client to the exchange, Kafka, Iceberg and the notification; each with the parts and spans above it."""


def trace_of_request(traces: Collector, request_id: str) -> str:
    (root,) = [
        span
        for span in traces.spans()
        if span.name == "dexorder.history" and span.attributes["dexorder.request_id"] == request_id
    ]
    return root.trace_id


def arrived(traces: Collector, trace_id: str) -> Counter[tuple[str, ...]]:
    """Return how many spans of a trace arrived by their paths, once those of its request have."""
    until(lambda: REQUEST in paths(traces, traces.spans(trace_id)), 60, lambda: str(traces.spans(trace_id)))
    return paths(traces, traces.spans(trace_id))


def paths(traces: Collector, spans: list[CollectedSpan]) -> Counter[tuple[str, ...]]:
    return Counter(map(traces.path, spans))


def test_a_request_is_one_trace_through_every_part(smoke_suite: Suite, traces: Collector) -> None:
    stdout, stderr = start_history(smoke_suite, "DOGE/USDT", minutes(0, 2_160), **traces.environment).communicate(
        timeout=120
    )
    answer = json.loads(stdout or "{}")
    assert answer.get("row_count") == 2_160, stderr
    trace_id = trace_of_request(traces, answer["request_id"])
    until(lambda: set(arrived(traces, trace_id)) >= TREE, 60, lambda: str(TREE - set(arrived(traces, trace_id))))
    found = arrived(traces, trace_id)
    assert set(found) == TREE
    assert found[REQUEST] == found[JOB] == found[(*REQUEST, "relay: send job")] == 1
    assert found[PRODUCE] == found[(*PRODUCE, "gateway: KafkaPixy/Produce")] >= 4, "three pages and the final record"


@pytest.mark.nightly
@pytest.mark.parametrize(("part", "symbol"), [("relay", "DOGE/USDT"), ("ingestor", "AVAX/USDT")])
def test_the_trace_stays_one_when_a_part_is_killed(
    smoke_suite: Suite, traces: Collector, part: str, symbol: str
) -> None:
    command = start_history(smoke_suite, symbol, minutes(10_000, 10_000), **traces.environment)
    known = {span.trace_id for span in traces.spans()}
    until(lambda: any(s.service == "dexorder-gateway" and s.trace_id not in known for s in traces.spans()), 60)
    smoke_suite.kill(part)
    stdout, stderr = command.communicate(timeout=240)
    answer = json.loads(stdout or "{}")
    assert answer.get("row_count") == 10_000, stderr
    smoke_suite.wait_ready()
    trace_id = trace_of_request(traces, answer["request_id"])
    assert {span.trace_id for span in traces.spans()} - known == {trace_id}, "no part begins another trace"
    until(lambda: PIPELINE in arrived(traces, trace_id), 60)
    found = arrived(traces, trace_id)
    assert found[REQUEST] == 1, "the last process of the relay records it, with the id that all parts know"
    assert found[JOB] >= 1 and found[CLIENT[:1]] == 1
    # a killed process never sends the span that it was in: what it did inside has no parent, and nothing else
    lost = {path for path in found if path[0] == "?"}
    inside = {PRODUCE[-1], "ingestor: exchange call", "gateway: KafkaPixy/Produce"} if part == "ingestor" else set()
    assert {path[1] for path in lost} <= inside, lost
