"""Spans of this process, by OpenTelemetry's API, which has no effect until an SDK is set up.

A part sets one up by `configure` if the environment names a collector (``OTEL_EXPORTER_OTLP_ENDPOINT``). No package of
the SDK is imported otherwise. A client in an application that traces itself uses the SDK of the application.
docs/decisions/0066 has the design, docs/tracing.md the spans.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dexorder_common.model.dispatch_id import TraceContext
from dexorder_common.packages import install_command, version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)  # of the standard library, because commands do not use structlog
Attributes: TypeAlias = Mapping[str, str | int | float | bool]
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
TRACEPARENT = "traceparent"
"""Name of W3C's header: metadata of a call, or header of a Kafka record."""
LEFT_OUT = "dexorder.spans_left_out"
FLUSH_SECONDS = 3.0
"""Longest time that the end of a process waits for the collector."""
_TRACESTATE = "tracestate"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_propagator = TraceContextTextMapPropagator()


class _Budget:
    """Spans that may still start inside one."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.left_out = 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)
_next_span_id: ContextVar[int | None] = ContextVar("next_span_id", default=None)
_random = random.SystemRandom()
_provider: TracerProvider | None = None
"""The SDK of this part; None without one, or if the application has one."""


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether an environment names a collector for traces and does not turn them off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    return not disabled and exporter != "none" and any(environment.get(name, "").strip() for name in _ENDPOINTS)


def configure(part: str) -> None:
    """Trace this process as ``dexorder-{part}``, if the environment names a collector.

    An error in the settings or packages is logged: tracing never keeps a part from working.
    """
    if not is_wanted(os.environ):
        return
    try:
        for name in _PROTOCOLS:
            if (protocol := os.environ.get(name) or "grpc") != "grpc":
                raise ValueError(f"{name}: {protocol!r} is not supported; use grpc")
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        export(part, OTLPSpanExporter(), BatchSpanProcessor)
    except ImportError as error:
        log.warning("no traces: %s is missing; %s", error.name, install_command("otel"))
    except Exception as error:  # of the exporter's settings, for example
        log.warning("no traces: %s", error)


def export(part: str, exporter: SpanExporter, processor: Any) -> None:
    """Set up an SDK for this part, which passes ended spans to an exporter through a processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Ids that `record` may choose."""

        def generate_span_id(self) -> int:
            # not from the module ``random``: a program may set its seed to the same value at every start
            return _next_span_id.get() or _random.getrandbits(64) or 1

        def generate_trace_id(self) -> int:
            return _random.getrandbits(128) or 1

    global _provider
    own = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"dexorder-{part}"}
    resource = Resource.create({**own, "service.version": version()})
    _provider = TracerProvider(resource=resource, id_generator=Ids(), shutdown_on_exit=False)
    _provider.add_span_processor(processor(exporter))


def shutdown() -> None:
    """Send the remaining spans, for at most ``FLUSH_SECONDS``, and make no more."""
    global _provider
    if _provider is None:
        return
    stopping = threading.Thread(target=_provider.shutdown, name="traces-shutdown", daemon=True)
    stopping.start()
    stopping.join(FLUSH_SECONDS)
    if stopping.is_alive():
        log.warning("the last spans are lost: the collector does not answer within %g s", FLUSH_SECONDS)
    _provider = None


def is_on() -> bool:
    """Return whether spans are made: this part has an SDK, or the application has one."""
    return _provider is not None or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _tracer() -> trace.Tracer:
    return (_provider or trace).get_tracer("dexorder", version())


def start(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    *,
    parent: TraceContext | None = None,
    root: bool = False,
) -> Span:
    """Start a span below ``parent`` or else below the current span, to be ended by the caller.

    Args:
        root: Start a trace if there is neither. Otherwise the work is not traced: the span is ``INVALID_SPAN``.
    """
    if not is_on() or (parent is None and not root and not get_current_span().is_recording()):
        return INVALID_SPAN
    if (budget := _budget.get()) is not None:
        if budget.left <= 0:
            budget.left_out += 1
            return INVALID_SPAN
        budget.left -= 1
    return _tracer().start_span(name, context=_below(parent), kind=kind, attributes=attributes)


@contextmanager
def span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    *,
    parent: TraceContext | None = None,
    root: bool = False,
    limit: int | None = None,
) -> Iterator[Span]:
    """Trace a block as a span, see `start`. An error that leaves the block fails the span by the name of its class.

    Args:
        limit: Number of spans that may start inside it; more are only counted.
    """
    started = start(name, kind, attributes, parent=parent, root=root)
    if started is INVALID_SPAN:  # the spans inside belong to the one around it
        yield started
        return
    budget = None if limit is None else _Budget(limit)
    token = _budget.set(budget) if budget else None
    with use_span(started, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield started
        except BaseException as error:
            fail(started, type(error).__name__)
            raise
        finally:
            if budget and token:
                _budget.reset(token)
                if budget.left_out:
                    started.set_attribute(LEFT_OUT, budget.left_out)


def serve(name: str, metadata: Metadata | None, attributes: Attributes, *, root: bool) -> Span | None:
    """Start the span of a call that a server answers; return None if its caller does not trace it.

    Args:
        root: Start a trace, subject to sampling, if the caller sends no context.
    """
    carrier = {key: value for key, value in metadata or () if key in (TRACEPARENT, _TRACESTATE)}
    if not carrier and not root:
        return None
    caller = _propagator.extract(carrier, context=Context())
    known = get_current_span(caller).get_span_context()
    if not (known.trace_flags.sampled if known.is_valid else root):
        return None
    started = _tracer().start_span(name, context=caller, kind=SpanKind.SERVER, attributes=attributes)
    return started if started.is_recording() else None


def record(
    name: str,
    kind: SpanKind,
    parent: TraceContext,
    times_ns: tuple[int, int],
    attributes: Attributes | None = None,
    *,
    span_id: str | None = None,
    links: Sequence[TraceContext] = (),
    error_type: str = "",
) -> TraceContext | None:
    """Record work that has ended, possibly started by another process; return its context, None if it is not recorded.

    Args:
        times_ns: Its start and end.
        span_id: Its own id, if others know it already.
        links: Spans of other traces that it belongs to as well.
    """
    if not is_on():
        return None
    start_ns, end_ns = times_ns
    token = _next_span_id.set(int(span_id, 16) if span_id else None)
    try:
        made = _tracer().start_span(
            name,
            context=_below(parent),
            kind=kind,
            attributes=attributes,
            links=[Link(_remote(each)) for each in links],
            start_time=start_ns,
        )
    finally:
        _next_span_id.reset(token)
    if error_type:
        fail(made, error_type)
    context = context_of(made)
    made.end(end_time=max(start_ns, end_ns))
    return context


def fail(failed: Span, error_type: str) -> None:
    """Mark the work of a span as failed. Texts of errors are not recorded."""
    failed.set_attribute("error.type", error_type)
    failed.set_status(StatusCode.ERROR)


def context_of(one: Span) -> TraceContext | None:
    """Return the place of a span in its trace; None if it is not recorded."""
    return _context(one.get_span_context()) if one.is_recording() else None


def caller_of(one: Span) -> TraceContext | None:
    """Return the context of the span above it if that is of another process."""
    above: SpanContext | None = getattr(one, "parent", None)  # of the SDK, not of the API
    return _context(above) if above is not None and above.is_remote else None


def headers() -> tuple[tuple[str, str], ...]:
    """Return the metadata that puts a call below the current span; none if that is not recorded."""
    context = context_of(get_current_span())
    return () if context is None else ((TRACEPARENT, context.traceparent),)


def _context(known: SpanContext) -> TraceContext:
    return TraceContext(f"{known.trace_id:032x}", f"{known.span_id:016x}")


def _remote(context: TraceContext) -> SpanContext:
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=_SAMPLED)


def _below(parent: TraceContext | None) -> Context | None:
    """Return the context of a child of ``parent``, or None for the context of the current span."""
    return None if parent is None else set_span_in_context(NonRecordingSpan(_remote(parent)), Context())
