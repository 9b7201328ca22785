"""Health follows the broker and the gateway; a bad exchanges file ends the start with a reason."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.server import collect_rarely, work
from tests.rig.processes import free_ports
from tests.unit.services.ingestor.conftest import FAST, StartWorld, exchanges_file
from tests.unit.services.ingestor.fakes import FakeBroker

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def until(states: AsyncIterator[health_pb2.HealthCheckResponse], wanted: int) -> None:
    async for state in states:
        if state.status == wanted:
            return
    raise AssertionError("the stream ended")


async def test_serving_only_while_the_broker_is_there_and_not_when_stopping(world_of: StartWorld) -> None:
    (port,) = free_ports(1)
    async with (
        world_of(listen=f"127.0.0.1:{port}") as world,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        request = health_pb2.HealthCheckRequest(service="")
        states = aiter(health(channel).Watch(request, wait_for_ready=True))
        await until(states, SERVING)
        world.broker.close()
        await until(states, NOT_SERVING)
        world.broker = await FakeBroker.at(world.context, world.broker.address)
        await until(states, SERVING)
        world.stop.set()
        await until(states, NOT_SERVING)


async def test_not_serving_without_a_gateway(world_of: StartWorld) -> None:
    port, nobody = free_ports(2)
    async with (
        world_of(listen=f"127.0.0.1:{port}", gateway=f"127.0.0.1:{nobody}") as world,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await world.broker.offers(2)
        answer = await health(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert answer.status == NOT_SERVING


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "is neither a file nor one of binance, sim$"),
        ("exchanges: {SIM: {ccxt: nonesuch}}", "nonesuch"),
        ("exchanges: [", "is not YAML"),
    ],
)
async def test_bad_exchanges_file_ends_the_start(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "exchanges.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=reason):
        await work(IngestorSettings(**{**FAST, "exchanges": path}), asyncio.Event())


async def test_unusable_rate_limit_folder_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = exchanges_file(tmp_path, "http://127.0.0.1:9")
    settings = IngestorSettings(**{**FAST, "exchanges": path, "rate_limit_dir": tmp_path / "file"})
    with pytest.raises(SystemExit, match=r"DEXORDER_INGESTOR_RATE_LIMIT_DIR: the rate limits can't be stored: .*file"):
        await work(settings, asyncio.Event())


def test_full_collections_are_rare_and_leave_out_what_was_imported() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        young, middle, full = gc.get_threshold()
        assert young * middle * full >= 10_000_000 and young <= 10_000, "a young one is to be short"
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
