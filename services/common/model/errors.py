"""The suite's errors, each with the gRPC status it becomes.

    SuiteError                INTERNAL
    ├── InvalidRequest        INVALID_ARGUMENT    a field is out of range or contradicts another
    ├── NotFound              NOT_FOUND           the thing asked for is not there (or not there yet)
    ├── AlreadyExists         ALREADY_EXISTS      an id is taken by something else
    ├── Conflict              FAILED_PRECONDITION the state does not allow it
    ├── Exhausted             RESOURCE_EXHAUSTED  a bounded queue or quota is full
    ├── Unauthenticated       UNAUTHENTICATED     it is not proven who calls
    ├── NotAllowed            PERMISSION_DENIED   the caller may not do that
    └── Unavailable           UNAVAILABLE         a part we need can't be reached; try again

Raised where found, mapped once, in ``boundary.py``. Messages name the field and its value.
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class SuiteError(Exception):
    """Base of every error the suite raises on purpose.

    Attributes:
        retry_seconds: When the same call may succeed, if that is known; goes out as trailing metadata.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retry_seconds: float | None = None


class InvalidRequest(SuiteError):
    """A field is out of range or contradicts another."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(SuiteError):
    """The thing asked for is not there."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(SuiteError):
    """An id is taken by something else."""

    code = grpc.StatusCode.ALREADY_EXISTS


class Conflict(SuiteError):
    """The state does not allow it."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Exhausted(SuiteError):
    """A bounded queue or a quota is full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class Unauthenticated(SuiteError):
    """It is not proven who calls."""

    code = grpc.StatusCode.UNAUTHENTICATED


class NotAllowed(SuiteError):
    """The caller may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unavailable(SuiteError):
    """A part we need can't be reached; the caller may try again."""

    code = grpc.StatusCode.UNAVAILABLE
