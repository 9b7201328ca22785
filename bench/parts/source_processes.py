"""Processes of ``bench.udsource`` and ``bench.spark_source``: source.v1 servers, and the client."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from bench.parts.pixy_processes import Server
from bench.parts.source_load import Job, Measured
from dexorder_protos.source.v1.source_pb2_grpc import SourceStub
from tests.paths import ROOT
from tests.peers.environment import peer_python
from tests.rig.processes import Worker, free_ports

_START_SECONDS = 120.0
_MEMORY_SOURCE = ROOT / "tests" / "peers" / "numaflow" / "memory_source.py"


@contextmanager
def udsource(bootstrap: str, topic: str, socket: Path, transport: str = "grpcio") -> Iterator[Server]:
    """Run our udsource on a topic, on TCP (the server's address) and on the unix socket."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    ours = {
        "LISTEN": address,
        "METRICS_LISTEN": "",
        "SOCKET": str(socket),
        "KAFKA": bootstrap,
        "TOPIC": topic,
        "GROUP": f"bench-{topic}-{transport}",
        "TRANSPORT": transport,
        "DRAIN_SECONDS": "0",
    }
    environment = {"DEXORDER_LOG_LEVEL": "warning"} | {
        f"DEXORDER_UDSOURCE_{name}": value for name, value in ours.items()
    }
    with Worker.module("dexorder_udsource", **environment) as worker:
        wait_ready(f"unix:{socket}", worker.process)
        yield Server(address, worker.process.pid)


@contextmanager
def best(socket: Path, payload_bytes: int) -> Iterator[Server]:
    """Run the upper limit of grpcio, which serves no real records."""
    with Worker.module("bench.parts.source_best", str(socket), str(payload_bytes)) as worker:
        wait_ready(f"unix:{socket}", worker.process)
        yield Server(f"unix:{socket}", worker.process.pid)


@contextmanager
def pynumaflow(socket: Path, records: int, payload_bytes: int, partitions: int) -> Iterator[Server]:
    """Run Numaflow's Python server, in a separate environment, with records in memory."""
    options = {"socket": socket, "records": records, "payload-bytes": payload_bytes, "partitions": partitions}
    command = [str(peer_python("numaflow")), "-I", str(_MEMORY_SOURCE)]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    process = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL)
    try:
        wait_ready(f"unix:{socket}", process)
        yield Server(f"unix:{socket}", process.pid)
    finally:
        process.kill()  # it waits for its clients for a minute
        process.wait()


@contextmanager
def numaflow_go(checkout: Path, socket: Path, payload_bytes: int, partitions: int) -> Iterator[Server]:
    """Build a source on a checkout of numaflow-go, which no module proxy need have, and run it."""
    module = "github.com/numaproj/numaflow-go"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "bench" / "numaflow_source", folder, dirs_exist_ok=True)
        for step in (
            ("mod", "edit", f"-replace={module}={checkout.resolve()}"),
            ("mod", "tidy"),
            ("build", "-o", "it"),
        ):
            subprocess.run(["go", *step], cwd=folder, check=True)
        options = {"socket": socket, "payload-bytes": payload_bytes, "partitions": partitions}
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        process = subprocess.Popen([f"{folder}/it", *given], text=True, stdout=subprocess.DEVNULL)
        try:
            wait_ready(f"unix:{socket}", process)
            yield Server(f"unix:{socket}", process.pid)
        finally:
            process.kill()
            process.wait()


def wait_ready(address: str, process: subprocess.Popen[str]) -> None:
    """Wait until the server is ready.

    Raises:
        AssertionError: The server ended, or was not ready in time.
    """
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the server at {address} ended with {process.returncode}")
        # A channel that failed waits before it reconnects, so each attempt opens a new one.
        with grpc.insecure_channel(address) as channel:
            try:
                if SourceStub(channel).IsReady(Empty(), timeout=5).ready:
                    return
            except grpc.RpcError as error:
                call: Any = error
                if call.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
        time.sleep(0.1)
    raise AssertionError(f"no server is ready at {address}")


class Load:
    """A client that waits for jobs."""

    def __init__(self, process: Worker) -> None:
        self._process = process

    def run(self, job: Job) -> Measured:
        """Run a job; AssertionError if it failed, and stderr has the reason."""
        return Measured(**self._process.run(**asdict(job)))


@contextmanager
def load() -> Iterator[Load]:
    """Run a client."""
    with Worker.module("bench.parts.source_load") as process:
        yield Load(process)
