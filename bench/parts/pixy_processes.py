"""Processes of ``bench.pixy``: gateway, empty servers, client."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.parts.cpu import process_cpu_seconds
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.paths import ROOT
from tests.rig.processes import Worker, free_ports

_START_SECONDS = 60.0
_MAX_POLLS = 20


@dataclass(frozen=True)
class Job:
    """Measurement that the client runs, as ``bench/pixy_load`` reads it.

    Attributes:
        kind: One of ``pixy_rounds.KINDS`` or ``HTTP_KINDS``; the address is that of its API.
        warm_seconds: Time of calls before the measurement begins.
        seconds: Time during which calls are counted.
    """

    kind: str
    address: str
    topic: str
    group: str = ""
    callers: int = 1
    warm_seconds: float = 0.3
    seconds: float = 2.0


@dataclass(frozen=True)
class Measured:
    """Result: ``rate`` per second; ``calls`` include those before the measurement."""

    rate: float
    calls: int


@dataclass(frozen=True)
class Server:
    """Process that serves KafkaPixy; ``http`` is the address of its HTTP API."""

    address: str
    pid: int
    http: str = ""

    def cpu_seconds(self) -> float:
        """Return its CPU time since the start, in user and kernel mode."""
        return process_cpu_seconds(self.pid)


@contextmanager
def gateway(bootstrap: str, transport: str = "grpcio") -> Iterator[Server]:
    """Start a gateway and wait until it serves; further settings come from our own environment."""
    address, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    ours = {
        "LISTEN": address,
        "HTTP_LISTEN": http,
        "METRICS_LISTEN": "",
        "KAFKA": bootstrap,
        "TOPICS": "",
        "NEW_GROUP_START": "earliest",
        "SUBSCRIPTION_TIMEOUT_SECONDS": "3600",
        "DRAIN_SECONDS": "0",
        "TRANSPORT": transport,
    }
    environment = {"DEXORDER_LOG_LEVEL": "warning"} | {
        f"DEXORDER_GATEWAY_{name}": value for name, value in ours.items()
    }
    with (
        Worker.module("dexorder_gateway", **environment) as process,
        grpc.insecure_channel(address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=_START_SECONDS)
        next(answer for answer in watch if answer.status == health_pb2.HealthCheckResponse.SERVING)
        watch.cancel()
        yield Server(address, process.process.pid, http)


@contextmanager
def empty_server(kind: str) -> Iterator[Server]:
    """Start a server with empty handlers; ``kind`` is that of ``pixy_empty``."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (
        Worker.module("bench.parts.pixy_empty", address, kind) as process,
        grpc.insecure_channel(address) as channel,
    ):
        grpc.channel_ready_future(channel).result(_START_SECONDS)
        yield Server(address, process.process.pid)


def join(gateway: Server, topic: str, group: str) -> None:
    """Read one record; repeat empty long polls, as joining a group takes a while."""
    request = pixy.ConsNAckRq(topic=topic, group=group, auto_ack=True)
    with grpc.insecure_channel(gateway.address) as channel:
        for _ in range(_MAX_POLLS):
            try:
                KafkaPixyStub(channel).ConsumeNAck(request)
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
    raise AssertionError(f"no record of {topic} was delivered to {group}")


class Load:
    """The client, which runs jobs one after the other."""

    def __init__(self, process: Worker) -> None:
        self._process = process

    def run(self, job: Job) -> Measured:
        """Run a job; AssertionError if it failed, and stderr has the reason."""
        return Measured(**self._process.run(**asdict(job)))


@contextmanager
def load() -> Iterator[Load]:
    """Build the client, which is in Go, and start it; it waits for jobs."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "pixy_load")
        subprocess.run(["go", "build", "-o", program, "."], cwd=ROOT / "bench" / "pixy_load", check=True)
        with Worker(program) as process:
            yield Load(process)
