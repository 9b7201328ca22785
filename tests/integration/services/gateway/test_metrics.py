"""Metrics of a working gateway; each has a line in the docs."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dexorder_gateway.kafkapixy.metrics import KafkaMetrics
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import Filled, MakeTopic, StartGateway, Write, numbers, refusal
from tests.paths import ROOT
from tests.rig.processes import free_ports, until

DOCS = ROOT / "docs"
Samples = Callable[..., dict[str, float]]


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def scrape(endpoint: str) -> Samples:
    """Return the samples of one metric with these labels, by the value of one further label."""

    def samples(name: str, by: str, **labels: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{endpoint}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        found = (s for f in families for s in f.samples if s.name == f"dexorder_gateway_{name}")
        return {s.labels[by]: s.value for s in found if labels.items() <= s.labels.items()}

    return samples


@pytest.mark.kafka
def test_pending_and_lag_of_each_partition(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write, endpoint: str, scrape: Samples
) -> None:
    topic = kafka_topic(2)
    write(topic, *numbers(3), partition=0)
    write(topic, *numbers(1), partition=1)
    gateway = start_gateway(metrics_listen=endpoint, poll_seconds=0.05)
    taken = [gateway.consume(topic, no_ack=True) for _ in range(4)]
    of = {"cluster": "default", "group": topic, "topic": topic}
    assert scrape("records_pending", "partition", **of) == {"0": 3, "1": 1}
    until(lambda: scrape("records_lag", "partition", **of) == {"0": 3, "1": 1})
    gateway.ack(topic, 0, 2, 2)
    assert scrape("records_pending", "partition", **of) == {"0": 1, "1": 1}
    assert scrape("records_lag", "partition", **of) == {"0": 2, "1": 1}  # from 1 on: an ack above does not count
    assert scrape("records_consumed_total", "cluster", **of) == {"default": len(taken)}
    assert scrape("records_acked_total", "cluster", **of) == {"default": 2}


@pytest.mark.kafka
def test_lag_grows_while_no_record_is_taken(filled: Filled, write: Write, endpoint: str, scrape: Samples) -> None:
    """A consumer itself learns of no new log end then."""
    topic, gateway = filled(1, metrics_listen=endpoint, poll_seconds=0.05, max_pending_messages=1)
    gateway.offsets(topic, 1)
    for _ in range(2):
        write(topic, *numbers(2_000))
    until(lambda: scrape("records_lag", "partition", group=topic) == {"0": 4_001})
    write(topic, *numbers(1))
    until(lambda: scrape("records_lag", "partition", group=topic) == {"0": 4_002})


@pytest.mark.kafka
def test_redeliveries_and_drops_are_counted(filled: Filled, endpoint: str, scrape: Samples) -> None:
    topic, gateway = filled(
        1, metrics_listen=endpoint, ack_timeout_seconds=0.3, max_retries=1, long_polling_timeout_ms=700
    )
    assert gateway.offsets(topic, 2) == [0, 0]
    until(lambda: scrape("records_dropped_total", "group", topic=topic) == {topic: 0})
    request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
    assert refusal(lambda: gateway.stub.ConsumeNAck(request))[0] == grpc.StatusCode.NOT_FOUND
    assert scrape("records_dropped_total", "group", topic=topic) == {topic: 1}
    assert scrape("records_redelivered_total", "reason", topic=topic) == {"timeout": 1, "given_back": 0}


@pytest.mark.kafka
def test_gauges_of_a_group_end_with_its_subscription_and_counters_stay(
    filled: Filled, endpoint: str, scrape: Samples
) -> None:
    topic, gateway = filled(
        1, metrics_listen=endpoint, subscription_timeout_seconds=0.3, poll_seconds=0.05, long_polling_timeout_ms=20_000
    )
    gateway.consume(topic, auto_ack=True)
    waiting = gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group=topic))
    until(lambda: scrape("callers_waiting", "group") == {topic: 1})
    assert scrape("subscriptions", "cluster") == {"default": 1}
    until(lambda: scrape("records_pending", "group") == {topic: 0})
    waiting.cancel()
    until(lambda: scrape("subscriptions", "cluster") == {"default": 0})
    for gauge in ("records_pending", "records_lag", "callers_waiting"):
        assert scrape(gauge, "group") == {}
    assert scrape("records_consumed_total", "group", group=topic) == {topic: 1}


@pytest.mark.kafka
def test_waiting_callers_and_kafka_up(filled: Filled, endpoint: str, scrape: Samples) -> None:
    topic, gateway = filled(0, metrics_listen=endpoint, long_polling_timeout_ms=20_000)
    calls = [gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group=topic)) for _ in range(2)]
    until(lambda: scrape("callers_waiting", "group", topic=topic) == {topic: 2})
    assert scrape("kafka_up", "cluster") == {"default": 1}
    for call in calls:
        call.cancel()
    until(lambda: scrape("callers_waiting", "group", topic=topic) == {topic: 0})


@pytest.mark.kafka
def test_produced_is_counted_by_topic_and_mode(filled: Filled, endpoint: str, scrape: Samples) -> None:
    topic, gateway = filled(0, metrics_listen=endpoint)
    gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"v"))
    gateway.stub.Produce(pb.ProdRq(topic=topic, message=b"v", async_mode=True))
    until(lambda: scrape("records_produced_total", "mode", topic=topic) == {"sync": 1, "async": 1})
    assert scrape("records_produce_failed_total", "mode", topic=topic) == {"sync": 0, "async": 0}


def test_every_metric_has_a_line_in_the_docs() -> None:
    registry = CollectorRegistry()
    KafkaMetrics(registry)
    names = {family.name.removeprefix("dexorder_gateway_") for family in registry.collect()}
    lines = re.findall(r"^\| `([a-z_]+)", (DOCS / "gateway-kafka.md").read_text(), re.M)
    assert names - {line.removesuffix("_total") for line in lines} == set()
