"""A consumer in Go, built from the proto, whose calls go to two gateways in turn: each record comes once, all acked."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.mesh_proxy import RepeatingProxy
from tests.gateway_thread import MakeTopic, StartGateway, Write
from tests.integration.services.gateway import test_peers as peers
from tests.nightly.test_other_languages import PLUGINS, need, run
from tests.paths import ROOT

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.kafka,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed"),
]
GRPC = "google.golang.org/grpc@v1.85.0"


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the stubs and build the program."""
    folder = tmp_path_factory.mktemp("go") / "consumer"
    shutil.copytree(ROOT / "tests" / "nightly" / "go_consumer", folder)
    path = folder / "bin"
    for plugin in PLUGINS:
        need("go", "install", plugin, folder=folder.parent, path=path)
    shutil.copytree(ROOT / "protos", folder / "protos")
    shutil.copy(ROOT / "buf.yaml", folder)
    generate = ("buf", "generate", "protos", "--path", "protos/vendor/kafkapixy", "--template", "buf.gen.yaml")
    need(*generate, folder=folder, path=path)
    need("go", "mod", "init", "dexorder.com/consumer", folder=folder, path=path)
    need("go", "get", GRPC, folder=folder, path=path)
    need("go", "mod", "tidy", folder=folder, path=path)
    need("go", "build", "-o", "consumer", ".", folder=folder, path=path)
    return folder / "consumer"


@pytest.mark.parametrize("style", ["ack", "next"])
async def test_every_record_comes_once_and_is_acked(
    consumer: Path, style: str, start_gateway: StartGateway, kafka: str, kafka_topic: MakeTopic, write: Write
) -> None:
    topic, gateways = kafka_topic(peers.PARTITIONS), peers.pair(start_gateway)
    await peers.joined(topic, *gateways)
    peers.fill(write, topic)
    proxy = RepeatingProxy(*(each.address for each in gateways))
    async with proxy.listening() as address:
        done = await asyncio.to_thread(run, str(consumer), address, topic, style, folder=consumer.parent)
    assert done.returncode == 0, done.stderr
    found = Counter(done.stdout.splitlines())
    assert len(found) == peers.RECORDS == found.total()
    await peers.committed(kafka, topic)
