"""Idle stream of a client that pings every ten seconds; a default aio server closes it (GOAWAY too_many_pings)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.config import ServiceSettings
from services.common.rpc.channel import open_channel
from services.common.rpc.lifecycle import grpc_server

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
IDLE_SECONDS = 45


async def test_idle_stream_survives_keepalive_pings() -> None:
    async with (
        grpc_server(ServiceSettings(listen="127.0.0.1:0", drain_seconds=1), lambda server: ()) as running,
        open_channel(running.address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await asyncio.sleep(IDLE_SECONDS)
        await running.set_serving(True)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
