"""Plan of the local suite: ports, parts, their commands and environments. Pure.

    kafka ──▶ gateway ──▶ ingestor      arrow: the right part starts when the left one is ready
      └─────▶ udsource      ▲
    relay ──────────────────┤
    sim ────────────────────┘
    spark                               its JVM starts at once; it is ready when it reads from udsource

Stop order: spark, ingestor, udsource, gateway, relay, sim, kafka, so that no part loses one that it needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from dexorder_common.config import file_uri

if TYPE_CHECKING:
    from dexorder_common.lake.catalog import CatalogSettings

HOST = "127.0.0.1"
EXCHANGES_FILE = "exchanges.yaml"
"""Name of the suite's own copy of the exchanges file, in its folder."""
STOP_ORDER = ("spark", "ingestor", "udsource", "gateway", "relay", "sim", "kafka")
PARTS = ("kafka", "sim", "relay", "gateway", "udsource", "ingestor", "spark")
STARTS_AFTER: Mapping[str, tuple[str, ...]] = {
    "gateway": ("kafka",),
    "udsource": ("kafka",),
    "ingestor": ("relay", "gateway", "sim"),
}
NEEDS_JAVA = ("kafka", "spark")
KAFKA_PIXY = "KafkaPixy"
"""Full name of the gateway's service that needs Kafka; its user events do not."""
STOP_SECONDS: Mapping[str, float] = {"spark": 30.0, "kafka": 20.0}
"""Seconds between SIGTERM and SIGKILL; 15 for the other parts."""


@dataclass(frozen=True)
class Ports:
    """Ports of the suite on loopback; the defaults apply without ``--base-port``."""

    relay: int = 50051
    udsource: int = 50052
    gateway: int = 50053
    kafka: int = 9092
    kafka_controller: int = 9093
    broker: int = 5567
    events_sub: int = 5570
    events_router: int = 5571
    sim: int = 9000
    web: int = 8080
    relay_metrics: int = 9464
    ingestor_metrics: int = 9465
    gateway_metrics: int = 9466
    udsource_metrics: int = 9467
    spark_metrics: int = 9468
    ingestor: int = 50054
    spark: int = 50055

    @staticmethod
    def from_base(base: int) -> Ports:
        """Return a block of ports that starts at ``base``, in the fields' order; ValueError if it does not fit."""
        names = [field.name for field in fields(Ports)]
        if not 1024 <= base <= 65_536 - len(names):
            raise ValueError(f"base port {base} is not within 1024-{65_536 - len(names)}")
        return Ports(**{name: base + offset for offset, name in enumerate(names)})


OWNED: Mapping[str, tuple[str, ...]] = {
    "kafka": ("kafka", "kafka_controller"),
    "sim": ("sim",),
    "relay": ("relay", "broker", "relay_metrics"),
    "gateway": ("gateway", "gateway_metrics", "events_sub", "events_router", "web"),
    "udsource": ("udsource", "udsource_metrics"),
    "ingestor": ("ingestor", "ingestor_metrics"),
    "spark": ("spark", "spark_metrics"),
}
"""Ports on which each part listens."""


@dataclass(frozen=True)
class SuiteOptions:
    """Options of ``dexorder up``."""

    directory: Path
    """Absolute path of the folder that holds all state."""
    ports: Ports = Ports()
    only: tuple[str, ...] = ()
    """The parts to start; empty for all."""
    kafka: str = ""
    """host:port of an external Kafka; empty for the embedded one."""
    recorded: tuple[str, ...] = ()
    """``FILE=SYMBOL`` entries for the simulated exchange, with absolute files."""
    catalog: CatalogSettings | None = None
    """External catalog, which the parts read from their environment; None for the embedded one."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the parts to start, in start order."""
        wanted = self.only or PARTS
        return tuple(part for part in PARTS if part in wanted and not (part == "kafka" and self.kafka))

    @property
    def has_kafka(self) -> bool:
        """Return whether the suite has a Kafka, its own or an existing one."""
        return bool(self.kafka) or "kafka" in self.parts

    @property
    def bootstrap(self) -> str:
        """Return Kafka's ``bootstrap.servers``."""
        return self.kafka or f"{HOST}:{self.ports.kafka}"

    def address(self, port_name: str) -> str:
        """Return host:port of one of the ports."""
        return f"{HOST}:{getattr(self.ports, port_name)}"

    @property
    def scratch(self) -> Path:
        """Return the folder of temporary files; it is emptied at start because a killed part leaves its files."""
        return self.directory / "tmp"

    @property
    def jwt_keys(self) -> Path:
        """Return the folder of the key pair that signs users' tokens here and verifies them in the gateway."""
        return self.directory / "jwt-keys"

    def catalog_properties(self) -> dict[str, str]:
        """Return the properties for pyiceberg's ``load_catalog``, without secrets."""
        if self.catalog:
            return self.catalog.public_properties()
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory / 'catalog.db'}",
            "warehouse": file_uri(self.directory / "warehouse"),
        }


@dataclass(frozen=True)
class Part:
    """Child process of the suite."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    """Variables in addition to the supervisor's own."""
    address: str
    health: str
    """Address of its health check: ``grpc://``, ``http://`` or ``kafka://`` and host:port; see `health`."""
    after: tuple[str, ...]
    """Parts of this suite that must be ready before it starts."""
    stop_seconds: float
    ports: Mapping[str, str] = field(default_factory=dict)
    """host:port of each port on which it listens, by its name in `Ports`."""
    session_nice: int = 0
    """Nice value of its session, set when it is ready: Linux shares the processors among sessions, then within each."""


def parse_only(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list; ValueError if a name is unknown."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PARTS:
            raise ValueError(f"{name!r} is not a part of the suite; use {', '.join(PARTS)}")
    return names


def plan(options: SuiteOptions, *, java: Mapping[str, str]) -> list[Part]:
    """Return the parts to start, in start order. ``java`` is the environment of parts that start Java."""
    shared = {
        **({} if options.catalog else _embedded_catalog(options)),
        "DEXORDER_EXCHANGES": str(options.directory / EXCHANGES_FILE),
        "TMPDIR": str(options.scratch),
    }
    return [_part(name, options, shared, java) for name in options.parts]


def _embedded_catalog(options: SuiteOptions) -> dict[str, str]:
    own = {"NAME": "dexorder", "PROPERTIES": "{}"}
    own |= {name.upper(): value for name, value in options.catalog_properties().items()}
    return {f"DEXORDER_CATALOG_{name}": value for name, value in own.items()}


def _part(name: str, options: SuiteOptions, shared: Mapping[str, str], java: Mapping[str, str]) -> Part:
    own = _own_env(name, options)
    prefix = f"DEXORDER_{name.upper()}_"
    env = {**shared, **(java if name in NEEDS_JAVA else {}), **{prefix + key: value for key, value in own.items()}}
    if name == "gateway":
        env |= {
            "DEXORDER_PIXY_CONFIG": "",  # a KafkaPixy file would name other clusters
            "DEXORDER_EVENTS_DB": str(options.directory / "events.db"),
            "DEXORDER_EVENTS_SUB": f"tcp://{options.address('events_sub')}",
            "DEXORDER_EVENTS_ROUTER": f"tcp://{options.address('events_router')}",
            "DEXORDER_EVENTS_WEB_LISTEN": options.address("web"),
            "DEXORDER_EVENTS_JWT_KEYS": str(options.jwt_keys),
        }
    if name == "spark":
        env["SPARK_LOCAL_DIRS"] = str(options.scratch)
    address = options.address(name)
    scheme = {"kafka": "kafka", "sim": "http"}.get(name, "grpc")
    # Without a Kafka in this suite the gateway is ready when it serves user events.
    service = f"/{KAFKA_PIXY}" if name == "gateway" and options.has_kafka else ""
    return Part(
        name=name,
        command=_command(name, options),
        env=env,
        address=address,
        health=f"{scheme}://{address}{service}",
        after=tuple(other for other in STARTS_AFTER.get(name, ()) if other in options.parts),
        stop_seconds=STOP_SECONDS.get(name, 15.0),
        ports={port: options.address(port) for port in OWNED[name]},
        # Its batches use every processor; parts that answer calls or restart have priority.
        session_nice=10 if name == "spark" else 0,
    )


def _own_env(name: str, options: SuiteOptions) -> dict[str, str]:
    at, directory = options.address, options.directory
    broker = f"tcp://{at('broker')}"
    match name:
        case "relay":
            own = {"LISTEN": at("relay"), "BROKER_LISTEN": broker, "DB": str(directory / "relay.db")}
            own |= {"GATEWAY": at("gateway")}
        case "ingestor":
            own = {"LISTEN": at("ingestor"), "BROKER": broker, "RELAY": at("relay"), "GATEWAY": at("gateway")}
            own |= {"RATE_LIMIT_DIR": str(directory / "budgets")}
        case "gateway":
            own = {"LISTEN": at("gateway"), "KAFKA": options.bootstrap}
        case "udsource":
            own = {"LISTEN": at("udsource"), "KAFKA": options.bootstrap}
        case "spark":
            own = {"LISTEN": at("spark"), "SOURCE": at("udsource"), "RELAY": at("relay")}
            own |= {"GATEWAY": at("gateway"), "TRIGGER_FOLDER": str(directory / "triggers")}
        case "sim":
            return {"LISTEN": at("sim"), "RECORDED": json.dumps(list(options.recorded))}
        case _:
            return {}
    return own | {"METRICS_LISTEN": at(f"{name}_metrics")}


def _command(name: str, options: SuiteOptions) -> tuple[str, ...]:
    # -P: a child runs in the suite's folder, and its subfolders must not be importable as packages.
    python = (sys.executable, "-P", "-m")
    match name:
        case "kafka":
            ports = ("--port", str(options.ports.kafka), "--controller-port", str(options.ports.kafka_controller))
            return (*python, "dexorder.supervisor.kafka", "--dir", str(options.directory), *ports)
        case "sim":
            return (*python, "dexorder_exchange_sim")
        case "spark":
            # For kernels that do not group by session; see `Part.session_nice`.
            return ("nice", "-n", "5", *python, "dexorder_spark")
        case _:
            return (*python, f"dexorder_{name}")


def summary_rows(options: SuiteOptions) -> list[tuple[str, str, str]]:
    """Return the rows of the table that is shown when all is ready: part, address, use."""
    uses: Sequence[tuple[str, str, str]] = (
        ("relay", "relay", "gRPC: requests, progress, notifications"),
        ("relay", "broker", "ZeroMQ: ingestors"),
        ("udsource", "udsource", "gRPC source.v1"),
        ("gateway", "gateway", "gRPC KafkaPixy, user events"),
        ("gateway", "events_sub", "ZeroMQ: events of containers, fast"),
        ("gateway", "events_router", "ZeroMQ: events of containers, guaranteed"),
        ("gateway", "web", "page of user events"),
        ("kafka", "kafka", "Kafka bootstrap.servers"),
        ("sim", "sim", "simulated exchange, Binance's dialect"),
        ("ingestor", "ingestor", "gRPC health"),
        ("spark", "spark", "gRPC health"),
    )
    return [(port, options.address(port), use) for part, port, use in uses if part in options.parts]


def metrics_addresses(options: SuiteOptions) -> dict[str, str]:
    """Return the URL of each part's Prometheus metrics."""
    names = {part: f"{part}_metrics" for part in options.parts}
    return {part: f"http://{options.address(name)}/metrics" for part, name in names.items() if name in OWNED[part]}
