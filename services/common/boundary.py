"""The edge of every gRPC server: one interceptor that lets callers in, maps errors, refuses undecodable requests and
counts calls.

SuiteError            its own status, its own text; retry-after-ms in the trailing metadata where it is known
NotImplementedError   UNIMPLEMENTED
undecodable request   INVALID_ARGUMENT (grpcio alone answers UNKNOWN with a Python exception's text)
CancelledError        passes
anything else         INTERNAL with a fixed text; the traceback goes to the log
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from grpc.aio import AbortError

from services.common.errors import InvalidRequest, SuiteError
from services.common.metrics import CallMetrics

log = structlog.get_logger(__name__)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[..., Any]
Admit = Callable[[str, Any], None]
"""Given the service's full name and the call's context; raises what keeps the caller out."""
_TYPES = {
    (False, False): "unary", (False, True): "server_stream", (True, False): "client_stream", (True, True): "bidi_stream"
}  # fmt: skip


@dataclass(frozen=True)
class _Undecodable:
    """Stands in for a request whose bytes are no message of its type."""

    reason: str


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception as error:  # whatever the parser raises, the bytes are the caller's fault
            return _Undecodable(f"request of {len(data)} bytes does not parse: {error}")

    return decode


def _checked(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise InvalidRequest(request.reason)
    return request


class _Call:
    """One RPC: counts it and turns what it raises into a status."""

    def __init__(self, metrics: CallMetrics, labels: tuple[str, str, str], context: grpc.aio.ServicerContext[Any, Any]):
        self._metrics, self._labels, self._context = metrics, labels, context
        self._code = grpc.StatusCode.OK
        self._start = time.perf_counter()
        metrics.started.labels(*labels).inc()
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)

    async def requests(self, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in stream:
            self.received.inc()
            yield _checked(request)

    async def fail(self, error: BaseException) -> NoReturn:
        if isinstance(error, AbortError):
            number: Any = self._context.code()  # abort() keeps the number, not the enum
            self._code = next((c for c in grpc.StatusCode if number in (c, c.value[0])), grpc.StatusCode.UNKNOWN)
            raise error
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self._code = grpc.StatusCode.CANCELLED
            raise error
        if isinstance(error, SuiteError):
            self._code, text = error.code, str(error)
        elif isinstance(error, NotImplementedError):
            self._code, text = grpc.StatusCode.UNIMPLEMENTED, str(error) or "not implemented"
        else:
            self._code, text = grpc.StatusCode.INTERNAL, "internal error; the server's log has the details"
            log.error("rpc failed", method="/".join(self._labels[1:]), exc_info=error)
        seconds = error.retry_seconds if isinstance(error, SuiteError) else None
        wait = () if seconds is None else (("retry-after-ms", str(math.ceil(seconds * 1_000))),)
        await self._context.abort(self._code, text, wait)

    def finish(self) -> None:
        self._metrics.handled.labels(*self._labels, self._code.name).inc()
        self._metrics.seconds.labels(*self._labels).observe(time.perf_counter() - self._start)


class Boundary(grpc.aio.ServerInterceptor):
    """Installed by ``lifecycle.grpc_server`` on every server; see the module's table."""

    def __init__(self, metrics: CallMetrics, admit: Admit | None = None) -> None:
        self._metrics = metrics
        self._admit = admit or (lambda service, context: None)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler; an unknown method has none and stays UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        _, service, method = handler_call_details.method.split("/", 2)
        labels = (_TYPES[handler.request_streaming, handler.response_streaming], service, method)
        wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
        behavior = next(
            b for b in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream) if b
        )
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler, (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler, (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]  # fmt: skip
        deserialize = handler.request_deserializer
        return make(
            wrap(behavior, labels, handler.request_streaming),
            request_deserializer=_tolerant(deserialize) if deserialize else None,
            response_serializer=handler.response_serializer,
        )

    def _wrap_unary(self, behavior: Behavior, labels: tuple[str, str, str], streaming: bool) -> Behavior:
        async def unary(request: Any, context: Any) -> Any:
            call = _Call(self._metrics, labels, context)
            try:
                self._admit(labels[1], context)
                response = behavior(_incoming(call, request, streaming), context)
                if inspect.isawaitable(response):
                    response = await response
                call.sent.inc()
                return response
            except BaseException as error:
                await call.fail(error)
            finally:
                call.finish()

        return unary

    def _wrap_stream(self, behavior: Behavior, labels: tuple[str, str, str], streaming: bool) -> Behavior:
        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            call = _Call(self._metrics, labels, context)
            try:
                self._admit(labels[1], context)
                answers = behavior(_incoming(call, request, streaming), context)
                if inspect.isawaitable(answers):  # a handler that writes to the context itself
                    await answers
                    return
                async with aclosing(answers):
                    async for answer in answers:
                        call.sent.inc()
                        yield answer
            except BaseException as error:
                await call.fail(error)
            finally:
                call.finish()

        return stream


def _incoming(call: _Call, request: Any, streaming: bool) -> Any:
    if streaming:
        return call.requests(request)
    call.received.inc()
    return _checked(request)
