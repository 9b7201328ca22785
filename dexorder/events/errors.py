"""Errors of a publisher and of the gateway's client; each is a `DexorderError`.

DexorderError
├── EventRefused        the event's payload, size or fields are invalid; nothing was stored
├── OutboxFull          the outbox has its maximum number of events
├── OutboxFailed        the outbox can't be read or written, or another process uses it; the event was not stored
├── EventUnknown        the event is neither pending nor among the recent outcomes
├── PublisherClosed     the publisher accepts no more events
└── GatewayRefused      the gateway refused the call
    └── GatewayUnreachable  the gateway does not answer
"""

from __future__ import annotations

from dexorder.errors import DexorderError
from services.common.model.errors import Code


class EventRefused(DexorderError):
    """The event is invalid."""


class OutboxFull(DexorderError):
    """The outbox has its maximum number of events."""


class OutboxFailed(DexorderError):
    """The outbox can't be used."""


class EventUnknown(DexorderError):
    """The event is neither pending nor among the recent outcomes."""


class PublisherClosed(DexorderError):
    """The publisher is closed."""


class GatewayRefused(DexorderError):
    """The gateway refused the call.

    Attributes:
        code: Status code of the answer.
    """

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class GatewayUnreachable(GatewayRefused):
    """The gateway does not answer."""
