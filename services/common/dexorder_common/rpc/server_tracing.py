"""Spans of the calls that a server answers: only of calls that the caller traces, and of calls that start a trace.

The interceptor is the outermost, so it sees the statuses that the policy gives to errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any

import grpc
from opentelemetry.context import attach
from opentelemetry.trace import Span, set_span_in_context

from dexorder_common import tracing
from dexorder_common.model.errors import Code
from dexorder_common.rpc.client_tracing import rpc_attributes
from dexorder_common.rpc.server_interceptor import HANDLERS, Behavior, Handler, behavior_of, code_in

_SERVER_ERRORS = frozenset(
    {Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS}
)
"""Statuses that OpenTelemetry counts as failures of the server; the others are the caller's."""


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """Makes a span for each traced call; other calls pass as they are."""

    is_per_call = True

    def __init__(self, roots: Collection[str] = ()) -> None:
        """Start a trace for untraced calls of the methods ``roots`` (``service/method``)."""
        self._roots = frozenset(roots)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the handler of a traced call."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self.wrapped(handler, handler_call_details)

    def wrapped(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """Return a handler that makes a span for one call; the same handler if the call is not traced."""
        path = details.method.removeprefix("/")
        span = tracing.serve(path, details.invocation_metadata, rpc_attributes(path), root=path in self._roots)
        if span is None:
            return handler
        _, make = HANDLERS[handler.request_streaming, handler.response_streaming]
        wrap = _stream if handler.response_streaming else _unary
        return make(
            wrap(behavior_of(handler), span),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _unary(behavior: Behavior, span: Span) -> Behavior:
    async def unary(request: Any, context: Any) -> Any:
        attach(set_span_in_context(span))  # never detached: each call has its own context
        try:
            response = await behavior(request, context)
        except BaseException:
            _end(span, context)
            raise
        _end(span, None)
        return response

    return unary


def _stream(behavior: Behavior, span: Span) -> Behavior:
    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        attach(set_span_in_context(span))
        failed = context
        try:
            async with aclosing(behavior(request, context)) as answers:
                async for answer in answers:
                    yield answer
            failed = None
        finally:
            _end(span, failed)

    return stream


def _end(span: Span, failed: Any) -> None:
    """End the span of a call; ``failed`` is the context of one that has failed or was cancelled."""
    code = Code.OK if failed is None else code_in(failed) or Code.CANCELLED  # a cancelled call ends without a status
    span.set_attribute("rpc.response.status_code", code.name)
    if code in _SERVER_ERRORS:
        tracing.fail(span, code.name)
    span.end()
