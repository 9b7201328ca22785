"""Errors of a publisher and of the gateway's client; each is a `DexorderError`."""

from __future__ import annotations

from dexorder.errors import DexorderError, Refused
from dexorder_common.model.errors import Code


class EventRefused(Refused):
    """The event's payload, size or fields are invalid; nothing was stored."""


class OutboxFull(DexorderError):
    """The outbox has its maximum number of events."""


class OutboxFailed(DexorderError):
    """The outbox can't be read or written, or another process uses it; the event was not stored."""


class EventUnknown(DexorderError):
    """The event is neither pending nor among the recent outcomes."""


class PublisherClosed(DexorderError):
    """The publisher is closed."""


class GatewayRefused(DexorderError):
    """The gateway refused the call."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class GatewayUnreachable(GatewayRefused):
    """The gateway does not answer."""
