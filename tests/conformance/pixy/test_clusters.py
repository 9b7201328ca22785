"""Several clusters, and one that does not answer: no call is OK whose record is dropped."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_process import GatewayProcess
from tests.gateway_thread import GatewayThread, committed, numbers, records
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


TOPICS = 6


@dataclass
class Broker:
    """Broker that a test may stop, and topics created while it ran."""

    running: RunningKafka
    topics: list[str]

    @property
    def address(self) -> str:
        return self.running.bootstrap

    def freeze(self) -> None:
        self.running.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def module_broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = RunningKafka(tmp_path_factory.mktemp("broker"))
    broker = Broker(running, [])
    try:
        broker.topics += [create_topic(running.bootstrap, 1) for _ in range(TOPICS)]
        yield broker
    finally:
        running.stop(signal.SIGKILL)


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    """Resume the broker after the test, also after a failed one."""
    yield module_broker
    module_broker.thaw()


def write_until_refused(gateway: GatewayThread, topic: str) -> tuple[list[bytes], grpc.StatusCode]:
    """Write async records; return those answered with OK, in the order of the calls, and the first other status."""
    accepted: list[bytes] = []
    for number in itertools.count():
        request = pb.ProdRq(topic=topic, message=b"%d" % number, key_value=b"k", async_mode=True)
        call = gateway.stub.Produce.future(request)
        if call.code() != grpc.StatusCode.OK:
            break
        accepted.append(request.message)
    return accepted, call.code()


@pytest.mark.parametrize("produce_timeout_seconds", [600.0, 1.0])
def test_while_kafka_is_unavailable_async_records_are_queued_until_the_queue_is_full(
    broker: Broker, produce_timeout_seconds: float
) -> None:
    topic = broker.topics.pop()
    gateway = GatewayThread(
        kafka=broker.address,
        drain_seconds=60.0,
        produce_timeout_seconds=produce_timeout_seconds,
        produce_queue_messages=200,
    )
    try:
        gateway.wait_ready().stub.Produce(pb.ProdRq(topic=topic, message=b"first", key_value=b"k"))
        broker.freeze()
        gateway.wait_for_health(HealthCheckResponse.NOT_SERVING)
        accepted, code = write_until_refused(gateway, topic)
        assert (len(accepted), code) == (200, grpc.StatusCode.RESOURCE_EXHAUSTED)
        if produce_timeout_seconds < 2:
            time.sleep(2.0)
        broker.thaw()
        gateway.wait_ready()
    finally:
        broker.thaw()
        gateway.stop()
    assert [message.value() for message in records(broker.address, topic)] == [b"first", *accepted]


@pytest.mark.smoke
def test_stop_while_kafka_is_unavailable_is_bounded(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topics.pop()
    with GatewayProcess(tmp_path, broker.address, drain_seconds=1.0, ack_timeout_seconds=600) as gateway:
        gateway.wait_ready()
        for value in numbers(3):
            gateway.stub.Produce(pb.ProdRq(topic=topic, message=value))
        assert gateway.offsets(topic, 2) == [0, 1]
        broker.freeze()
        gateway.ack(topic, 0)
        gateway.stub.Produce.future(pb.ProdRq(topic=topic))
        gateway.stub.Produce.future(pb.ProdRq(topic=topic, async_mode=True))
        gateway.stub.ConsumeNAck.future(pb.ConsNAckRq(topic=topic, group="another", no_ack=True))
        assert gateway.stop() == 0


@pytest.mark.smoke
def test_acks_during_an_outage_longer_than_a_session_are_committed_after_it(
    broker: Broker,
) -> None:
    topic = broker.topics.pop()
    gateway = GatewayThread(
        kafka=broker.address, drain_seconds=0.0, offsets_commit_interval_ms=50, session_timeout_ms=6_000
    )
    try:
        gateway.wait_ready()
        for value in numbers(4):
            gateway.stub.Produce(pb.ProdRq(topic=topic, message=value))
        assert gateway.offsets(topic, 3) == [0, 1, 2]
        broker.freeze()
        gateway.wait_for_health(HealthCheckResponse.NOT_SERVING)
        gateway.ack(topic, 0, 2)
        time.sleep(4.0)  # longer than the session, which ends the assignment
        broker.thaw()
        gateway.wait_ready()
        assert sorted(gateway.offsets(topic, 2)) == [1, 3]
        until(lambda: committed(broker.address, topic) == (1, "BB.DswA"))
    finally:
        broker.thaw()
        gateway.stop()


def test_clusters_have_separate_topics_and_groups_and_an_unavailable_one_affects_no_other(
    broker: Broker, kafka: str, tmp_path: Path
) -> None:
    topic = broker.topics.pop()
    create_topic(kafka, 1, name=topic)
    file = tmp_path / "pixy.yaml"
    peers = {"first": kafka, "second": broker.address}
    file.write_text("\n".join(["proxies:", *(f"  {n}: {{kafka: {{seed_peers: ['{a}']}}}}" for n, a in peers.items())]))
    gateway = GatewayThread(pixy_config=file, drain_seconds=0.0)
    try:
        # SERVING as soon as the first cluster answers.
        probe = pb.ConsNAckRq(cluster="second", topic="no-such-topic", group="same")
        until(lambda: gateway.wait_ready().stub.ConsumeNAck.future(probe).code() == grpc.StatusCode.NOT_FOUND)
        for cluster in ("", "second", "first"):
            gateway.stub.Produce(pb.ProdRq(cluster=cluster, topic=topic, message=cluster.encode()))

        def consume(cluster: str) -> bytes:
            return gateway.consume(topic, "same", cluster=cluster, auto_ack=True).message

        assert [consume(cluster) for cluster in ("second", "first", "")] == [b"second", b"", b"first"]
        broker.freeze()
        gateway.stub.Produce.future(pb.ProdRq(cluster="second", topic=topic))
        gateway.stub.Produce(pb.ProdRq(cluster="first", topic=topic, message=b"beside it"))
        assert consume("first") == b"beside it"
    finally:
        broker.thaw()
        gateway.stop()
