"""What a publisher raises, each a `DexorderError`.

DexorderError
├── EventRefused      the event can't be sent: its payload, size or fields; nothing was kept of it
├── OutboxFull        as many events wait for the gateway as may
├── OutboxFailed      the outbox can't be read or written, or another process uses it; nothing was kept of the event
├── EventUnknown      no event of that id waits, and none has ended lately
└── PublisherClosed   it takes no more events
"""

from __future__ import annotations

from dexorder.errors import DexorderError


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
