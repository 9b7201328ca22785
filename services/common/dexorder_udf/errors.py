"""Errors of a UDF. Pure.

SuiteError
└── UdfError            the UDF can't run or has failed; the message starts with its name
    ├── UdfOptionError  an option is unknown or has another type than the UDF declares
    ├── UdfGone         its process or connection ended, or it does not answer; the host starts it again
    └── UdfStopped      the caller's stop ended a wait for it
"""

from __future__ import annotations

from dexorder_common.model.errors import Code, SuiteError


class UdfError(SuiteError):
    """A UDF can't run or has failed. Other UDFs and the host are not affected.

    Attributes:
        udf: The UDF's name.
        reason: What happened, with the UDF's own words where it gave any.
    """

    code = Code.FAILED_PRECONDITION

    def __init__(self, udf: str, reason: str) -> None:
        super().__init__(f'UDF "{udf}": {reason}')
        self.udf = udf
        self.reason = reason


class UdfOptionError(UdfError):
    """An option is unknown or has another type than the UDF declares."""

    code = Code.INVALID_ARGUMENT


class UdfGone(UdfError):
    """The process or the connection has ended, or the UDF does not answer: a restart may help."""

    code = Code.UNAVAILABLE


class UdfKilled(UdfGone):
    """A signal has ended the process, also before it was ready: that says nothing about its options."""


class UdfStopped(UdfError):
    """The caller's stop ended a wait for the UDF, which still runs until it is closed."""

    code = Code.CANCELLED


class ProtocolError(ValueError):
    """One side broke the protocol; the message says how. A restart does not help."""
