"""Prometheus metrics of gRPC calls, under the names the other languages' servers use, and their endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from services.common.config import split_address


class CallMetrics:
    """Counters of one server; labels grpc_type, grpc_service, grpc_method (and grpc_code)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["grpc_type", "grpc_service", "grpc_method"]
        self.started = Counter("grpc_server_started", "RPCs started.", labels, registry=registry)
        self.handled = Counter("grpc_server_handled", "RPCs completed.", [*labels, "grpc_code"], registry=registry)
        self.received = Counter("grpc_server_msg_received", "Messages received.", labels, registry=registry)
        self.sent = Counter("grpc_server_msg_sent", "Messages sent.", labels, registry=registry)
        self.seconds = Histogram("grpc_server_handling_seconds", "Time to complete an RPC.", labels, registry=registry)


@contextmanager
def metrics_endpoint(listen: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve the registry at ``http://listen/metrics`` from a thread; nothing when ``listen`` is empty."""
    if not listen:
        yield ""
        return
    host, port = split_address(listen)
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
