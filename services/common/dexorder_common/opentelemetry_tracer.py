"""Tracer of `tracing` on OpenTelemetry; the only module that imports it, and only in a process that traces."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dexorder_common import tracing
from dexorder_common.model.trace import TraceContext
from dexorder_common.packages import version
from dexorder_common.tracing import NO_SPAN, TRACEPARENT, Attributes, Kind, Metadata, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)
FLUSH_SECONDS = 3.0
"""Longest time that the end of a process waits for the collector."""
LEFT_OUT = "dexorder.spans_left_out"
_TRACESTATE = "tracestate"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_propagator = TraceContextTextMapPropagator()


class _Budget:
    """Spans that may still begin inside one."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.left_out = 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)
_next_span_id: ContextVar[int | None] = ContextVar("next_span_id", default=None)
_random = random.SystemRandom()


def exporting_tracer(part: str) -> OpenTelemetryTracer:
    """Return a tracer that sends to the collector of the ``OTEL_*`` variables.

    Raises:
        ImportError: A package is missing.
        ValueError: ``OTEL_EXPORTER_OTLP_PROTOCOL`` is not grpc.
    """
    for name in _PROTOCOLS:
        if (protocol := os.environ.get(name) or "grpc") != "grpc":
            raise ValueError(f"{name}: {protocol!r} is not supported; use grpc")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return sdk_tracer(part, OTLPSpanExporter(), BatchSpanProcessor)


def sdk_tracer(part: str, exporter: SpanExporter, processor: Any) -> OpenTelemetryTracer:
    """Return a tracer with an SDK of its own, which passes ended spans to an exporter through a processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Ids that `OpenTelemetryTracer.record` may choose."""

        def generate_span_id(self) -> int:
            # not those of the module ``random``, whose seed a program may set to the same value at every start
            return _next_span_id.get() or _random.getrandbits(64) or 1

        def generate_trace_id(self) -> int:
            return _random.getrandbits(128) or 1

    own = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"dexorder-{part}"}
    resource = Resource.create({**own, "service.version": version()})
    provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
    provider.add_span_processor(processor(exporter))
    return OpenTelemetryTracer(provider)


def application_tracer() -> OpenTelemetryTracer:
    """Return a tracer with the SDK of the application; its spans are not recorded while it has none."""
    return OpenTelemetryTracer()


class OpenTelemetryTracer:
    """A `Tracer`; see the functions of `tracing`."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Take the SDK to use and to shut down; None uses that of the application, which shuts it down itself."""
        self._provider = provider
        self._tracer = (provider or trace).get_tracer("dexorder", version())

    def span(
        self, name: str, kind: Kind, attributes: Attributes, parent: TraceContext | None, root: bool, limit: int | None
    ) -> Span:
        """Return a span that has begun."""
        if parent is None and not root and not get_current_span().is_recording():
            return NO_SPAN
        budget = _budget.get()
        if budget is not None:
            if budget.left <= 0:
                budget.left_out += 1
                return NO_SPAN
            budget.left -= 1
        begun = self._tracer.start_span(
            name, context=_below(parent), kind=SpanKind[kind.value], attributes={**attributes}
        )
        return OpenTelemetrySpan(begun, _Budget(limit) if limit is not None else None)

    def serve(self, name: str, metadata: Metadata | None, attributes: Attributes, root: bool) -> Span | None:
        """Return the span of a call to this server."""
        carrier = {key: value for key, value in metadata or () if key in (TRACEPARENT, _TRACESTATE)}
        if not carrier and not root:
            return None
        caller = _propagator.extract(carrier, context=Context())
        known = get_current_span(caller).get_span_context()
        if not (known.trace_flags.sampled if known.is_valid else root):
            return None
        begun = self._tracer.start_span(name, context=caller, kind=SpanKind.SERVER, attributes={**attributes})
        return OpenTelemetrySpan(begun) if begun.is_recording() else None

    def record(
        self,
        name: str,
        kind: Kind,
        parent: TraceContext,
        times_ns: tuple[int, int],
        attributes: Attributes,
        span_id: str | None,
        links: Sequence[TraceContext],
        error_type: str,
    ) -> TraceContext | None:
        """Record work that has ended."""
        start_ns, end_ns = times_ns
        with _chosen(span_id):
            begun = self._tracer.start_span(
                name,
                context=_below(parent),
                kind=SpanKind[kind.value],
                attributes={**attributes},
                links=[Link(_remote(each)) for each in links],
                start_time=start_ns,
            )
        made = OpenTelemetrySpan(begun)
        if error_type:
            made.fail(error_type)
        context = made.context
        begun.end(end_time=max(start_ns, end_ns))
        return context

    def current(self) -> Span | None:
        """Return the current span."""
        now = get_current_span()
        return OpenTelemetrySpan(now) if now.is_recording() else None

    def shutdown(self) -> None:
        """Send what is left, for at most ``FLUSH_SECONDS``."""
        if self._provider is None:
            return
        stopping = threading.Thread(target=self._provider.shutdown, name="traces-shutdown", daemon=True)
        stopping.start()
        stopping.join(FLUSH_SECONDS)
        if stopping.is_alive():
            log.warning("the last spans are lost: the collector does not answer within %g s", FLUSH_SECONDS)


class OpenTelemetrySpan:
    """A `Span`."""

    def __init__(self, span: trace.Span, budget: _Budget | None = None) -> None:
        self._span = span
        self._own_budget = budget
        self._tokens: list[tuple[Token[Context], Token[_Budget | None] | None]] = []

    @property
    def context(self) -> TraceContext | None:
        """Its place in the trace."""
        return _context_of(self._span.get_span_context()) if self._span.is_recording() else None

    @property
    def caller(self) -> TraceContext | None:
        """Context of the span of another process above it."""
        above: SpanContext | None = getattr(self._span, "parent", None)  # of the SDK, not of the API
        return _context_of(above) if above is not None and above.is_remote else None

    def __enter__(self) -> Self:
        budget = None if self._own_budget is None else _budget.set(self._own_budget)
        self._tokens.append((attach(set_span_in_context(self._span)), budget))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        token, budget = self._tokens.pop()
        detach(token)
        if budget is not None:
            _budget.reset(budget)
        if kind is not None:
            self.fail(kind.__name__)
        self.end()

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes({**attributes})

    def event(self, name: str, attributes: Attributes = tracing.NO_ATTRIBUTES) -> None:
        """Add an event."""
        self._span.add_event(name, {**attributes})

    def fail(self, error_type: str) -> None:
        """Mark the work as failed."""
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(StatusCode.ERROR)

    def activate(self) -> None:
        """Make it the current span of this task."""
        attach(set_span_in_context(self._span))

    def end(self) -> None:
        """End it."""
        if self._own_budget is not None and self._own_budget.left_out:
            self._span.set_attribute(LEFT_OUT, self._own_budget.left_out)
        self._span.end()


def _context_of(known: SpanContext) -> TraceContext:
    return TraceContext(f"{known.trace_id:032x}", f"{known.span_id:016x}")


def _remote(context: TraceContext) -> SpanContext:
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=_SAMPLED)


def _below(parent: TraceContext | None) -> Context | None:
    """Return the context of a child of ``parent``, or None for that of the current span."""
    return None if parent is None else set_span_in_context(NonRecordingSpan(_remote(parent)), Context())


@contextmanager
def _chosen(span_id: str | None) -> Iterator[None]:
    """Give the next span this id."""
    token = _next_span_id.set(int(span_id, 16) if span_id else None)
    try:
        yield
    finally:
        _next_span_id.reset(token)
