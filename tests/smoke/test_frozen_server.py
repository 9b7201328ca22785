"""Suspended or vanished server: every client detects it after 15 s."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.channel import open_channel

pytestmark = pytest.mark.smoke
WAIT_SECONDS = 45.0
"""Our keepalive takes 15 s to detect a frozen peer; gRPC's own default takes 70."""
SERVER = """
import concurrent.futures, sys, grpc
from grpc_health.v1 import health, health_pb2_grpc
server = grpc.server(concurrent.futures.ThreadPoolExecutor())
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """Process id and port of a server."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def test_stream_of_a_suspended_server_ends(server: tuple[int, int]) -> None:
    pid, port = server
    async with open_channel(f"127.0.0.1:{port}") as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        stream = watch(b"", wait_for_ready=True)
        await stream.read()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(stream.read(), WAIT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
