"""A gateway process with user events and without Kafka, which keeps its addresses across restarts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self

from dexorder.testing.event_keys import Keys
from dexorder.testing.processes import ForkedGateway, ServiceProcess, free_ports, metric_at, scrape


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
        self.process: ServiceProcess | ForkedGateway | None = None
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
            self.process = ForkedGateway(folder, self.environment, self.address)
        else:
            self.process = ServiceProcess("dexorder_gateway", folder, self.environment)
        return self

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()

    @property
    def running(self) -> ServiceProcess | ForkedGateway:
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
