"""Prometheus metrics of gRPC calls, under the names the other languages' servers use, and their endpoint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, Histogram, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from services.common.config import split_address
from services.common.model.errors import Code

_BOUNDS = tuple(float(bound) for bound in Histogram.DEFAULT_BUCKETS)
_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_LE = [*(str(bound) for bound in _BOUNDS[:-1]), "+Inf"]


class CallTally:
    """The calls of one method. Plain numbers, as every call adds to most of them; for the server's event loop.

    Attributes:
        handled: Calls ended, by status code.
        buckets: Calls ended, by the first bound in seconds that was not exceeded.
    """

    __slots__ = ("buckets", "handled", "received", "seconds", "sent", "started")

    def __init__(self) -> None:
        self.started = self.received = self.sent = 0
        self.handled: dict[Code, int] = {}
        self.buckets = [0] * len(_BOUNDS)
        self.seconds = 0.0

    def end(self, code: Code, seconds: float) -> None:
        """A call is over."""
        self.handled[code] = self.handled.get(code, 0) + 1
        self.buckets[bisect_left(_BOUNDS, seconds)] += 1
        self.seconds += seconds


class CallMetrics:
    """The calls of one server; labels grpc_type, grpc_service, grpc_method (and grpc_code)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tallies: dict[tuple[str, str, str], CallTally] = {}
        registry.register(self)

    def tally(self, labels: tuple[str, str, str]) -> CallTally:
        """Where the calls of a method are counted."""
        return self._tallies.setdefault(labels, CallTally())

    def describe(self) -> Iterable[Metric]:
        """For the registry: it refuses a second server's."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """For the registry; in the thread of the endpoint."""
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
            below = accumulate(list(tally.buckets))
            seconds.add_metric(labels, list(zip(_LE, below, strict=True)), tally.seconds)
        yield from (started, handled, received, sent, seconds)


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
