"""The manifests' promise: every part runs as another user, on a read-only root file system, without a home.

Each part is started with the command, the variables and the mounted files of its manifest: of the rendered chart, the
kustomization or the compose file. It can write only to the manifest's volumes and ``/tmp``. The parts connect by TLS
and identify each caller by its token or certificate. A request for history goes through all of them, and the request
of an unknown caller is refused. Only addresses, exchanges, and the catalog with its warehouse are replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dexorder.setup import secrets
from dexorder.supervisor import health
from dexorder.supervisor.plan import KAFKA_PIXY, Ports
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.rpc.identity import token_hash
from tests.confined import UID, confined, own_folder, skip_unless_possible
from tests.nightly.pods import Container, Contents, Pod, read_container, read_service
from tests.paths import ROOT
from tests.rig.processes import free_ports, until
from tests.rig.suite import running_suite
from tests.unit.deploy.test_pods import kustomized, rendered

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]
READY_SECONDS = 180
OWN_PORTS: Mapping[str, Mapping[int, str]] = {
    "relay": {50051: "relay", 5567: "broker", 9464: "relay_metrics"},
    "gateway": {50053: "gateway", 9466: "gateway_metrics"},
    "events": {50053: "events", 5570: "events_sub", 5571: "events_router", 8080: "web", 9466: "events_metrics"},
    "udsource": {50052: "udsource", 9467: "udsource_metrics"},
    "ingestor": {50054: "ingestor", 9465: "ingestor_metrics"},
    "spark": {50055: "spark", 9468: "spark_metrics"},
}
"""Ports on which each part listens by its manifest, in the order of the start, with the names of those used here."""


def addresses(ports: Mapping[str, int], prefix: str) -> dict[str, dict[str, str]]:
    """Return what replaces the manifests' addresses: those of other parts for all, its own for each part.

    A part listens on all interfaces, as in its container, so it demands TLS and an identity.
    """
    shared = {"kafka:9092": f"127.0.0.1:{ports['kafka']}"}
    for part, own in OWN_PORTS.items():
        shared |= {f"{prefix}{part}:{port}": f"127.0.0.1:{ports[name]}" for port, name in own.items()}
    return {
        part: shared | {f"0.0.0.0:{port}": f"0.0.0.0:{ports[name]}" for port, name in own.items()}
        for part, own in OWN_PORTS.items()
    }


@pytest.fixture
def base(tmp_path: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Run Kafka and the simulated exchange, which are not parts of the manifests; return their folder and all ports."""
    skip_unless_possible()
    with running_suite(tmp_path / "base", "--only", "kafka,sim") as suite:
        events, metrics = free_ports(2)
        own = {"events": events, "events_metrics": metrics}
        yield suite.directory, asdict(Ports.from_base(suite.base_port)) | own


@dataclass(frozen=True)
class Place:
    """What the manifests are edited for: exchanges, and a catalog as variables; ``made`` has certificates and keys."""

    exchanges: Path
    catalog: Mapping[str, str]
    made: Path


@dataclass(frozen=True)
class Manifests:
    """How one kind of manifests starts the parts here.

    Attributes:
        client: Variables of a caller from outside.
        prefix: What the names of the parts' services begin with.
        folders: Mounted folders that a part reads, and what stands for them.
        env: Variables that have another value here.
    """

    read: Callable[[str], Container]
    client: Mapping[str, str]
    prefix: str = ""
    folders: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def kustomization(place: Place) -> Manifests:
    objects = kustomized()
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    maps["settings"].update(place.catalog)
    maps["exchanges"]["exchanges.yaml"] = place.exchanges.read_text()
    return _cluster(objects, place, by_token, "")


def chart(place: Place) -> Manifests:
    return _release(place, by_token, {})


def chart_with_certificates(place: Place) -> Manifests:
    return _release(place, by_certificate, {"tls": {"identity": "certificate"}})


def compose(place: Place) -> Manifests:
    files = {"DEXORDER_EXCHANGES": str(place.exchanges), "DEXORDER_INGESTOR_LISTEN": "127.0.0.1:0"}  # nobody calls it
    folders = {"/secrets": place.made, "/jwt-keys": place.exchanges.parent / "keys"}
    client = by_certificate(place.made)[1]
    return Manifests(read_service, client, folders=folders, env={**place.catalog, **files})


Identity = Callable[[Path], tuple[dict[str, Contents], dict[str, str]]]
"""Makes the Secrets that depend on how callers are known, and the variables of the client desk."""


def by_token(made: Path) -> tuple[dict[str, Contents], dict[str, str]]:
    tokens = {owner: f"key-of-{owner}" for owner in secrets.ROLES}
    callers = [
        {"client_id": owner, "role": role, "sha256": token_hash(tokens[owner])}
        for owner, role in secrets.ROLES.items()
        if role
    ]
    found = {
        "tls": _certificate(made, "relay"),
        "tokens": tokens,
        "callers": {"callers.yaml": yaml.safe_dump({"callers": callers})},
    }
    return found, {"DEXORDER_CHANNEL_TLS_CA": str(made / "desk" / "ca.crt"), "DEXORDER_TOKEN": tokens["desk"]}


def by_certificate(made: Path) -> tuple[dict[str, Contents], dict[str, str]]:
    found = {f"tls-{part}": _certificate(made, part) for part in OWN_PORTS}
    found["callers"] = {"callers.yaml": (made / "relay" / "callers.yaml").read_text()}
    files = {"CA": "ca.crt", "CERTIFICATE": "tls.crt", "KEY": "tls.key"}
    return found, {f"DEXORDER_CHANNEL_TLS_{name}": str(made / "desk" / file) for name, file in files.items()}


def _certificate(made: Path, owner: str) -> Contents:
    return {name: (made / owner / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}


def _release(place: Place, identity: Identity, values: dict[str, Any]) -> Manifests:
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    exchanges = {"BINANCE": None, **yaml.safe_load(place.exchanges.read_text())["exchanges"]}
    file = place.made.parent / "values.yaml"
    file.write_text(yaml.safe_dump({"settings": dict(place.catalog), "exchanges": exchanges, **values}))
    return _cluster(rendered("--values", str(file)), place, identity, "dexorder-")


def _cluster(objects: list[dict[str, Any]], place: Place, identity: Identity, prefix: str) -> Manifests:
    """Add the Secrets of docs/production.md, whose names begin as those of the services."""
    found, client = identity(place.made)
    found["catalog"] = {"DEXORDER_CATALOG_PROPERTIES": "{}"}
    names = ("relay.key_secret", "relay.key", "ingestor.key_secret", "ingestor.key", "events.key_secret")
    found["curve"] = {name: (place.made / name.partition(".")[0] / name).read_text() for name in names}
    given = {f"{prefix}{name}": contents for name, contents in found.items()}
    return Manifests(lambda part: read_container(objects, given, part), client, prefix)


@pytest.mark.parametrize("manifests", [kustomization, chart, chart_with_certificates, compose])
def test_all_parts_serve_a_request(
    base: tuple[Path, dict[str, int]],
    tmp_path: Path,
    manifests: Callable[[Place], Manifests],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, ports = base
    lake, config = own_folder(tmp_path / "a lake"), tmp_path / "config"
    (config / "keys").mkdir(parents=True)
    (config / "exchanges.yaml").write_bytes((directory / "exchanges.yaml").read_bytes())
    made = own_folder(config / "secrets")
    secrets.make(made)
    for file in made.rglob("*"):
        os.chown(file, UID, UID)
    local = CatalogSettings.local(lake)
    catalog = {
        "DEXORDER_CATALOG_NAME": local.name,
        "DEXORDER_CATALOG_URI": local.uri,
        "DEXORDER_CATALOG_WAREHOUSE": local.warehouse,
    }
    how = manifests(Place(config / "exchanges.yaml", catalog, made))
    for name, value in how.client.items():
        monkeypatch.setenv(name, value)
    containers = {part: how.read(part) for part in OWN_PORTS}
    pods: dict[str, Pod] = {}
    with ExitStack() as closing:
        for part, texts in addresses(ports, how.prefix).items():
            pods[part] = Pod(
                part,
                containers[part],
                own_folder(tmp_path / part),
                texts | {place: str(folder) for place, folder in how.folders.items()},
                dict(how.env),
                writable=[lake],
                readable=[config] if how.folders else [],
            )
            closing.callback(pods[part].kill)
        for part, pod in pods.items():
            until(_serves(part, ports), READY_SECONDS, pod.tail)
            assert pod.uid() == UID
        done = _history(ports, config, how.client)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found["status"] == "OK" and found["row_count"] == 24
        unknown = _history(ports, config, {"DEXORDER_CHANNEL_TLS_CA": how.client["DEXORDER_CHANNEL_TLS_CA"]})
        assert unknown.returncode != 0 and '"row_count"' not in unknown.stdout, unknown.stdout
        # As docs/production.md says: the driver, and a part with a folder there in its variables.
        folders = {part: set(read.env.values()) - set(catalog.values()) for part, read in containers.items()}
        named = {part for part, values in folders.items() if any(each.startswith("/tmp/") for each in values)}
        assert {part for part, pod in pods.items() if pod.temporary_files()} == {"spark", *named}
        # A part that ends by itself within its grace period has written what it keeps.
        assert {part: pods[part].stop() for part in reversed(list(OWN_PORTS))} == dict.fromkeys(OWN_PORTS, 0)


def _serves(part: str, ports: Mapping[str, int]) -> Callable[[], bool]:
    """Return a probe: the manifest's, by HTTP without TLS; for the gateway also the health of its service for Kafka."""
    probes = [f"http://127.0.0.1:{ports[f'{part}_metrics']}"]
    if part == "gateway":
        probes.append(f"grpc://127.0.0.1:{ports[part]}/{KAFKA_PIXY}")
    return lambda: all(asyncio.run(health.check(probe)).ready for probe in probes)


def _history(ports: Mapping[str, int], readable: Path, client: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Request a day as a user whose home does not exist."""
    words = "history BTC/USDT.SIM 1h --since 2024-01-01 --until 2024-01-02 --rows 0 --json --quiet"
    command = confined(
        [sys.executable, "-m", "dexorder", *words.split(), "--relay", f"127.0.0.1:{ports['relay']}"],
        readable=[readable],
    )
    environment = {"HOME": "/home/dexorder", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    environment |= client
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300, check=False)
