"""Configuration of an Envoy: its listeners, and the servers behind each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.fixtures_tls import Pair

RETRIES = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
"""When Istio's sidecars repeat a call, twice."""
_TYPES = "type.googleapis.com/envoy"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True)
class Workload:
    """What a mesh gives a workload: its certificate, and the authority that signs those of the others."""

    pair: Pair
    ca: Path

    def context(self, side: str, protocol: str = "h2") -> dict[str, Any]:
        """Return Envoy's TLS for a side, Downstream (of callers) or Upstream; both need a certificate."""
        certificate = {"filename": str(self.pair.certificate)}
        common = {
            "tls_certificates": [{"certificate_chain": certificate, "private_key": {"filename": str(self.pair.key)}}],
            "validation_context": {"trusted_ca": {"filename": str(self.ca)}},
            "alpn_protocols": [protocol],
        }
        required = {"require_client_certificate": True} if side == "Downstream" else {}
        kind = f"{_TYPES}.extensions.transport_sockets.tls.v3.{side}TlsContext"
        config = {"@type": kind, "common_tls_context": common, **required}
        return {"name": "envoy.transport_sockets.tls", "typed_config": config}


class Profile(NamedTuple):
    """Timeouts in seconds, 0 for none, and how calls are spread.

    Attributes:
        route: Longest time of a call.
        idle: Longest time in which a stream or connection carries nothing.
        spread: Envoy's name of the rule by which it chooses a server.
    """

    route: float = 0
    idle: float = 0
    spread: str = "ROUND_ROBIN"


ISTIO = Profile()
"""Istio's."""


@dataclass(frozen=True)
class Listener:
    """One port of an Envoy.

    Attributes:
        targets: Servers behind it; the profile says how calls are spread.
        opaque: It passes on bytes, and does not see calls.
        http1: It carries HTTP/1.1 with WebSockets, not HTTP/2.
        accepts: With it the listener is an inbound one: callers need a certificate, and its URI is forwarded. Such a
            one repeats no call and numbers none: the caller's proxy does.
        presents: With it the listener is an outbound one: it shows the server's proxy this certificate.
        filters: HTTP filters before the router.
    """

    port: int
    targets: Sequence[str]
    opaque: bool = False
    accepts: Workload | None = None
    presents: Workload | None = None
    filters: Sequence[dict[str, Any]] = ()
    http1: bool = False

    @property
    def _name(self) -> str:
        return f"port-{self.port}"

    def listener(self, profile: Profile) -> dict[str, Any]:
        """Return Envoy's listener."""
        chain: dict[str, Any] = {"filters": [self._tcp(profile) if self.opaque else self._http(profile)]}
        if self.accepts:
            chain["transport_socket"] = self.accepts.context("Downstream", self._protocol)
        return {"name": self._name, "address": address(f"127.0.0.1:{self.port}"), "filter_chains": [chain]}

    def cluster(self, spread: str) -> dict[str, Any]:
        """Return Envoy's cluster of the servers."""
        endpoints = [{"endpoint": {"address": address(target)}} for target in self.targets]
        found: dict[str, Any] = {
            "name": self._name,
            "type": "STATIC",
            "lb_policy": spread,
            "load_assignment": {"cluster_name": self._name, "endpoints": [{"lb_endpoints": endpoints}]},
        }
        if not self.opaque:
            options = {"@type": f"type.googleapis.com/{_HTTP_OPTIONS}"}
            version = "http_protocol_options" if self.http1 else "http2_protocol_options"
            explicit: dict[str, Any] = {"explicit_http_config": {version: {}}}
            found["typed_extension_protocol_options"] = {_HTTP_OPTIONS: options | explicit}
        if self.presents:
            found["transport_socket"] = self.presents.context("Upstream", self._protocol)
        return found

    @property
    def _protocol(self) -> str:
        return "istio" if self.opaque else "http/1.1" if self.http1 else "h2"

    def _tcp(self, profile: Profile) -> dict[str, Any]:
        idle = {"idle_timeout": f"{profile.idle}s"} if profile.idle else {}
        kind = f"{_TYPES}.extensions.filters.network.tcp_proxy.v3.TcpProxy"
        config = {"@type": kind, "stat_prefix": self._name, "cluster": self._name, **idle}
        return {"name": "envoy.filters.network.tcp_proxy", "typed_config": config}

    def _http(self, profile: Profile) -> dict[str, Any]:
        way: dict[str, Any] = {"cluster": self._name, "timeout": f"{profile.route}s"}
        host: dict[str, Any] = {"name": "all", "domains": ["*"]}
        if not self.accepts:
            way["retry_policy"] = {"retry_on": RETRIES, "num_retries": 2, "retriable_status_codes": [503]}
            host["include_request_attempt_count"] = True
        host["routes"] = [{"match": {"prefix": "/"}, "route": way}]
        found = _manager(self._name, host, self.filters) | {
            "codec_type": "HTTP1" if self.http1 else "HTTP2",
            "stream_idle_timeout": f"{profile.idle}s",
        }
        if self.http1:
            found["upgrade_configs"] = [{"upgrade_type": "websocket"}]
        if self.accepts:
            found["forward_client_cert_details"] = "SANITIZE_SET"
            found["set_current_client_cert_details"] = {"uri": True}
        return {"name": "envoy.filters.network.http_connection_manager", "typed_config": found}


def config(listeners: Iterable[Listener], profile: Profile, *, admin_port: int, health_port: int) -> dict[str, Any]:
    """Return the whole configuration; at the health port any path answers 200."""
    ways = [*listeners]
    resources = {
        "listeners": [*(each.listener(profile) for each in ways), _health(health_port)],
        "clusters": [each.cluster(profile.spread) for each in ways],
    }
    return {"admin": {"address": address(f"127.0.0.1:{admin_port}")}, "static_resources": resources}


def address(target: str) -> dict[str, Any]:
    """Return host:port as Envoy writes it."""
    host, _, port = target.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _health(port: int) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    manager = _manager("health", {"name": "all", "domains": ["*"], "routes": [route]})
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {"name": "health", "address": address(f"127.0.0.1:{port}"), "filter_chains": [{"filters": [network]}]}


def _manager(name: str, host: dict[str, Any], filters: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    router = {"@type": f"{_TYPES}.extensions.filters.http.router.v3.Router"}
    return {
        "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [*filters, {"name": "envoy.filters.http.router", "typed_config": router}],
    }
