"""Errors of the suite, each with the status code that a caller receives.

An error is raised where the problem is found; ``dexorder_common.rpc.policy`` turns it into a status. A message
names the field and its value.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

AUTHORIZATION = "authorization"
"""Metadata with the caller's token, as ``Bearer TOKEN``."""
OWN_AUTHORIZATION = "x-dexorder-token"
"""Metadata with the token alone, beside a proxy's own use of AUTHORIZATION."""
RETRY_AFTER = "retry-after-ms"
"""Name of the trailing metadata entry (or header) with the milliseconds after which the same call may succeed."""


RETRY_PUSHBACK = "grpc-retry-pushback-ms"
"""The same time under the name that gRPC's own retries read."""


class Code(IntEnum):
    """Canonical status codes with the numbers that gRPC and google.rpc.Code give them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class SuiteError(Exception):
    """Base of every error that the suite raises on purpose.

    Attributes:
        retry_seconds: Time after which the same call may succeed; None if it is not known.
    """

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, message: str = "", *, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class InvalidRequest(SuiteError):
    """A field is out of range or contradicts another."""

    code = Code.INVALID_ARGUMENT


class NotFound(SuiteError):
    """The requested thing does not exist, or does not exist yet."""

    code = Code.NOT_FOUND


class AlreadyExists(SuiteError):
    """The id belongs to something else."""

    code = Code.ALREADY_EXISTS


class Conflict(SuiteError):
    """The current state does not allow the operation."""

    code = Code.FAILED_PRECONDITION


class Exhausted(SuiteError):
    """A bounded queue or a quota is full."""

    code = Code.RESOURCE_EXHAUSTED


class Unauthenticated(SuiteError):
    """The caller's identity is not proven."""

    code = Code.UNAUTHENTICATED


class NotAllowed(SuiteError):
    """The caller may not do this."""

    code = Code.PERMISSION_DENIED


class Uncertain(SuiteError):
    """It may have been carried out or not, so only the caller can decide whether to repeat it.

    No proxy repeats a call after this code, and none takes it for "was not carried out".
    """

    code = Code.ABORTED


class Unavailable(SuiteError):
    """A part that we need can't be reached; the call had no effect, and the caller, or a proxy, may try again."""

    code = Code.UNAVAILABLE
