"""Methods of a server by their paths, with the interceptors around their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import grpc

from dexorder_common.rpc.native.metadata import Metadata

Handler = Any
"""A `grpc.RpcMethodHandler`."""


class CallDetails(NamedTuple):
    """Facts about a call for an interceptor; `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class Interceptor(Protocol):
    """Puts itself around a handler."""

    is_per_call: bool
    """Whether `wrapped` depends on the metadata of each call."""

    def wrapped(self, handler: Handler, details: Any) -> Handler:
        """Return the handler to call in place of this one."""


@dataclass(frozen=True, slots=True)
class Method:
    """How calls of one path are answered."""

    behavior: Callable[..., Any]
    deserialize: Callable[[bytes], Any] | None
    serialize: Callable[[Any], bytes] | None
    request_streaming: bool
    response_streaming: bool


class Methods:
    """Handlers that servicers have added.

    Attributes:
        known: Methods by path; those that were called and do not depend on the metadata of a call.
    """

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._interceptors = tuple(reversed(interceptors))
        self._is_per_call = any(each.is_per_call for each in interceptors)
        self._generic: list[grpc.GenericRpcHandler] = []
        self.known: dict[str, Method] = {}

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add the handlers of a servicer."""
        self._generic += handlers

    def find(self, path: str, metadata: Callable[[], Metadata]) -> Method | None:
        """Return the method of a path; None for an unknown one. Unknown paths are not kept: callers choose them."""
        if (known := self.known.get(path)) is not None:
            return known
        handler = self._handler(path)
        if handler is None:
            return None
        details = CallDetails(path, metadata() if self._is_per_call else ())
        for each in self._interceptors:
            handler = each.wrapped(handler, details)
        method = method_of(handler)
        if not self._is_per_call:
            self.known[path] = method
        return method

    def _handler(self, path: str) -> Handler | None:
        details: Any = CallDetails(path, ())
        found = (each.service(details) for each in self._generic)
        return next((handler for handler in found if handler is not None), None)


def method_of(handler: Handler) -> Method:
    """Return how calls of a handler are answered."""
    behavior = next(
        each
        for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if each
    )
    return Method(
        behavior,
        handler.request_deserializer,
        handler.response_serializer,
        handler.request_streaming,
        handler.response_streaming,
    )
