"""Processes of ``bench.pixy``: gateway, empty servers, client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.paths import ROOT
from tests.rig.processes import free_ports

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JobT = TypeVar("JobT", bound="DataclassInstance")
MeasuredT = TypeVar("MeasuredT")

_START_SECONDS = 60.0
_MAX_POLLS = 20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Job:
    """Measurement that the client runs, as ``bench/pixy_load`` reads it.

    Attributes:
        kind: One of ``pixy_rounds.KINDS``.
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
    """Process that serves KafkaPixy."""

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return its CPU time since the start, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def gateway(bootstrap: str) -> Iterator[Server]:
    """Start a gateway and wait until it serves; further settings come from our own environment."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    ours = {
        "LISTEN": address,
        "METRICS_LISTEN": "",
        "KAFKA": bootstrap,
        "TOPICS": "",
        "NEW_GROUP_START": "earliest",
        "SUBSCRIPTION_TIMEOUT_SECONDS": "3600",
        "DRAIN_SECONDS": "0",
    }
    environment = {"DEXORDER_LOG_LEVEL": "warning"} | {
        f"DEXORDER_GATEWAY_{name}": value for name, value in ours.items()
    }
    with (
        running("-m", "dexorder_gateway", **environment) as process,
        grpc.insecure_channel(address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=_START_SECONDS)
        next(answer for answer in watch if answer.status == health_pb2.HealthCheckResponse.SERVING)
        watch.cancel()
        yield Server(address, process.pid)


@contextmanager
def empty_server(kind: str) -> Iterator[Server]:
    """Start a server with empty handlers; ``kind`` is that of ``pixy_empty``."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (
        running("-m", "bench.parts.pixy_empty", address, kind) as process,
        grpc.insecure_channel(address) as channel,
    ):
        grpc.channel_ready_future(channel).result(_START_SECONDS)
        yield Server(address, process.pid)


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
    raise AssertionError(f"no record of {topic} was delivered")


class Client(Generic[JobT, MeasuredT]):
    """Client process that reads jobs from stdin and answers each with its measurement."""

    def __init__(self, process: subprocess.Popen[str], measured: Callable[..., MeasuredT]) -> None:
        self._process = process
        self._measured = measured

    def run(self, job: JobT) -> MeasuredT:
        """Run a job.

        Raises:
            AssertionError: The job failed; stderr has the reason.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the client failed at {job}")
        return self._measured(**json.loads(answer))


Load = Client[Job, Measured]


@contextmanager
def load() -> Iterator[Load]:
    """Build the client, which is in Go, and start it; it waits for jobs."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "pixy_load")
        subprocess.run(["go", "build", "-o", program, "."], cwd=ROOT / "bench" / "pixy_load", check=True)
        with started([program]) as process:
            yield Client(process, Measured)


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process with pipes for its stdin and stdout until the block ends."""
    with started([sys.executable, *arguments], **environment) as process:
        yield process


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program likewise."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=_START_SECONDS)
