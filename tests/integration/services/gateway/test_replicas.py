"""What a producer's options are for, on partitions with replicas and behind a proxy: acks of all, in order, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.fakes.tcp_proxy import TcpProxy, in_a_thread
from tests.gateway_thread import GatewayThread, refusal
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import free_ports, until
from tests.two_brokers import TwoBrokers

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(300)]
PRODUCE = b"\0\0"
"""Key of the request in Kafka's protocol."""


@pytest.fixture
def gateway_of() -> Iterator[list[GatewayThread]]:
    """Collect gateways that stop with the test."""
    running: list[GatewayThread] = []
    yield running
    for each in running:
        each.stop()


def record(topic: str, text: bytes) -> pb.ProdRq:
    return pb.ProdRq(topic=topic, key_value=b"k", message=text)


def test_record_is_acknowledged_when_all_replicas_have_it_and_written_once(
    two_brokers: TwoBrokers, gateway_of: list[GatewayThread]
) -> None:
    """The second replica dies: the first one has the record, and its answer is not an ack."""
    admin, topic = AdminClient({"bootstrap.servers": two_brokers.bootstrap}), "replicated"
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2]], config=config)])[topic].result(60)
    options = {"request.timeout.ms": "1000"}  # so that the record is sent again
    gateway = GatewayThread(
        kafka=two_brokers.bootstrap, kafka_options=options, produce_timeout_seconds=4.0, drain_seconds=0.0
    )
    gateway_of.append(gateway)
    gateway.wait_ready()
    gateway.stub.Produce(record(topic, b"0"), timeout=60)
    two_brokers.kill_second()
    code, details = refusal(lambda: gateway.stub.Produce(record(topic, b"1"), timeout=60))
    assert code is grpc.StatusCode.ABORTED, details
    two_brokers.start_second()
    gateway.stub.Produce(record(topic, b"2"), timeout=60)
    found = [gateway.consume(topic, auto_ack=True).message for _ in range(3)]
    assert found == [b"0", b"1", b"2"], "in order, and none twice"


class HeldAnswers(TcpProxy):
    """Holds back Kafka's answers from the first Produce on, once `armed`, until ``released``.

    Attributes:
        asked: Produce requests since it was armed.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.armed, self.released, self.asked = False, threading.Event(), 0

    async def _pass_questions(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            size += await reader.readexactly(4 - len(size))
            request = await reader.readexactly(int.from_bytes(size))
            self.asked += self.armed and request[:2] == PRODUCE
            server.write(size + request)
            await server.drain()

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        while self.asked and not self.released.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        return await super().answer(data, client)


def test_batch_is_sent_when_the_one_before_is_acknowledged(
    kafka_jars: Path, tmp_path: Path, gateway_of: list[GatewayThread]
) -> None:
    port, controller, advertised = free_ports(3)
    proxy = HeldAnswers(port)
    broker = RunningKafka(tmp_path, (port, controller), advertised_port=advertised)
    try:
        with in_a_thread(proxy, advertised), ThreadPoolExecutor(2) as pool:
            topic = create_topic(f"127.0.0.1:{advertised}", 1)
            gateway = GatewayThread(kafka=f"127.0.0.1:{advertised}", drain_seconds=0.0).wait_ready()
            gateway_of.append(gateway)
            gateway.stub.Produce(record(topic, b"0"), timeout=60)
            proxy.armed = True
            first = pool.submit(gateway.stub.Produce, record(topic, b"1"), timeout=60)
            until(lambda: proxy.asked > 0)
            second = pool.submit(gateway.stub.Produce, record(topic, b"2"), timeout=60)
            with pytest.raises(TimeoutError):
                second.result(1.0)
            assert proxy.asked == 1
            proxy.released.set()
            assert [first.result(60).offset, second.result(60).offset] == [1, 2]
            assert proxy.asked == 2
            gateway_of.remove(gateway)
            gateway.stop()
    finally:
        proxy.released.set()
        broker.stop()
