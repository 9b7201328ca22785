"""grpcio side of `policy`: one interceptor for every server.

A request that does not parse, or breaks a rule of its fields, is answered with INVALID_ARGUMENT; grpcio alone answers
UNKNOWN with the text of a Python exception. A streaming handler may yield a list of serialized answers in place of one
answer: they are sent one after the other without a step through the handler for each.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from functools import cache, partial
from types import CoroutineType
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from grpc.aio import AbortError

from dexorder_common.metrics import CallMetrics
from dexorder_common.model.errors import RETRY_AFTER, RETRY_PUSHBACK, Code, InvalidRequest
from dexorder_common.rpc.error_details import STATUS_DETAILS, encode_details, field_names, reason_of
from dexorder_common.rpc.field_rules import check_request, has_checks
from dexorder_common.rpc.policy import Admit, CallStatus, InternalText, Method, ServedCall
from dexorder_common.rpc.streams import KEEP_ALIVE_SECONDS, KeptAlive, beside, keep_alive_answer

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = Callable[..., Any]
Check = Callable[[Any], Any]
"""Returns a request, or raises InvalidRequest."""
Fields = Callable[[], frozenset[str]]
"""Returns the names of the fields of a method's request."""
_STATUS = {code: grpc.StatusCode[code.name] for code in Code}
HANDLERS = {
    (False, False): ("unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("server_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("client_stream", grpc.stream_unary_rpc_method_handler),
    (True, True): ("bidi_stream", grpc.stream_stream_rpc_method_handler),
}
"""By (request streaming, response streaming): the label in metrics and the factory of a handler."""


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a decoder that returns an error if the bytes are not a message; `_parsed` raises it in the call."""

    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception as error:  # the caller sent the bytes that the parser refuses
            return InvalidRequest(f"request of {len(data)} bytes does not parse: {error}")

    return decode


def _unless_bytes(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda answer: answer if type(answer) is bytes else serialize(answer)


def _parsed(request: Any) -> Any:
    if isinstance(request, InvalidRequest):
        raise request
    return request


def _checked(request: Any) -> Any:
    if isinstance(_parsed(request), Message):
        check_request(request)
    return request


class _GrpcCall(ServedCall):
    """A call of grpcio."""

    __slots__ = ("_context", "_fields", "_lost")

    def __init__(self, method: Method, context: grpc.aio.ServicerContext[Any, Any], fields: Fields) -> None:
        super().__init__(method)
        self._context = context
        self._fields = fields
        self._lost: grpc.aio.BaseError | None = None

    async def send(self, answers: list[Any]) -> None:
        """Send answers, serialized or not."""
        write_all: Callable[[list[Any]], Awaitable[None]] | None = getattr(self._context, "write_all", None)
        try:
            if write_all is not None:  # missing in grpcio's context
                await write_all(answers)
            else:
                for answer in answers:
                    await self._context.write(answer)
        except grpc.aio.BaseError as error:
            self._lost = error
            raise
        self.method.tally.sent += len(answers)

    async def abort(self, error: BaseException) -> NoReturn:
        """End the call with the status of an error."""
        if isinstance(error, AbortError):  # the handler has ended the call itself
            self.code = code_in(self._context)
            raise error
        if error is self._lost:  # the caller has left
            self.code = Code.CANCELLED
            raise error
        status = self.fail(error, of_transport=isinstance(error, grpc.aio.BaseError))
        if status is None:
            raise error
        await self._context.abort(_STATUS[status.code], status.text, self._metadata(status, error))

    def _metadata(self, status: CallStatus, error: BaseException) -> tuple[tuple[str, str | bytes], ...]:
        details = encode_details(
            status.code,
            status.text,
            reason=reason_of(error),
            method=self.method.path,
            retry_ms=status.retry_ms,
            names=self._fields(),
        )
        if status.retry_ms is None:
            return ((STATUS_DETAILS, details),)
        retry_ms = str(status.retry_ms)
        return (STATUS_DETAILS, details), (RETRY_AFTER, retry_ms), (RETRY_PUSHBACK, retry_ms)


class PolicyInterceptor(grpc.aio.ServerInterceptor):
    """Applies the policy to each call; installed by ``lifecycle.grpc_server`` on every server."""

    is_per_call = False

    def __init__(
        self,
        metrics: CallMetrics,
        admit: Admit | None = None,
        internal_text: InternalText | None = None,
        own_identity: Collection[str] = (),
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """Create the interceptor.

        Args:
            own_identity: Services with handlers that identify the caller, and check the fields of a request after that.
            keep_alive_seconds: Longest time without an answer in an endless stream.
        """
        self._metrics = metrics
        self._admit = admit
        self._internal_text = internal_text or (lambda method, error: None)
        self._own_identity = own_identity
        self._keep_alive_seconds = keep_alive_seconds
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler; an unknown method stays UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self.wrapped(handler, handler_call_details)

    def wrapped(self, handler: Handler, details: grpc.HandlerCallDetails) -> Handler:
        """Return a method's handler with the policy around it."""
        path = details.method
        known = self._wrapped.get(path)
        if known is None or known[0] is not handler:
            known = self._wrapped[path] = handler, self._wrap(path, handler)
        return known[1]

    def _wrap(self, path: str, handler: Handler) -> Handler:
        _, service, name = path.split("/", 2)
        label, make = HANDLERS[handler.request_streaming, handler.response_streaming]
        method = Method(service, name, self._metrics.tally((label, service, name)), self._internal_text)
        check = _parsed if service in self._own_identity or not _has_rules(handler) else _checked
        incoming = partial(_requests if handler.request_streaming else _request, check)
        wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
        deserialize, serialize = handler.request_deserializer, handler.response_serializer
        fields = cache(lambda: _fields_of(deserialize))
        behavior = behavior_of(handler)
        if serialize and handler.response_streaming:
            serialize = _unless_bytes(serialize)
        return make(
            wrap(behavior, method, incoming, fields),
            request_deserializer=_tolerant(deserialize) if deserialize else None,
            response_serializer=serialize,
        )

    def _wrap_unary(self, behavior: Behavior, method: Method, incoming: Behavior, fields: Fields) -> Behavior:
        admit, tally = self._admit, method.tally

        async def unary(request: Any, context: Any) -> Any:
            call = _GrpcCall(method, context, fields)
            try:
                if admit is not None:
                    admit(method.service, context)
                response = behavior(incoming(method, request), context)
                if type(response) is CoroutineType or inspect.isawaitable(response):  # the first is cheap
                    response = await response
                tally.sent += 1
                return response
            except BaseException as error:
                await call.abort(error)
            finally:
                call.finish()

        return unary

    def _wrap_stream(self, behavior: Behavior, method: Method, incoming: Behavior, fields: Fields) -> Behavior:
        admit, tally = self._admit, method.tally
        keep_alive, seconds = keep_alive_answer(f"/{method.path}"), self._keep_alive_seconds

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            call = _GrpcCall(method, context, fields)
            try:
                if admit is not None:
                    admit(method.service, context)
                answers = behavior(incoming(method, request), context)
                if inspect.isawaitable(answers):  # a handler that writes to the context itself
                    await answers
                    return
                if keep_alive is not None:
                    kept = KeptAlive(context, keep_alive, seconds)
                    async with beside(kept.run()), aclosing(answers):
                        async for answer in answers:
                            await kept.send(partial(call.send, answer if type(answer) is list else [answer]))
                    return
                async with aclosing(answers):
                    async for answer in answers:
                        if type(answer) is list:
                            await call.send(answer)
                            continue
                        tally.sent += 1
                        yield answer
            except BaseException as error:
                await call.abort(error)
            finally:
                call.finish()

        return stream


def code_in(context: grpc.aio.ServicerContext[Any, Any]) -> Code:
    """Return the status that a handler has set, or with which it has aborted; OK if it has done neither."""
    number: Any = context.code()  # abort() keeps the number, not the enum
    return next((code for code in Code if number in (code, _STATUS[code])), Code.UNKNOWN)


def behavior_of(handler: Handler) -> Behavior:
    """Return the function that answers the calls of a handler."""
    return next(
        each
        for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if each
    )


def _fields_of(deserialize: Callable[[bytes], Any] | None) -> frozenset[str]:
    """Return the names of the fields of the messages that ``Message.FromString`` makes; none for another decoder."""
    descriptor = _descriptor_of(deserialize)
    return frozenset() if descriptor is None else field_names(descriptor)


def _has_rules(handler: Handler) -> bool:
    """Return whether requests of a handler may break a rule of their fields; True if their type is unknown."""
    descriptor = _descriptor_of(handler.request_deserializer)
    return descriptor is None or has_checks(descriptor)


def _descriptor_of(deserialize: Callable[[bytes], Any] | None) -> Descriptor | None:
    found: Descriptor | None = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
    return found


def _request(check: Check, method: Method, request: Any) -> Any:
    method.tally.received += 1
    return check(request)


async def _requests(check: Check, method: Method, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in stream:
        method.tally.received += 1
        yield check(request)
