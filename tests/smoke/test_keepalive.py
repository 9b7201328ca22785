"""Idle stream of a client that pings as often as Go's clients may; a default server ends it with "too many pings"."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_common.rpc.settings import ServiceSettings

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
IDLE_SECONDS = 26
"""Four pings; a default server allows two."""
PINGS = (
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # the default stops after two, so a default client shows nothing
)


@pytest.mark.nightly
async def test_idle_stream_survives_keepalive_pings() -> None:
    async with (
        grpc_server(ServiceSettings(listen="127.0.0.1:0", drain_seconds=1), lambda server: ()) as running,
        grpc.aio.insecure_channel(running.address, options=PINGS) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await asyncio.sleep(IDLE_SECONDS)
        await running.set_serving(True)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
