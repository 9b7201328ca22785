"""What a publisher, and whoever asks the gateway of events, raises; each a `DexorderError`.

DexorderError
├── EventRefused        the event can't be sent: its payload, size or fields; nothing was kept of it
├── OutboxFull          as many events wait for the gateway as may
├── OutboxFailed        the outbox can't be read or written, or another process uses it; nothing was kept of the event
├── EventUnknown        no event of that id waits, and none has ended lately
├── PublisherClosed     it takes no more events
└── GatewayRefused      the gateway will not do it, and says why
    └── GatewayUnreachable  the gateway does not answer
"""

from __future__ import annotations

from dexorder.errors import DexorderError
from services.common.model.errors import Code


class EventRefused(DexorderError):
    """The event can't be sent as it is."""


class OutboxFull(DexorderError):
    """As many events wait for the gateway as may."""


class OutboxFailed(DexorderError):
    """The outbox can't be used."""


class EventUnknown(DexorderError):
    """No event of that id waits, and none has ended lately."""


class PublisherClosed(DexorderError):
    """The publisher was closed."""


class GatewayRefused(DexorderError):
    """The gateway will not do it, and says why.

    Attributes:
        code: As it answered.
    """

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class GatewayUnreachable(GatewayRefused):
    """The gateway does not answer."""
