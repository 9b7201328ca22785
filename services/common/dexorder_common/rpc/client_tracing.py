"""Spans of the calls that a client makes inside a span; other calls pass as they are."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc.aio import Metadata
from opentelemetry.trace import Span, SpanKind

from dexorder_common import tracing
from dexorder_common.tracing import Attributes

_running: set[asyncio.Task[None]] = set()
"""Keeps the tasks that wait for the ends of calls."""


def rpc_attributes(path: str) -> Attributes:
    """Return the attributes of a call of ``service/method``, by OpenTelemetry's conventions."""
    return {"rpc.system.name": "grpc", "rpc.method": path}


class _Tracing:
    async def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        path = details.method.decode() if isinstance(details.method, bytes) else details.method
        path = path.removeprefix("/")
        span = tracing.start(path, SpanKind.CLIENT, rpc_attributes(path))
        context = tracing.context_of(span)
        if context is None:
            return await continuation(details, request)
        entry = (tracing.TRACEPARENT, context.traceparent)
        try:
            call = await continuation(details._replace(metadata=Metadata(*(details.metadata or ()), entry)), request)
        except BaseException:
            tracing.fail(span, "UNKNOWN")
            span.end()
            raise
        task = asyncio.create_task(_end(span, call))
        _running.add(task)
        task.add_done_callback(_running.discard)
        return call


async def _end(span: Span, call: Any) -> None:
    """End the span when the call ends. A cancelled one has not failed: a caller cancels each endless stream."""
    code = grpc.StatusCode.CANCELLED
    try:
        code = await call.code()
    finally:
        span.set_attribute("rpc.response.status_code", code.name)
        if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            tracing.fail(span, code.name)
        span.end()


# grpc.aio uses an interceptor for the first of its classes only, so each call type has its own
class _UnaryUnary(_Tracing, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _Tracing._intercept  # type: ignore[assignment]


class _UnaryStream(_Tracing, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _Tracing._intercept  # type: ignore[assignment]


def tracing_interceptors() -> list[Any]:
    """Return the interceptors of a channel; none in a process that does not trace."""
    return [_UnaryUnary(), _UnaryStream()] if tracing.is_on() else []
