"""Plan of a suite in a mesh: a sidecar for each part, mutual TLS with SPIFFE names between them. Pure, but for files.

    desk, relay, ingestor, ... -> outbound listener of its own sidecar
                                     | mutual TLS
                                  inbound listener of the other's sidecar -> part on loopback

Each port that the manifests name opaque is passed on as bytes, Kafka's among them: it has a listener for each pod that
connects to it, which advertises the pod's own sidecar. The page and Kafka-Pixy's HTTP API go by HTTP/1.1. Two gateways
share the records of Kafka; calls go to them in turn. The callers files are those of the Istio component, with one
client, ``desk``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import NamedTuple

import yaml

from deploy import write_mesh
from dexorder.supervisor.plan import Part, SuiteOptions, plan
from tests.fixtures_tls import Authority
from tests.nightly.envoy import OPTIONS
from tests.nightly.envoy_config import ISTIO, Listener, Profile, Workload, config

PROFILES = {
    "istio": ISTIO,
    "envoy": Profile(route=15, idle=300),
    "short": Profile(route=3, idle=2, spread="LEAST_REQUEST"),
}
SPIFFE = f"spiffe://{write_mesh.TRUST_DOMAIN}/ns/{write_mesh.NAMESPACE}/sa"
DESK = "desk"
SECOND = "gateway-2"
GATEWAYS = ("gateway", SECOND)
KAFKA = "kafka"
PODS = ("relay", "udsource", *GATEWAYS, "ingestor", "spark", KAFKA, DESK)
PORTS = 90
"""Consecutive ports that a suite in a mesh takes: those of the suite, then those of the sidecars."""
READERS = {pod: f"kafka-{pod}" for pod in (*GATEWAYS, "udsource")}
"""Port of Kafka for each pod that connects to it."""
SERVERS = {
    "relay": ("relay", "broker"),
    "gateway": ("gateway", "events_sub", "events_router", "web", "pixy"),
    SECOND: ("gateway", "pixy"),
    "udsource": ("udsource",),
    KAFKA: (*READERS.values(),),
}
ZMQ = ("broker", "events_sub", "events_router")
OPAQUE = (*ZMQ, *READERS.values())
HTTP1 = ("web", "pixy")
FAST: dict[str, str] = {
    "DEXORDER_GATEWAY_LONG_POLLING_TIMEOUT_MS": "500",
    "DEXORDER_GATEWAY_OFFSETS_COMMIT_INTERVAL_MS": "200",
    "DEXORDER_GATEWAY_ACK_TIMEOUT_SECONDS": "20",
    "DEXORDER_GATEWAY_SESSION_TIMEOUT_MS": "6000",
    "DEXORDER_GATEWAY_NEW_GROUP_START": "earliest",
    "DEXORDER_GATEWAY_PRODUCE_TIMEOUT_SECONDS": "10",
    "DEXORDER_GATEWAY_KEEP_ALIVE_SECONDS": "0.5",
    "DEXORDER_RELAY_KEEP_ALIVE_SECONDS": "0.5",
    "DEXORDER_RELAY_LEASE_SECONDS": "6",
}
"""Settings with which what takes minutes takes seconds."""


class Call(NamedTuple):
    """Calls of a pod to a port of others; ``variable`` is the setting that takes the address."""

    pod: str
    port: str
    targets: tuple[str, ...]
    variable: str = ""


CALLS = (
    Call("relay", "gateway", ("gateway",), "DEXORDER_RELAY_GATEWAY"),
    Call("ingestor", "relay", ("relay",), "DEXORDER_INGESTOR_RELAY"),
    Call("ingestor", "broker", ("relay",), "DEXORDER_INGESTOR_BROKER"),
    Call("ingestor", "gateway", GATEWAYS, "DEXORDER_INGESTOR_GATEWAY"),
    Call("spark", "relay", ("relay",), "DEXORDER_SPARK_RELAY"),
    Call("spark", "udsource", ("udsource",), "DEXORDER_SPARK_SOURCE"),
    Call("spark", "gateway", GATEWAYS, "DEXORDER_SPARK_GATEWAY"),
    Call("gateway", "gateway", (SECOND,), "DEXORDER_GATEWAY_PEERS"),
    Call(SECOND, "gateway", ("gateway",), "DEXORDER_GATEWAY_PEERS"),
    *(Call(pod, READERS[pod], (KAFKA,), "DEXORDER_GATEWAY_KAFKA") for pod in GATEWAYS),
    Call("udsource", READERS["udsource"], (KAFKA,), "DEXORDER_UDSOURCE_KAFKA"),
    Call(DESK, "relay", ("relay",)),
    Call(DESK, "gateway", GATEWAYS),
    Call(DESK, "events", ("gateway",)),
    Call(DESK, "events_sub", ("gateway",)),
    Call(DESK, "events_router", ("gateway",)),
    Call(DESK, "web", ("gateway",)),
    Call(DESK, "pixy", GATEWAYS),
)


def sidecar(pod: str) -> str:
    """Return the name of a pod's sidecar among the suite's parts."""
    return f"{pod}-sidecar"


@dataclass(frozen=True)
class MeshPlan:
    """Ports and parts of one suite.

    Attributes:
        options: Of the suite; the sidecars' ports follow its own.
        envoy: Envoy's command.
    """

    options: SuiteOptions
    envoy: Path
    profile: Profile

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], int]:
        names: list[tuple[str, ...]] = [(pod, kind) for pod in PODS for kind in ("admin", "health")]
        names += [(pod, "in", port) for pod, ports in SERVERS.items() for port in ports]
        names += [(call.pod, "out", call.port) for call in CALLS]
        names += [(SECOND, "metrics"), (SECOND, "listen", "gateway"), *((pod, "listen", "pixy") for pod in GATEWAYS)]
        names += [(KAFKA, "listen", port) for port in READERS.values()]
        return dict(zip(names, count(self.options.ports.relay + 20), strict=False))

    def address(self, pod: str, port: str) -> str:
        """Return where a pod's own sidecar takes its calls to a port of others."""
        return f"127.0.0.1:{self._numbers[pod, 'out', port]}"

    def admin_port(self, pod: str) -> int:
        """Return the admin port of a pod's sidecar."""
        return self._numbers[pod, "admin"]

    def parts(self, java: dict[str, str]) -> Iterator[Part]:
        """Return the sidecars and the suite's parts; writes the certificates and files that they read."""
        authority = Authority(self._folder / "ca")
        self._write_callers()
        for pod in PODS:
            account = "gateway" if pod == SECOND else pod
            yield self._sidecar(pod, Workload(authority.workload(f"{SPIFFE}/{account}"), authority.ca))
        for part in plan(self.options, java=java):
            command = (
                (*part.command, "--properties", str(self._kafka_properties())) if part.name == KAFKA else part.command
            )
            yield replace(part, command=command, env={**part.env, **self._environment(part.name)})
            if part.name == "gateway":
                yield self._second(part)

    @property
    def _folder(self) -> Path:
        return self.options.directory / "mesh"

    def _environment(self, pod: str) -> dict[str, str]:
        found = FAST | {
            name: value.replace("/callers/", f"{self._folder}/") for name, value in write_mesh.settings().items()
        }
        found["DEXORDER_EVENTS_CONTAINERS"] = str(self._folder / "containers.yaml")
        if pod in GATEWAYS:
            found["DEXORDER_GATEWAY_HTTP_LISTEN"] = self._server(pod, "pixy")
        for call in CALLS:
            if call.pod == pod and call.variable:
                scheme = "tcp://" if call.port in ZMQ else ""
                found[call.variable] = scheme + self.address(pod, call.port)
        return found

    def _kafka_properties(self) -> Path:
        """Write Kafka's listeners: its own, and one for each pod, whose clients are sent to the pod's sidecar."""
        own, ports = self.options.ports, enumerate(READERS.items())
        listeners, advertised, protocols = [f"PLAINTEXT://127.0.0.1:{own.kafka}"], [], []
        advertised += listeners
        for number, (pod, port) in ports:
            listeners.append(f"POD{number}://127.0.0.1:{self._numbers[KAFKA, 'listen', port]}")
            advertised.append(f"POD{number}://{self.address(pod, port)}")
            protocols.append(f"POD{number}:PLAINTEXT")
        settings = {
            "listeners": [*listeners, f"CONTROLLER://127.0.0.1:{own.kafka_controller}"],
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *protocols],
        }
        file = self._folder / "kafka.properties"
        file.write_text("".join(f"{name}={','.join(values)}\n" for name, values in settings.items()))
        return file

    def _second(self, first: Part) -> Part:
        grpc, metrics = self._server(SECOND, "gateway"), f"127.0.0.1:{self._numbers[SECOND, 'metrics']}"
        own = {"DEXORDER_GATEWAY_LISTEN": grpc, "DEXORDER_GATEWAY_METRICS_LISTEN": metrics, "DEXORDER_EVENTS_DB": ""}
        return replace(
            first,
            name=SECOND,
            env={**first.env, **self._environment(SECOND), **own},
            address=grpc,
            health=first.health.replace(first.address, grpc),
            ports={},
        )

    def _sidecar(self, pod: str, own: Workload) -> Part:
        numbers = self._numbers
        ways = [
            Listener(numbers[pod, "in", port], [self._server(pod, port)], port in OPAQUE, own, http1=port in HTTP1)
            for port in SERVERS.get(pod, ())
        ]
        for call in (each for each in CALLS if each.pod == pod):
            port = "gateway" if call.port == "events" else call.port
            targets = [f"127.0.0.1:{numbers[target, 'in', port]}" for target in call.targets]
            way = Listener(numbers[pod, "out", call.port], targets, port in OPAQUE, presents=own, http1=port in HTTP1)
            ways.append(way)
        file = self._folder / f"{pod}.json"
        health = numbers[pod, "health"]
        file.write_text(json.dumps(config(ways, self.profile, admin_port=self.admin_port(pod), health_port=health)))
        return Part(
            name=sidecar(pod),
            command=(str(self.envoy), "-c", str(file), *OPTIONS),
            env={},
            address=f"127.0.0.1:{health}",
            health=f"http://127.0.0.1:{health}",
            after=(),
            stop_seconds=5.0,
        )

    def _server(self, pod: str, port: str) -> str:
        own = self._numbers.get((pod, "listen", port))
        return f"127.0.0.1:{own}" if own else self.options.address(port)

    def _write_callers(self) -> None:
        self._folder.mkdir(exist_ok=True)
        for name, text in write_mesh.callers()["data"].items():
            found = yaml.safe_load(text)
            role = "client" if name == "relay.yaml" else "pipeline"  # consumers of Kafka-Pixy are staff
            found["callers"].append({"client_id": DESK, "uri": f"{SPIFFE}/{DESK}", "role": role})
            (self._folder / name).write_text(yaml.safe_dump(found))
        containers = [{"container": name, "client_id": name, "users": "*"} for name in ("relay", DESK)]
        containers.append({"container": "local", "users": "*"})  # what connects to 5571 without CURVE
        (self._folder / "containers.yaml").write_text(yaml.safe_dump({"containers": containers}))
