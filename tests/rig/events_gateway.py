"""A gateway process with user events and without Kafka, which keeps its addresses across restarts, and its keys."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jwt
import yaml
import zmq
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dexorder_common.messaging.curve import make_keys, read_public_key
from tests.rig.processes import ForkedService, ServiceProcess, free_ports, metric_at, scrape

KID = "test"


class Keys:
    """Keys below one folder: of CURVE as ``pairs`` (public, secret), and the containers file's ``entries``, both by
    container.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pairs: dict[str, tuple[bytes, bytes]] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.jwt_folder = folder / "jwt"
        self.containers_file = folder / "containers.yaml"
        self.jwt_folder.mkdir(exist_ok=True)
        public_file, self.gateway_file = make_keys(folder, "gateway")
        self.gateway_key = read_public_key(public_file)
        self._jwt_key = Ed25519PrivateKey.generate()
        (self.jwt_folder / f"{KID}.pem").write_bytes(
            self._jwt_key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def container(self, name: str, users: list[str] | str = "*", **entry: Any) -> None:
        """Add a container with its own key pair; call `write` afterwards."""
        if name not in self.pairs:
            self.pairs[name] = zmq.curve_keypair()
        self.entries[name] = {"container": name, "curve": self.pairs[name][0].decode(), "users": users, **entry}

    def secret_file(self, name: str) -> Path:
        """Return a container's key pair as the container library reads it."""
        file = self.folder / f"{name}.key_secret"
        public, secret = (key.decode() for key in self.pairs[name])
        file.touch(0o600)
        file.write_text(f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n')
        return file

    def local(self, **entry: Any) -> None:
        """Add the entry of all peers without CURVE; call `write` afterwards."""
        self.entries["local"] = {"container": "local", "users": "*", **entry}

    def write(self) -> None:
        """Replace the containers file atomically."""
        new = self.containers_file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"containers": list(self.entries.values())}))
        new.rename(self.containers_file)

    def token(self, user: str, *, seconds: float = 600, claims: Mapping[str, Any] | None = None, kid: str = KID) -> str:
        """Return a user's JWT; ``claims`` replaces some of its claims."""
        now = time.time()
        given = {"sub": user, "aud": "dexorder", "iat": int(now), "exp": now + seconds, **(claims or {})}
        return jwt.encode(given, self._jwt_key, algorithm="EdDSA", headers={"kid": kid})


class EventsGateway:
    """``python -m dexorder_gateway`` as a context manager that kills it.

    Args:
        folder: Gets its file and the logs of its lives; nobody else's.
        keys: CURVE and JWT keys; the containers file.
        curve: Whether containers prove who they are; without it all of them are "local".
        forked: Fork each life from a server that has the modules imported, for campaigns with many.
        settings: As in EventsSettings; ``log_level`` is the process's.
    """

    def __init__(
        self,
        folder: Path,
        keys: Keys,
        *,
        curve: bool = True,
        forked: bool = False,
        log_level: str = "debug",
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.keys = keys
        self.curve = curve
        self._forked = forked
        self._lives = 0
        self.process: ServiceProcess | ForkedService | None = None
        grpc_port, metrics_port, sub_port, router_port, web_port = free_ports(5)
        self.address = f"127.0.0.1:{grpc_port}"
        self.metrics = f"127.0.0.1:{metrics_port}"
        self.sub = f"tcp://127.0.0.1:{sub_port}"
        self.router = f"tcp://127.0.0.1:{router_port}"
        self.web = f"127.0.0.1:{web_port}"
        values = {
            "db": folder / "events.db",
            "sub": self.sub,
            "router": self.router,
            "web_listen": self.web,
            "jwt_keys": keys.jwt_folder,
            "containers": keys.containers_file,
            **({"curve_key": keys.gateway_file} if curve else {}),
            **settings,
        }
        self.environment = {f"DEXORDER_EVENTS_{name.upper()}": str(value) for name, value in values.items()} | {
            "DEXORDER_GATEWAY_LISTEN": self.address,
            "DEXORDER_GATEWAY_METRICS_LISTEN": self.metrics,
            "DEXORDER_GATEWAY_KAFKA": "",
            "DEXORDER_GATEWAY_TOPICS": "",
            "DEXORDER_GATEWAY_DRAIN_SECONDS": "1",
            "DEXORDER_LOG_LEVEL": log_level,
        }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """Start the process; return once its ports are open."""
        self._lives += 1
        folder = self.folder / f"life-{self._lives}"
        if self._forked:
            self.process = ForkedService("dexorder_gateway", folder, self.environment).listening(self.address)
        else:
            self.process = ServiceProcess("dexorder_gateway", folder, self.environment)
        return self

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()

    @property
    def running(self) -> ServiceProcess | ForkedService:
        """Return the present process."""
        assert self.process is not None
        return self.process

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.running.process.pid or 0

    def logs(self) -> str:
        """Return the logs of all its processes."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("life-*/*.log")))

    def tail(self) -> str:
        """Return the end of the log, for a failure's message."""
        return self.logs()[-3000:]

    def metric(self, name: str) -> float:
        """Return a metric; see `metric_at`."""
        return metric_at(self.metrics, name)

    def dropped(self) -> float:
        """Return the number of dropped and refused messages."""
        found = re.findall(r"^dexorder_\w+_(?:dropped|refused)_total(?:\{[^}]*\})? (\S+)$", scrape(self.metrics), re.M)
        return sum(map(float, found))

    def rss_bytes(self) -> int:
        """Return the resident memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
