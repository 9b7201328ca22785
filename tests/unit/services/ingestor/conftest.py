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


@dataclass
class Sim:
    """A running simulated exchange."""

    url: str
    http: aiohttp.ClientSession

    async def faults(self, *rules: dict[str, Any]) -> None:
        async with self.http.post(f"{self.url}/sim/faults", json=list(rules)) as answer:
            assert answer.status == 200, await answer.text()

    async def stats(self) -> dict[str, Any]:
        async with self.http.get(f"{self.url}/sim/stats") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def clock(self, **body: int) -> None:
        async with self.http.post(f"{self.url}/sim/clock", json=body) as answer:
            assert answer.status == 200, await answer.text()

    async def truth(self, span: TimeRange, symbol: str = "BTCUSDT", interval: str = "1m") -> dict[int, list[float]]:
        """Return the exchange's candles, open time in ns -> open, high, low, close, volume; faults must be off."""
        found: dict[int, list[float]] = {}
        start_ms = span.start_ns // 1_000_000
        while start_ms < span.end_ns // 1_000_000:
            query: dict[str, str | int] = {
                "symbol": symbol,
                "interval": interval,
                "limit": 1000,
                "startTime": start_ms,
                "endTime": span.end_ns // 1_000_000 - 1,
            }
            async with self.http.get(f"{self.url}/api/v3/klines", params=query) as answer:
                rows = await answer.json()
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
async def running_world(folder: Path, url: str, *, slots: int = 2, **settings: Any) -> AsyncIterator[World]:
    async with running_neighbours(folder, exchanges_file(folder, url, slots=slots)) as there:
        values = {**there.settings, **settings}
        stop = asyncio.Event()
        ingestor = asyncio.create_task(work(IngestorSettings(**values), stop))
        world = World(there.broker, there.gateway, there.relay, there.context, values, stop, ingestor)
        try:
            yield world
        finally:
            stop.set()
            there.gateway.gate.set()
            await ingestor
            world.broker.close()


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

    def start(**settings: Any) -> AbstractAsyncContextManager[World]:
        return running_world(tmp_path, sim.url, **settings)

    return start
