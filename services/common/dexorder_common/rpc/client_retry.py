"""Meaning of a failed call for its caller: the code, one line of text, and whether another attempt is worth making.

One table serves every client. Each client still decides how long it tries and which of its own errors it raises.

Our servers send details with every error (`STATUS_DETAILS`). A status without them is of the connection, of gRPC, or of
a proxy, which may pass the call on a moment later: a proxy can only reset a stream that had a message, and grpcio makes
INTERNAL, UNKNOWN or CANCELLED of that.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import grpc

from dexorder_common.model.errors import RETRY_AFTER, Code
from dexorder_common.rpc.error_details import STATUS_DETAILS


class Failure(Enum):
    """Kinds of failed calls, by the use of another attempt."""

    UNANSWERED = auto()
    """The server did not answer; it may or may not have acted. Repeat an idempotent call."""
    OVERLOADED = auto()
    """The server answers but is full now, or a message exceeds a limit."""
    DENIED = auto()
    """The server refuses every such call from this caller."""
    REJECTED = auto()
    """The server refuses this request in its present state; a replica that lags behind says so too."""
    BROKEN = auto()
    """The server failed while it handled the call. A Kafka cluster that moves its leaders looks like that."""


_FAILURES = {
    Code.UNAVAILABLE: Failure.UNANSWERED,
    Code.DEADLINE_EXCEEDED: Failure.UNANSWERED,
    Code.RESOURCE_EXHAUSTED: Failure.OVERLOADED,
    Code.UNIMPLEMENTED: Failure.DENIED,
    Code.UNAUTHENTICATED: Failure.DENIED,
    Code.PERMISSION_DENIED: Failure.DENIED,
    Code.FAILED_PRECONDITION: Failure.DENIED,
    Code.INVALID_ARGUMENT: Failure.REJECTED,
    Code.NOT_FOUND: Failure.REJECTED,
    Code.OUT_OF_RANGE: Failure.REJECTED,
}


_OF_PROXIES = {Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.UNIMPLEMENTED}
"""Codes of a stream that a proxy resets, and of a route that it does not have yet."""
_OF_POLICIES = {Code.PERMISSION_DENIED, Code.UNAUTHENTICATED}
"""Codes with which a proxy forbids a call, even in the second before a changed policy reaches it."""
_UNKNOWN_METHOD = ("Method not found!", "Method not implemented!")
"""Texts of a server of grpcio that lacks a method; gRPC itself answers, without our details."""


def failure_of(code: Code) -> Failure:
    """Return the kind of a failure that a server has sent; BROKEN for codes that do not decide about a retry."""
    return _FAILURES.get(code, Failure.BROKEN)


def is_from_server(error: BaseException) -> bool:
    """Return whether one of our servers sent this status."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return False
    metadata: Any = error.trailing_metadata()
    return any(key == STATUS_DETAILS for key, _ in metadata or ())


def failure_in(error: BaseException) -> Failure:
    """Return the kind of the failure of a call of one of our servers, with or without proxies before it."""
    code, text = code_of(error), details_of(error)
    if code not in _OF_PROXIES or is_from_server(error) or any(each in text for each in _UNKNOWN_METHOD):
        return failure_of(code)
    return Failure.UNANSWERED


def code_of(error: BaseException) -> Code:
    """Return the code of an error that grpcio raised; UNKNOWN for any other error."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return Code.UNKNOWN
    status: Any = error.code()
    return Code[status.name] if status else Code.UNKNOWN


def is_failure(error: BaseException, *kinds: Failure) -> bool:
    """Return whether grpcio raised this error for a failed call of one of these kinds."""
    return isinstance(error, grpc.RpcError) and failure_in(error) in kinds


def is_refused(error: BaseException) -> bool:
    """Return whether one of our servers refuses a call for good; a proxy that forbids it may let it through later.

    For a part, which repeats a call for as long as its settings say; a user gets the error at once.
    """
    if code_of(error) in _OF_POLICIES and not is_from_server(error):
        return False
    return is_failure(error, Failure.DENIED, Failure.REJECTED)


def answered(error: BaseException) -> bool:
    """Return whether the server itself sent this status with a time to try again, so that its text is the cause.

    Other errors of the kind UNANSWERED come from the connection.
    """
    metadata = error.trailing_metadata() if isinstance(error, grpc.aio.AioRpcError) else None
    return any(key == RETRY_AFTER for key, _ in metadata or ())


def is_too_large(error: BaseException) -> bool:
    """Return whether a message exceeded a size limit: the same call fails again, though its code means overload."""
    return code_of(error) is Code.RESOURCE_EXHAUSTED and "larger than max" in details_of(error)


def details_of(error: BaseException) -> str:
    """Return the server's text, or "no details"."""
    text = error.details() if isinstance(error, grpc.aio.AioRpcError | grpc.Call) else str(error)
    return text or "no details"


def error_text(error: BaseException) -> str:
    """Return one line for a log or message: a call's code and details, or the text of any other error."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return str(error)
    return f"{code_of(error).name}: {details_of(error)}"
