"""Spans of the work of this process. Without a tracer every function does nothing and imports nothing.

A process gets a tracer by `configure`, if the environment names a collector (``OTEL_EXPORTER_OTLP_ENDPOINT``). A client
in an application that traces itself uses the application's tracer (`adopt`). ``opentelemetry_tracer.py`` is the only
module that imports OpenTelemetry. docs/decisions/0066 has the design, docs/tracing.md the spans.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol, Self, TypeAlias

from dexorder_common.model.trace import TraceContext

log = logging.getLogger(__name__)  # of the standard library: a command has no other
Attributes: TypeAlias = Mapping[str, str | int | float | bool]
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
NO_ATTRIBUTES: Attributes = {}
TRACEPARENT = "traceparent"
"""Name of W3C's header: metadata of a call, or header of a Kafka record."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACER_MODULE = "dexorder_common.opentelemetry_tracer"


class Kind(Enum):
    """Role of a span in a call or message; names of OpenTelemetry's SpanKind."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class Span(Protocol):
    """A piece of work. As a context manager it is the current span inside the block and ends with it.

    An exception that leaves the block marks it as failed, by the name of its class; texts of errors are not recorded.
    """

    @property
    def context(self) -> TraceContext | None:
        """Its place in the trace; None if it is not recorded."""

    @property
    def caller(self) -> TraceContext | None:
        """Context of the span of another process above it; None if there is none."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Add an event that happens now."""

    def fail(self, error_type: str) -> None:
        """Mark the work as failed."""

    def activate(self) -> None:
        """Make it the current span of this task from now on; for a task that ends with the span."""

    def end(self) -> None:
        """End a span that is not used as a context manager."""


class Tracer(Protocol):
    """Source of spans; the functions below have the contracts."""

    def span(
        self, name: str, kind: Kind, attributes: Attributes, parent: TraceContext | None, root: bool, limit: int | None
    ) -> Span:
        """See `span`."""

    def serve(self, name: str, metadata: Metadata | None, attributes: Attributes, root: bool) -> Span | None:
        """See `serve`."""

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
        """See `record`."""

    def current(self) -> Span | None:
        """Return the current span; None if there is none, or it is not recorded."""

    def shutdown(self) -> None:
        """See `shutdown`."""


class _NoSpan:
    """Span of work that is not traced."""

    context = None
    caller = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def set(self, attributes: Attributes) -> None: ...
    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None: ...
    def fail(self, error_type: str) -> None: ...
    def activate(self) -> None: ...
    def end(self) -> None: ...


NO_SPAN: Span = _NoSpan()
_tracer: Tracer | None = None


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether an environment names a collector for traces and does not turn them off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    return not disabled and exporter != "none" and any(environment.get(name, "").strip() for name in _ENDPOINTS)


def configure(part: str) -> None:
    """Trace this process as ``dexorder-{part}``, if the environment names a collector.

    Whatever is wrong with the settings or the packages is logged: tracing never keeps a part from working.
    """
    if not is_wanted(os.environ):
        return
    try:
        use(importlib.import_module(_TRACER_MODULE).exporting_tracer(part))
    except ImportError as error:
        log.warning("no traces: %s is missing; pip install 'dexorder[otel]'", error.name)
    except Exception as error:  # of the exporter's settings, for example
        log.warning("no traces: %s", error)


def adopt() -> None:
    """Use the tracer of an application that traces itself, if it does, and nothing else is set."""
    if _tracer is None and "opentelemetry.trace" in sys.modules:
        use(importlib.import_module(_TRACER_MODULE).application_tracer())


def use(tracer: Tracer | None) -> None:
    """Make all spans with this tracer from now on; None makes none."""
    global _tracer
    _tracer = tracer


def is_on() -> bool:
    """Return whether this process has a tracer."""
    return _tracer is not None


def shutdown() -> None:
    """Send what is left, within seconds, and make no more spans."""
    if _tracer is not None:
        _tracer.shutdown()
    use(None)


def span(
    name: str,
    kind: Kind = Kind.INTERNAL,
    attributes: Attributes = NO_ATTRIBUTES,
    *,
    parent: TraceContext | None = None,
    root: bool = False,
    limit: int | None = None,
) -> Span:
    """Return a span that has begun, below ``parent`` or else below the current span.

    Args:
        root: Begin a trace if there is neither; otherwise the work is not traced.
        limit: Number of spans that may begin inside it; further ones are only counted.
    """
    return NO_SPAN if _tracer is None else _tracer.span(name, kind, attributes, parent, root, limit)


def serve(name: str, metadata: Metadata | None, attributes: Attributes, *, root: bool) -> Span | None:
    """Return the span of a call that a server answers; None if its caller does not trace it.

    Args:
        root: Begin a trace, subject to sampling, if the caller says nothing of one.
    """
    return None if _tracer is None else _tracer.serve(name, metadata, attributes, root)


def record(
    name: str,
    kind: Kind,
    parent: TraceContext,
    times_ns: tuple[int, int],
    attributes: Attributes = NO_ATTRIBUTES,
    *,
    span_id: str | None = None,
    links: Sequence[TraceContext] = (),
    error_type: str = "",
) -> TraceContext | None:
    """Record work that has ended, which another process may have begun; return its context, None if there is none.

    Args:
        times_ns: Its start and end.
        span_id: Its own id, if others know it already.
        links: Spans of other traces that it belongs to as well.
    """
    if _tracer is None:
        return None
    return _tracer.record(name, kind, parent, times_ns, attributes, span_id, links, error_type)


def current() -> Span:
    """Return the current span."""
    return (_tracer.current() if _tracer is not None else None) or NO_SPAN


def headers() -> tuple[tuple[str, str], ...]:
    """Return the metadata that puts a call below the current span; none if that is not recorded."""
    context = current().context
    return () if context is None else ((TRACEPARENT, context.traceparent),)
