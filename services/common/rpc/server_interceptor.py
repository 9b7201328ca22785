"""The edge of every gRPC server: one interceptor that lets callers in, maps errors, refuses undecodable requests and
counts calls.

SuiteError            its own status, its own text; retry-after-ms in the trailing metadata where it is known
NotImplementedError   UNIMPLEMENTED
undecodable request   INVALID_ARGUMENT (grpcio alone answers UNKNOWN with a Python exception's text)
CancelledError        passes
anything else         INTERNAL with a fixed text, or one of `Unforeseen`; the traceback goes to the log

A streaming handler may give a list of serialized answers in place of one answer: they are sent one after the other
without a step through the handler for each.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from grpc.aio import AbortError

from services.common.metrics import CallMetrics, CallTally
from services.common.model.errors import InvalidRequest, SuiteError

log = structlog.get_logger(__name__)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[..., Any]
Admit = Callable[[str, Any], None]
"""Given the service's full name and the call's context; raises what keeps the caller out."""
Unforeseen = Callable[[str, BaseException], str | None]
"""Given ``service/method`` and what it raised that is no error of ours; the text of the answer, none: the fixed one."""
_TYPES = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


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


def _unless_bytes(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda answer: answer if type(answer) is bytes else serialize(answer)


def _checked(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise InvalidRequest(request.reason)
    return request


@dataclass(frozen=True, slots=True)
class _Method:
    """What its calls have in common.

    Attributes:
        name: ``service/method``, for the log.
        streaming: Whether its requests are a stream.
        unforeseen: Told of errors that are none of ours.
    """

    service: str
    name: str
    tally: CallTally
    streaming: bool
    unforeseen: Unforeseen


class _Call:
    """One RPC: counts it and turns what it raises into a status."""

    __slots__ = ("_code", "_context", "_lost", "_method", "_start")

    def __init__(self, method: _Method, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._method = method
        self._context = context
        self._code = grpc.StatusCode.OK
        self._lost: grpc.aio.BaseError | None = None
        self._start = time.perf_counter()
        method.tally.started += 1

    async def send(self, answers: list[bytes]) -> None:
        """Send serialized answers."""
        try:
            for answer in answers:
                await self._context.write(answer)
        except grpc.aio.BaseError as error:
            self._lost = error
            raise
        self._method.tally.sent += len(answers)

    async def fail(self, error: BaseException) -> NoReturn:
        if isinstance(error, AbortError):
            number: Any = self._context.code()  # abort() keeps the number, not the enum
            self._code = next((c for c in grpc.StatusCode if number in (c, c.value[0])), grpc.StatusCode.UNKNOWN)
            raise error
        if error is self._lost or isinstance(error, (asyncio.CancelledError, GeneratorExit)):  # nobody to tell
            self._code = grpc.StatusCode.CANCELLED
            raise error
        if isinstance(error, SuiteError):
            self._code = error.code
            text = str(error)
        elif isinstance(error, NotImplementedError):
            self._code = grpc.StatusCode.UNIMPLEMENTED
            text = str(error) or "not implemented"
        else:
            log.error("rpc failed", method=self._method.name, exc_info=error)
            # Of grpcio's own errors the wire is to blame, not the handler.
            told = None if isinstance(error, grpc.aio.BaseError) else self._method.unforeseen(self._method.name, error)
            self._code = grpc.StatusCode.INTERNAL
            text = told or "internal error; the server's log has the details"
        seconds = error.retry_seconds if isinstance(error, SuiteError) else None
        wait = () if seconds is None else (("retry-after-ms", str(math.ceil(seconds * 1_000))),)
        await self._context.abort(self._code, text, wait)

    def finish(self) -> None:
        self._method.tally.end(self._code, time.perf_counter() - self._start)


class Boundary(grpc.aio.ServerInterceptor):
    """Installed by ``lifecycle.grpc_server`` on every server; see the module's table."""

    def __init__(self, metrics: CallMetrics, admit: Admit | None = None, unforeseen: Unforeseen | None = None) -> None:
        self._metrics = metrics
        self._admit = admit or (lambda service, context: None)
        self._unforeseen = unforeseen or (lambda method, error: None)
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler; an unknown method has none and stays UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        path = handler_call_details.method
        known = self._wrapped.get(path)
        if known is None or known[0] is not handler:
            known = self._wrapped[path] = handler, self._wrap(path, handler)
        return known[1]

    def _wrap(self, path: str, handler: Handler) -> Handler:
        _, service, name = path.split("/", 2)
        tally = self._metrics.tally((_TYPES[handler.request_streaming, handler.response_streaming], service, name))
        method = _Method(service, f"{service}/{name}", tally, handler.request_streaming, self._unforeseen)
        wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
        behavior = next(
            b for b in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream) if b
        )
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        deserialize, serialize = handler.request_deserializer, handler.response_serializer
        if serialize and handler.response_streaming:
            serialize = _unless_bytes(serialize)
        return make(
            wrap(behavior, method),
            request_deserializer=_tolerant(deserialize) if deserialize else None,
            response_serializer=serialize,
        )

    def _wrap_unary(self, behavior: Behavior, method: _Method) -> Behavior:
        admit, tally = self._admit, method.tally

        async def unary(request: Any, context: Any) -> Any:
            call = _Call(method, context)
            try:
                admit(method.service, context)
                response = behavior(_incoming(method, request), context)
                if type(response) is CoroutineType or inspect.isawaitable(response):  # the first is cheap
                    response = await response
                tally.sent += 1
                return response
            except BaseException as error:
                await call.fail(error)
            finally:
                call.finish()

        return unary

    def _wrap_stream(self, behavior: Behavior, method: _Method) -> Behavior:
        admit, tally = self._admit, method.tally

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            call = _Call(method, context)
            try:
                admit(method.service, context)
                answers = behavior(_incoming(method, request), context)
                if inspect.isawaitable(answers):  # a handler that writes to the context itself
                    await answers
                    return
                async with aclosing(answers):
                    async for answer in answers:
                        if type(answer) is list:
                            await call.send(answer)
                            continue
                        tally.sent += 1
                        yield answer
            except BaseException as error:
                await call.fail(error)
            finally:
                call.finish()

        return stream


def _incoming(method: _Method, request: Any) -> Any:
    if method.streaming:
        return _requests(method, request)
    method.tally.received += 1
    return _checked(request)


async def _requests(method: _Method, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in stream:
        method.tally.received += 1
        yield _checked(request)
