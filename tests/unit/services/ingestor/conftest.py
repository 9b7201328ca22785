"""A whole ingestor between a simulated exchange and fake services."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq.asyncio

from dexorder_common.model.time_range import TimeRange
from dexorder_exchange_sim.config import SimSettings
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.server import work
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as relay_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from tests.fakes.exchange import SimClient
from tests.fakes.exchange import serve as serve_exchange
from tests.fixtures_ccxt import cheap_clients as cheap_clients
from tests.paths import ROOT
from tests.unit.services.ingestor.fakes import FakeBroker, FakeGateway, FakeRelay, grpc_peer

MINUTE_NS = 60_000_000_000
NOW_NS = 1_700_000_123 * 1_000_000_000
"""The exchange's clock: 2023-11-14 22:15:23."""


def minutes(first: int, count: int) -> TimeRange:
    """Return a range of minutes, counted from 2023-11-01."""
    start_ns = 1_698_796_800 * 1_000_000_000 + first * MINUTE_NS
    return TimeRange(start_ns, start_ns + count * MINUTE_NS)


class Sim(SimClient):
    """A running simulated exchange."""

    async def truth(self, span: TimeRange, symbol: str = "BTCUSDT", interval: str = "1m") -> dict[int, list[float]]:
        """Return the exchange's candles, open time in ns -> open, high, low, close, volume; faults must be off."""
        found: dict[int, list[float]] = {}
        start_ms = span.start_ns // 1_000_000
        while start_ms < span.end_ns // 1_000_000:
            last_ms = span.end_ns // 1_000_000 - 1
            rows = await self.klines(symbol=symbol, interval=interval, limit=1000, startTime=start_ms, endTime=last_ms)
            if not rows:
                break
            found.update((row[0] * 1_000_000, [float(v) for v in row[1:6]]) for row in rows)
            start_ms = rows[-1][0] + 1
        return found


@asynccontextmanager
async def running_sim(**settings: Any) -> AsyncIterator[Sim]:
    config = SimSettings(listen="127.0.0.1:0", **{"now_ns": NOW_NS, **settings})
    async with serve_exchange(config) as url, aiohttp.ClientSession() as http:
        yield Sim(url, http)


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with running_sim() as started:
        yield started


def exchanges_file(
    folder: Path, url: str, *, slots: int = 2, realtime: int = 0, ccxt: str = "binance", **options: Any
) -> Path:
    path = folder / "exchanges.yaml"
    venue = {
        "ccxt": ccxt,
        "rest_url": url,
        "ws_url": url.replace("http", "ws", 1),
        "options": {"fetchMarkets": {"types": ["spot"]}},
        "slots": {"historical": slots, "realtime": realtime},
        **options,
    }
    path.write_text(json.dumps({"exchanges": {"SIM": venue}}))
    return path


@dataclass
class Neighbours:
    """Services that an ingestor uses; ``settings`` has their addresses."""

    broker: FakeBroker
    gateway: FakeGateway
    relay: FakeRelay
    context: zmq.asyncio.Context
    settings: dict[str, Any]


@dataclass
class World(Neighbours):
    """A running ingestor and the services that it uses."""

    stop: asyncio.Event
    ingestor: asyncio.Task[None]


FAST: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "metrics_listen": "",
    "backoff_seconds": 0.001,
    "longest_backoff_seconds": 0.01,
    "hole_spacing_seconds": 0.0,
    "close_wait_seconds": 0.0,
    "heartbeat_seconds": 0.05,
}


@asynccontextmanager
async def running_neighbours(folder: Path, exchanges: Path) -> AsyncIterator[Neighbours]:
    async with AsyncExitStack() as stack:
        context = stack.enter_context(zmq.asyncio.Context())
        broker = FakeBroker(context)
        gateway = FakeGateway()
        relay = FakeRelay(gateway)
        gateway_at = await stack.enter_async_context(
            grpc_peer(lambda s: pixy_rpc.add_KafkaPixyServicer_to_server(gateway, s))
        )
        relay_at = await stack.enter_async_context(
            grpc_peer(lambda s: relay_rpc.add_IngestorServiceServicer_to_server(relay, s))
        )
        settings = {
            **FAST,
            "broker": broker.address,
            "gateway": gateway_at,
            "relay": relay_at,
            "exchanges": exchanges,
            "rate_limit_dir": folder / "budgets",
        }
        neighbours = Neighbours(broker, gateway, relay, context, settings)
        try:
            yield neighbours
        finally:
            gateway.gate.set()
            neighbours.broker.close()


@asynccontextmanager
async def running_ingestor(settings: dict[str, Any]) -> AsyncIterator[tuple[asyncio.Event, asyncio.Task[None]]]:
    """Run an ingestor until the block ends; yield its stop and its task."""
    stop = asyncio.Event()
    ingestor = asyncio.create_task(work(IngestorSettings(**settings), stop))
    try:
        yield stop, ingestor
    finally:
        stop.set()
        await ingestor


@asynccontextmanager
async def running_world(folder: Path, exchanges: Path, **settings: Any) -> AsyncIterator[World]:
    """Run an ingestor and the services that it uses."""
    async with running_neighbours(folder, exchanges) as there:
        values = {**there.settings, **settings}
        async with running_ingestor(values) as running:
            world = World(there.broker, there.gateway, there.relay, there.context, values, *running)
            try:
                yield world
            finally:
                there.gateway.gate.set()
                there.broker = world.broker  # a test may have replaced it


@asynccontextmanager
async def ingestor_process(settings: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``python -m dexorder_ingestor``; kill it at the end if it still runs."""
    own = {k.upper(): str(v) for k, v in settings.items()}
    environment = {f"DEXORDER_INGESTOR_{k}": v for k, v in own.items() if k != "EXCHANGES"}
    environment["DEXORDER_EXCHANGES"] = own["EXCHANGES"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dexorder_ingestor", cwd=ROOT, env=os.environ | environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; the test's own timeout limits the wait."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


StartWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def world_of(tmp_path: Path, sim: Sim) -> StartWorld:
    """Return a function that starts an ingestor for the ``sim`` fixture; keywords are settings."""

    def start(*, slots: int = 2, **settings: Any) -> AbstractAsyncContextManager[World]:
        return running_world(tmp_path, exchanges_file(tmp_path, sim.url, slots=slots), **settings)

    return start
