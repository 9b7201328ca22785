"""A collector of traces: an OTLP server in this process that keeps the spans it receives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc


class CollectedSpan(NamedTuple):
    """A span and the part that sent it; ids in hexadecimal digits."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


@dataclass
class Collector(rpc.TraceServiceServicer):
    """Keeps spans, by id: an exporter may repeat a request."""

    address: str = ""
    _spans: dict[str, CollectedSpan] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> pb.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for each in scope.spans:
                    span = CollectedSpan(
                        service,
                        each.name,
                        each.trace_id.hex(),
                        each.span_id.hex(),
                        each.parent_span_id.hex(),
                        _values(each.attributes),
                    )
                    with self._lock:
                        self._spans[span.span_id] = span
        return pb.ExportTraceServiceResponse()

    def spans(self, trace_id: str | None = None) -> list[CollectedSpan]:
        """Return the spans so far, of one trace or of all."""
        with self._lock:
            return [span for span in self._spans.values() if trace_id in (None, span.trace_id)]

    def path(self, span: CollectedSpan) -> tuple[str, ...]:
        """Return ``part: name`` of each span from the root to this one; a parent that did not arrive is ``?``."""
        with self._lock:
            parent = self._spans.get(span.parent_id)
        name = f"{span.service.removeprefix('dexorder-')}: {span.name}"
        if not span.parent_id:
            return (name,)
        return (*(self.path(parent) if parent else ("?",)), name)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process sends its spans here soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}", "OTEL_BSP_SCHEDULE_DELAY": "100"}


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector until the block ends."""
    made = Collector()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    rpc.add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield made
    finally:
        server.stop(None).wait()
