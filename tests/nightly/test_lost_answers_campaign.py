"""Kafka writes records and its answers get lost: the gateway asks again, and each record is there once, in order.

DEXORDER_SOAK_CUTS=500
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.server import gateway
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.fakes.tcp_proxy import LossyProxy
from tests.rig.kafka import RunningKafka
from tests.rig.processes import free_ports

CUTS = int(os.environ.get("DEXORDER_SOAK_CUTS", "500"))
WRITERS = 8
ODDS = 0.1
TOPIC = "lossy"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(CUTS * 4 + 300)]


async def test_lost_answers_double_no_record(kafka_jars: Path, tmp_path: Path) -> None:
    (advertised,) = free_ports(1)
    kafka = RunningKafka(
        tmp_path, advertised_port=advertised
    )  # not in a thread, with whose end the broker would be killed
    proxy = LossyProxy(kafka.port, ODDS)
    settings: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "metrics_listen": "",
        "topics": f"{TOPIC}:4",
        "kafka": f"127.0.0.1:{advertised}",
        "produce_timeout_seconds": 60,
    }
    try:
        async with proxy.listening(advertised):
            async with (
                gateway(GatewaySettings(**settings)) as running,
                grpc.aio.insecure_channel(running.address) as channel,
            ):
                health: Any = health_pb2_grpc.HealthStub(channel)
                async for answer in health.Watch(health_pb2.HealthCheckRequest(), timeout=60):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break
                started = time.monotonic()
                written = await write(rpc.KafkaPixyStub(channel), proxy)
                seconds = time.monotonic() - started
            found = await asyncio.to_thread(read, f"127.0.0.1:{advertised}", sum(written))
    finally:
        await asyncio.to_thread(kafka.stop)
    print(
        f"\n| Kafka's answers lost | {proxy.cuts} of them over {sum(written):,} records in {seconds:.0f} s "
        f"| {len(found) - sum(written)} records doubled or lost |"
    )
    for writer, count in enumerate(written):
        mine = [number for key, number in found if key == writer]
        assert mine == list(range(count)), f"writer {writer}"


async def write(pixy: Any, proxy: LossyProxy) -> list[int]:
    """Records one after the other from each writer, until enough answers are lost; how many each wrote."""

    async def one(writer: int) -> int:
        for number in itertools.count():
            if proxy.cuts >= CUTS:
                return number
            request = pb.ProdRq(topic=TOPIC, key_value=str(writer).encode(), message=str(number).encode())
            await pixy.Produce(request, timeout=90)
        raise AssertionError("unreachable")

    proxy.loses = True
    try:
        return list(await asyncio.gather(*(one(writer) for writer in range(WRITERS))))
    finally:
        proxy.loses = False


def read(bootstrap: str, most: int) -> list[tuple[int, int]]:
    """Every record of the topic, in each partition's order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "oracle", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(4)])
    found: list[tuple[int, int]] = []
    at_end: set[int | None] = set()
    deadline = time.monotonic() + 60
    while len(at_end) < 4:
        assert time.monotonic() < deadline, f"{len(found)} of {most} records read"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            at_end.add(message.partition())
        else:
            found.append((int(message.key() or b""), int(message.value() or b"")))
    consumer.close()
    return found
