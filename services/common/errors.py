"""The suite's errors, each with the gRPC status it becomes.

    SuiteError                INTERNAL
    ├── InvalidRequest        INVALID_ARGUMENT    a field is out of range or contradicts another
    ├── NotFound              NOT_FOUND           the thing asked for is not there (or not there yet)
    ├── AlreadyExists         ALREADY_EXISTS      an id is taken by something else
    ├── Conflict              FAILED_PRECONDITION the state does not allow it
    ├── Exhausted             RESOURCE_EXHAUSTED  a bounded queue or quota is full
    ├── NotAllowed            PERMISSION_DENIED   the caller may not do that
    └── Unavailable           UNAVAILABLE         a part we need can't be reached; try again

Raised where found, mapped once, in ``boundary.py``. Messages name the field and its value.
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class SuiteError(Exception):
    """Base of every error the suite raises on purpose."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL


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


class NotAllowed(SuiteError):
    """The caller may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unavailable(SuiteError):
    """A part we need can't be reached; the caller may try again."""

    code = grpc.StatusCode.UNAVAILABLE
