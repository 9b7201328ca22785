"""A handler's view of its call: the methods of `grpc.aio.ServicerContext` that handlers and interceptors use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self

import grpc
from grpc.aio import AbortError

from dexorder_common.rpc.native.metadata import Metadata, decode_metadata

Callback = Callable[[Any], None]
OK = 0


class Head(Protocol):
    """Head of a request; `dexorder_http2.Head`."""

    def get(self, name: str) -> bytes | None:
        """Return the first value of a field."""

    def pairs(self) -> list[tuple[str, bytes]]:
        """Return all fields."""


class Caller(Protocol):
    """The other end of a connection."""

    peer: str
    auth: Mapping[str, Sequence[bytes]]


class CallContext:
    """Facts about a call, and the status that its handler gives it."""

    # Values of most calls, which need none of their own.
    _metadata: Metadata | None = None
    _deadline_s: float | None = None
    _code = OK
    _details = ""
    _initial: Metadata = ()
    _trailing: Metadata = ()
    _callbacks: Sequence[Callback] = ()
    _is_done = False
    _is_cancelled = False

    def __init__(self, head: Head, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._head = head
        self._caller = caller
        self._loop = loop

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the caller."""
        if self._metadata is None:
            self._metadata = decode_metadata(self._head.pairs())
        return self._metadata

    def peer(self) -> str:
        """Return the address of the caller as grpcio writes it."""
        return self._caller.peer

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the properties of the caller's certificate."""
        return self._caller.auth

    def peer_identities(self) -> Sequence[bytes] | None:
        """Return the caller's names under `peer_identity_key`."""
        key = self.peer_identity_key()
        return None if key is None else self._caller.auth[key]

    def peer_identity_key(self) -> str | None:
        """Return the property of `auth_context` that names the caller."""
        names = ("x509_subject_alternative_name", "x509_common_name")
        return next((name for name in names if self._caller.auth.get(name)), None)

    def time_remaining(self) -> float | None:
        """Return the seconds to the call's deadline, 0 after it; None without a deadline."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._loop.time())

    def set_code(self, code: grpc.StatusCode | int) -> None:
        """Set the status with which the call will end."""
        self._code = code if isinstance(code, int) else number_of(code)

    def code(self) -> int:
        """Return the number of the status that was set; 0 without one."""
        return self._code

    def set_details(self, details: str) -> None:
        """Set the text of the status."""
        self._details = details

    def details(self) -> str:
        """Return the text of the status."""
        return self._details

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        """Set the metadata that ends the call."""
        self._trailing = tuple((key, value) for key, value in trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        """Return the metadata that ends the call."""
        return self._trailing

    async def abort(
        self, code: grpc.StatusCode | int, details: str = "", trailing_metadata: Iterable[Any] = ()
    ) -> NoReturn:
        """End the call with this status; it is sent when the handler has left."""
        self.set_code(code)
        if self._code == OK:
            self._code = number_of(grpc.StatusCode.UNKNOWN)
        self._details = details
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        raise AbortError("Locally aborted.")

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        """Call a function with this context once the call has ended."""
        self._callbacks = *self._callbacks, callback

    def done(self) -> bool:
        """Return whether the call's status was sent."""
        return self._is_done

    def cancelled(self) -> bool:
        """Return whether the caller has left before the status was sent."""
        return self._is_cancelled

    def set_compression(self, compression: grpc.Compression) -> None:
        """Do nothing: answers are not compressed."""

    def disable_next_message_compression(self) -> None:
        """Do nothing: answers are not compressed."""


def number_of(code: grpc.StatusCode) -> int:
    """Return the number of a status on the wire."""
    number: int = code.value[0]
    return number
