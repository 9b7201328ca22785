"""Errors of a UDF. Pure.

SuiteError
└── UdfError            the UDF can't run or has failed; the message starts with its name
    ├── UdfOptionError  an option is unknown or has another type than the UDF declares
    ├── UdfGone         its process or connection ended, or it does not answer; the host starts it again
    │   └── UdfUnreachable  its address does not answer; it may be back at any time
    └── UdfStopped      the caller's stop ended a wait for it
"""

from __future__ import annotations

from dexorder_common.model.errors import Code, SuiteError

MAX_REASON = 2_000
"""Characters of a UDF's words that an error keeps."""


def shown(text: str) -> str:
    """Return an untrusted text, cut, with escapes for characters that a terminal, a log or a table would not show."""
    kept = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}... ({len(text):,} characters)"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in kept)


class UdfError(SuiteError):
    """A UDF can't run or has failed. Other UDFs and the host are not affected.

    Attributes:
        udf: The UDF's name.
        reason: Description of the error, with the UDF's own words if it gave any.
    """

    code = Code.FAILED_PRECONDITION

    def __init__(self, udf: str, reason: str) -> None:
        self.udf = udf
        self.reason = shown(reason)
        super().__init__(f'UDF "{udf}": {self.reason}')


class UdfOptionError(UdfError):
    """An option is unknown or has another type than the UDF declares."""

    code = Code.INVALID_ARGUMENT


class UdfGone(UdfError):
    """The process or the connection has ended, or the UDF does not answer: a restart may help."""

    code = Code.UNAVAILABLE


class UdfKilled(UdfGone):
    """A signal has ended the process, even before it was ready: its options may be right."""


class UdfUnreachable(UdfGone):
    """The UDF's address does not answer; the UDF itself may be in order, and its owner tries again later."""


class UdfStopped(UdfError):
    """The caller's stop ended a wait for the UDF, which still runs until it is closed."""

    code = Code.CANCELLED


class ProtocolError(ValueError):
    """One side broke the protocol; the message says how. A restart does not help."""
