"""GetServerInfo of each server of the suite: reflection, protos and settings confirm its facts; and its callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.server_info import CAPABILITIES, ServerInfo, Stability
from dexorder_common.packages import version
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_common.rpc.identity import OPEN_SERVICES, Role, token_hash
from dexorder_common.rpc.server_info import decode_server_info
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.api.v1 import annotations_pb2
from dexorder_protos.dexorder.server.v1.server_info_service_pb2 import GetServerInfoRequest
from dexorder_protos.dexorder.server.v1.server_info_service_pb2_grpc import ServerInfoServiceStub
from dexorder_spark import server as spark_server
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.server import serve as serve_source
from tests.rig.processes import free_ports
from tests.unit.services.ingestor.conftest import exchanges_file, running_world
from tests.unit.services.relay import harness

NO_KAFKA = "127.0.0.1:1"
Start = Callable[..., AbstractAsyncContextManager[str]]
"""Starts a server with changed settings; yields its address."""


@asynccontextmanager
async def relay(folder: Path, **changed: Any) -> AsyncIterator[str]:
    async with harness.suite(folder, **changed) as suite:
        yield suite.running.address


@asynccontextmanager
async def events(folder: Path, **changed: Any) -> AsyncIterator[str]:
    """Run a gateway with user events and without Kafka."""
    sub, router = free_ports(2)
    settings = EventsSettings(
        db=folder / "events.db",
        sub=f"tcp://127.0.0.1:{sub}",
        router=f"tcp://127.0.0.1:{router}",
        web_listen="",
        max_payload_bytes=5_555,
    )
    own = {"listen": "127.0.0.1:0", "metrics_listen": "", "kafka": "", "drain_seconds": 1, **changed}
    async with gateway(GatewaySettings(**own), settings) as running:
        yield running.address


@asynccontextmanager
async def pixy(folder: Path, **changed: Any) -> AsyncIterator[str]:
    """Run a gateway of Kafka, which does not answer. Its default for retries is no limit, -1."""
    own = {"listen": "127.0.0.1:0", "http_listen": "", "metrics_listen": "", "drain_seconds": 1, "max_retries": -1}
    async with gateway(GatewaySettings(kafka=NO_KAFKA, **{**own, **changed})) as running:
        yield running.address


@asynccontextmanager
async def udsource(folder: Path, **changed: Any) -> AsyncIterator[str]:
    own = {"listen": "127.0.0.1:0", "metrics_listen": "", "socket": None, "drain_seconds": 1, **changed}
    async with serve_source(UdsourceSettings(kafka=NO_KAFKA, **own)) as running:
        yield running.address


@asynccontextmanager
async def ingestor(folder: Path, **changed: Any) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    file = exchanges_file(folder, "http://127.0.0.1:1")
    async with running_world(folder, file, listen=f"127.0.0.1:{port}", **changed):
        yield f"127.0.0.1:{port}"


class IdleDriver:
    """Driver that has nothing to do."""

    def __init__(self, *_: Any, stop: threading.Event, **__: Any) -> None:
        self.run = stop.wait


@asynccontextmanager
async def spark(folder: Path, **changed: Any) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    settings = SparkSettings(listen=f"127.0.0.1:{port}", metrics_listen="", **changed)
    task = asyncio.create_task(spark_server.serve(settings, CatalogSettings(), MaintenanceSettings()))
    try:
        yield settings.listen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


SERVERS: dict[str, tuple[Start, str, dict[str, int]]] = {
    "relay": (relay, "relay", {"max_message_bytes": 1_000_000, "quota_triggers": 7, "parallel_backtests": 3}),
    "events": (events, "gateway", {"max_message_bytes": 1_000_000}),
    "pixy": (pixy, "gateway", {"max_pending_messages": 11}),
    "udsource": (udsource, "udsource", {"max_message_bytes": 1_000_000}),
    "ingestor": (ingestor, "ingestor", {"max_message_bytes": 1_000_000}),
    "spark": (spark, "spark", {"max_records_per_batch": 77}),
}
"""By name: how to start it, its part, and limits to set."""


@pytest.fixture(autouse=True)
def idle_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_server, "Driver", IdleDriver)


async def ask(address: str, token: str | None = None) -> ServerInfo:
    settings = ChannelSettings(token=token)  # type: ignore[arg-type]
    async with open_channel(address, settings) as channel:
        stub: Any = ServerInfoServiceStub(channel)
        return decode_server_info(await stub.GetServerInfo(GetServerInfoRequest(), wait_for_ready=True, timeout=30))


async def reflected(address: str) -> set[str]:
    """Return the services that reflection lists, without the open ones."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # typed as blocking
        call = stub.ServerReflectionInfo(timeout=30)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
    return {each.name for each in answer.list_services_response.service} - OPEN_SERVICES


def stated(service: str) -> Stability:
    """Return the stability in the proto of a service; stable for a given protocol."""
    number = Default().FindServiceByName(service).GetOptions().Extensions[annotations_pb2.stability]
    name = annotations_pb2.Stability.Name(number).removeprefix("STABILITY_").lower()
    return Stability.STABLE if name == "unspecified" else Stability(name)


@pytest.mark.parametrize("name", SERVERS)
async def test_facts_are_those_of_the_server(name: str, tmp_path: Path) -> None:
    start, part, limits = SERVERS[name]
    async with start(tmp_path, **limits) as address:
        info = await ask(address)
        assert set(info.services) == await reflected(address)
    assert (info.part, info.version) == (part, version())
    assert info.services == {each: stated(each) for each in info.services}
    assert info.datasets == tuple(each.name for each in DATASETS)
    assert info.capabilities == tuple(sorted(CAPABILITIES))
    assert {each: info.limits.get(each) for each in limits} == limits
    assert "max_retries" not in info.limits, "-1 is no limit"
    assert (info.limits.get("max_payload_bytes") == 5_555) is (name == "events")


@pytest.mark.parametrize("name", SERVERS)
async def test_each_known_caller_is_answered_and_no_other(name: str, tmp_path: Path) -> None:
    callers = [{"client_id": each, "sha256": token_hash(f"token-of-{each}"), "role": each} for each in map(str, Role)]
    (tmp_path / "callers.yaml").write_text(yaml.safe_dump({"callers": callers}))
    start, part, _ = SERVERS[name]
    async with start(tmp_path, identity="token", tokens=tmp_path / "callers.yaml") as address:
        for role in Role:
            assert (await ask(address, f"token-of-{role}")).part == part
        for token in (None, "unknown"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(address, token)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with grpc.aio.insecure_channel(address) as channel:  # health needs no identity
            stub: Any = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
