"""The manifests' promise: every part runs as another user, on a read-only root file system, without a home.

Each part is started with the command and the variables of its manifest and can write nothing but the manifest's volumes
and ``/tmp``. A request for history goes through all of them. Those of the compose file have its certificates and keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dexorder.setup import secrets
from dexorder.supervisor import health
from dexorder.supervisor.plan import KAFKA_PIXY, Ports
from dexorder_common.lake.catalog import CatalogSettings
from tests.confined import UID, confined, own_folder, skip_unless_possible
from tests.nightly.pods import Container, Pod, read_container, read_service
from tests.paths import ROOT
from tests.rig.processes import free_ports, until
from tests.rig.suite import running_suite

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
PARTS = ("relay", "gateway", "events", "udsource", "ingestor", "spark")
READY_SECONDS = 180


def addresses(ports: Ports, events: int) -> dict[str, dict[str, str]]:
    """Return what stands for the manifests' addresses: those of other parts for all, its own for each part."""
    shared = {
        "kafka:9092": f"127.0.0.1:{ports.kafka}",
        "relay:50051": f"127.0.0.1:{ports.relay}",
        "relay:5567": f"127.0.0.1:{ports.broker}",
        "gateway:50053": f"127.0.0.1:{ports.gateway}",
        "events:50053": f"127.0.0.1:{events}",
        "udsource:50052": f"127.0.0.1:{ports.udsource}",
    }
    own = {
        "relay": {"50051": ports.relay, "5567": ports.broker},
        "gateway": {"50053": ports.gateway},
        "events": {"50053": events, "5570": ports.events_sub, "5571": ports.events_router, "8080": ports.web},
        "udsource": {"50052": ports.udsource},
        "ingestor": {"50054": ports.ingestor},
        "spark": {"50055": ports.spark},
    }
    return {
        part: shared | {f"0.0.0.0:{port}": f"127.0.0.1:{here}" for port, here in own[part].items()} for part in PARTS
    }


@pytest.fixture
def base(tmp_path: Path) -> Iterator[tuple[Path, Ports]]:
    """Run Kafka and the simulated exchange, which are not parts of the manifests; return their folder."""
    skip_unless_possible()
    with running_suite(tmp_path / "base", "--only", "kafka,sim") as suite:
        yield suite.directory, Ports.from_base(suite.base_port)


@dataclass(frozen=True)
class Manifests:
    """How one kind of manifests starts the parts here.

    Attributes:
        folders: Mounted folders that a part reads, and what stands for them.
        env: Variables that have another value here.
        client: Variables of a caller from outside.
    """

    read: Callable[[str], Container]
    folders: Mapping[str, Path]
    env: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)


def kubernetes(config: Path, ports: Ports) -> Manifests:
    (config / "containers.yaml").write_text('containers: [{container: relay, client_id: relay, users: "*"}]')
    return Manifests(read_container, {"/etc/dexorder": config, "/jwt-keys": config / "keys", "/containers": config})


def compose(config: Path, ports: Ports) -> Manifests:
    made = config / "secrets"
    secrets.make(made)
    for file in (made, *made.rglob("*")):
        os.chown(file, UID, UID)
    files = {"CA": "ca.crt", "CERTIFICATE": "tls.crt", "KEY": "tls.key"}
    return Manifests(
        read_service,
        {"/secrets": made, "/jwt-keys": config / "keys"},
        {
            "DEXORDER_EXCHANGES": str(config / "exchanges.yaml"),
            "DEXORDER_INGESTOR_LISTEN": f"127.0.0.1:{ports.ingestor}",  # nobody calls it in compose's network
        },
        {f"DEXORDER_CHANNEL_TLS_{name}": str(made / "desk" / file) for name, file in files.items()},
    )


@pytest.mark.parametrize("manifests", [kubernetes, compose])
def test_all_parts_serve_a_request(
    base: tuple[Path, Ports],
    tmp_path: Path,
    manifests: Callable[[Path, Ports], Manifests],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, ports = base
    events = free_ports(1)[0]
    lake, config = own_folder(tmp_path / "a lake"), tmp_path / "config"
    (config / "keys").mkdir(parents=True)
    (config / "exchanges.yaml").write_bytes((directory / "exchanges.yaml").read_bytes())
    how = manifests(config, ports)
    for name, value in how.client.items():
        monkeypatch.setenv(name, value)
    local = CatalogSettings.local(lake)
    catalog = {
        "DEXORDER_CATALOG_NAME": local.name,
        "DEXORDER_CATALOG_URI": local.uri,
        "DEXORDER_CATALOG_WAREHOUSE": local.warehouse,
    }
    pods: dict[str, Pod] = {}
    with ExitStack() as closing:
        for part, texts in addresses(ports, events).items():
            prefix = "GATEWAY" if part == "events" else part.upper()
            pods[part] = Pod(
                part,
                how.read(part),
                own_folder(tmp_path / part),
                texts | {place: str(folder) for place, folder in how.folders.items()},
                {**catalog, **how.env, f"DEXORDER_{prefix}_METRICS_LISTEN": "127.0.0.1:0"},
                writable=[lake],
                readable=[config],
            )
            closing.callback(pods[part].kill)
        gateways = {"gateway": f"{ports.gateway}/{KAFKA_PIXY}", "events": f"{events}"}
        for part, pod in pods.items():
            until(_serves(gateways.get(part, str(getattr(ports, part, "")))), READY_SECONDS, pod.tail)
            assert pod.uid() == UID
        found = _history(ports, config, how.client)
        assert found["status"] == "OK" and found["row_count"] == 24
        assert {part for part, pod in pods.items() if pod.temporary_files()} == {"spark"}  # as docs/production.md says
        # A part that ends by itself within its grace period has written what it keeps.
        assert {part: pods[part].stop() for part in reversed(PARTS)} == dict.fromkeys(PARTS, 0)


def _serves(place: str) -> Callable[[], bool]:
    return lambda: asyncio.run(health.check(f"grpc://127.0.0.1:{place}")).ready


def _history(ports: Ports, readable: Path, client: Mapping[str, str]) -> dict[str, object]:
    """Request a day as a user whose home does not exist, and return the command's JSON."""
    words = "history BTC/USDT.SIM 1h --since 2024-01-01 --until 2024-01-02 --rows 0 --json --quiet"
    command = confined(
        [sys.executable, "-m", "dexorder", *words.split(), "--relay", f"127.0.0.1:{ports.relay}"], readable=[readable]
    )
    environment = {"HOME": "/home/dexorder", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    environment |= client
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))
