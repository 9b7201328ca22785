"""Prometheus metrics of gRPC calls, with the names that go-grpc-prometheus uses, and their endpoint."""

from __future__ import annotations

import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    Info,
    Metric,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer

from dexorder_common.config import split_address
from dexorder_common.model.errors import Code
from dexorder_common.packages import version

MAX_CONNECTIONS, MAX_CONNECTION_SECONDS = 32, 10.0
"""Connections of a metrics endpoint, each with a thread, and how long one may last."""
_BOUNDS = tuple(float(bound) for bound in Histogram.DEFAULT_BUCKETS)
_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_LE = [*(str(bound) for bound in _BOUNDS[:-1]), "+Inf"]


class CallTally:
    """Counts of the calls of one method: plain numbers, for speed. For the server's event loop."""

    __slots__ = ("buckets", "handled", "received", "seconds", "sent", "started")

    def __init__(self) -> None:
        self.started = self.received = self.sent = 0
        self.handled: dict[Code, int] = {}
        self.buckets = [0] * len(_BOUNDS)  # ended calls by the smallest bound that their seconds do not exceed
        self.seconds = 0.0

    def end(self, code: Code, seconds: float) -> None:
        """Count the end of a call."""
        self.handled[code] = self.handled.get(code, 0) + 1
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.seconds += seconds


class CallMetrics:
    """Collector of the calls of one server; labels grpc_type, grpc_service, grpc_method (and grpc_code)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tallies: dict[tuple[str, str, str], CallTally] = {}
        registry.register(self)

    def tally(self, labels: tuple[str, str, str]) -> CallTally:
        """Return the counts of one method."""
        return self._tallies.setdefault(labels, CallTally())

    def describe(self) -> Iterable[Metric]:
        """Return the metrics' names for the registry, which refuses a second server."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for the registry, in the endpoint's thread."""
        tallies = list(self._tallies.items())
        started = CounterMetricFamily("grpc_server_started", "RPCs started.", labels=_LABELS)
        handled = CounterMetricFamily("grpc_server_handled", "RPCs completed.", labels=[*_LABELS, "grpc_code"])
        received = CounterMetricFamily("grpc_server_msg_received", "Messages received.", labels=_LABELS)
        sent = CounterMetricFamily("grpc_server_msg_sent", "Messages sent.", labels=_LABELS)
        seconds = HistogramMetricFamily("grpc_server_handling_seconds", "Time to complete an RPC.", labels=_LABELS)
        for labels, tally in tallies:
            started.add_metric(labels, tally.started)
            received.add_metric(labels, tally.received)
            sent.add_metric(labels, tally.sent)
            for code, count in list(tally.handled.items()):
                handled.add_metric([*labels, code.name], count)
            cumulative = accumulate(list(tally.buckets))
            seconds.add_metric(labels, list(zip(_LE, cumulative, strict=True)), tally.seconds)
        yield from (started, handled, received, sent, seconds)


@contextmanager
def metrics_endpoint(
    listen: str, registry: CollectorRegistry, serving: Callable[[], bool] | None = None
) -> Iterator[str]:
    """Serve the registry at ``http://listen/metrics`` from a thread, unless ``listen`` is empty; yield its address.

    The metrics of the process are added: ``process_*``, ``python_*`` and ``dexorder_build_info``. ``serving`` decides
    the status of ``/healthz``, for probes that can't make a gRPC call, as with TLS: 200 or 503.
    """
    if not listen:
        yield ""
        return
    host, port = split_address(listen)
    _add_process(registry)
    _MetricsServer.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    app = _with_health(make_wsgi_app(registry), serving)
    server = make_server(host, port, app, _MetricsServer, handler_class=_SilentHandler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_health(metrics: Any, serving: Callable[[], bool] | None) -> Any:
    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if serving is None or environ["PATH_INFO"] != "/healthz":
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        status, text = ("200 OK", b"SERVING\n") if serving() else ("503 Service Unavailable", b"NOT_SERVING\n")
        start_response(status, [("Content-Type", "text/plain")])
        return [text]

    return answer


class _MetricsServer(ThreadingWSGIServer):
    """Server with a thread for each connection, of which there are few, and none for long.

    A scrape takes milliseconds, so a connection that does not send its request, or does not read the answer, is closed.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._since_s: dict[Any, float] = {}
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._since_s) >= MAX_CONNECTIONS:
            super().shutdown_request(request)
            return
        self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._since_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that are too old; called twice a second."""
        before_s = time.monotonic() - MAX_CONNECTION_SECONDS
        for request, since_s in list(self._since_s.items()):
            if since_s < before_s:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # its thread sees the end and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log: a client that disconnects is not our error."""


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log no access."""


def _add_process(registry: CollectorRegistry) -> None:
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    Info("dexorder_build", "Version of the package.", registry=registry).info({"version": version()})
