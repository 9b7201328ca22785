"""Gateways on free ports, each with its event loop in a thread, so that tests can use pytest-grpc's plain stubs."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

import grpc
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_common.config import split_address
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2_grpc as record_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc

StartGateway = Callable[..., "GatewayThread"]
MakeTopic = Callable[[int], str]
Write = Callable[..., None]
Filled = Callable[..., tuple[str, "GatewayThread"]]
WAIT_SECONDS = 60.0


class GatewayUser:
    """Client of a running gateway; ``stub`` is a plain one, not asyncio."""

    def connect(self, address: str) -> None:
        """Connect to the gateway at this address."""
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self.stub = rpc.KafkaPixyStub(self._channel)
        self.records: Any = record_rpc.RecordServiceStub(self._channel)

    def wait_for_health(self, status: int) -> None:
        """Wait until the gateway is SERVING, or is not."""
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="KafkaPixy"), timeout=WAIT_SECONDS)
        try:
            assert any(answer.status == status for answer in watch)
        finally:
            watch.cancel()

    def wait_ready(self) -> Self:
        self.wait_for_health(health_pb2.HealthCheckResponse.SERVING)
        return self

    def consume(self, topic: str, group: str = "", **fields: Any) -> pb.ConsRs:
        """Return the next record, after empty long polls while the group is joined. The group has the topic's name."""
        request = pb.ConsNAckRq(topic=topic, group=group or topic, **fields)
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                return self.stub.ConsumeNAck(request)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
        raise AssertionError(f"nothing came from {topic}")

    def offsets(self, topic: str, count: int, **fields: Any) -> list[int]:
        """Return the offsets of the next records without acking them."""
        return [self.consume(topic, no_ack=True, **fields).offset for _ in range(count)]

    def ack(self, topic: str, *offsets: int, group: str = "", partition: int = 0) -> None:
        for offset in offsets:
            self.stub.Ack(pb.AckRq(topic=topic, group=group or topic, partition=partition, offset=offset))


class GatewayThread(GatewayUser):
    """Gateway in a thread of this process, for tests without signals; see `tests.gateway_process`."""

    def __init__(self, **given: Any) -> None:
        values = {
            "listen": "127.0.0.1:0",
            "http_listen": "",
            "metrics_listen": "",
            "topics": "",
            "new_group_start": "earliest",
            **given,
        }
        self._settings = GatewaySettings(**values)
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self.connect(self._address.result(WAIT_SECONDS))

    async def _serve(self) -> None:
        try:
            async with gateway(self._settings) as running:
                self._loop = asyncio.get_running_loop()
                self._stop = asyncio.Event()
                self._address.set_result(running.address)
                await self._stop.wait()
        except BaseException as error:
            if not self._address.done():
                self._address.set_exception(error)
            raise

    def begin_stop(self) -> None:
        """Stop the gateway as SIGTERM does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        self.begin_stop()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._channel.close()


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Return status and text of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def committed(kafka: str, topic: str) -> tuple[int, str]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic, "log_level": 2})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
        return found.offset, found.metadata or ""
    finally:
        consumer.close()


def commit_as_others_do(kafka: str, group: str, topic: str, offset: int, metadata: bytes) -> None:
    """Send OffsetCommit v2 on a socket: confluent-kafka appends a NUL to metadata, other clients do not."""

    def text(value: bytes) -> bytes:
        return struct.pack(">h", len(value)) + value

    body = text(group.encode()) + struct.pack(">i", -1) + text(b"") + struct.pack(">qi", -1, 1) + text(topic.encode())
    body += struct.pack(">iiq", 1, 0, offset) + text(metadata)
    request = struct.pack(">hhi", 8, 2, 1) + text(b"other") + body
    with socket.create_connection(split_address(kafka), WAIT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        assert connection.recv(1_000)[-2:] == b"\0\0"


def records(kafka: str, topic: str, partitions: int = 1) -> list[Any]:
    """Return all messages of a topic's first partitions, including aborted records."""
    options = {"bootstrap.servers": kafka, "group.id": "unused", "log_level": 2, "fetch.wait.max.ms": 10}
    consumer = Consumer({**options, "enable.partition.eof": True, "isolation.level": "read_uncommitted"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        found: list[Any] = []
        read: set[int | None] = set()
        while len(read) < partitions:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, f"{topic} has no end"
            if (error := message.error()) is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error.str()
                read.add(message.partition())
        return found
    finally:
        consumer.close()
