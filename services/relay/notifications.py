"""Wake-ups for streams. The logs themselves are in the store; a stream reads on from its cursor when it is woken."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from services.common.model.errors import InvalidRequest, Unavailable

TOPIC_FORMS = ("HISTORY_READY:", "RESPONSE:")


class Signals:
    """Events by key. A signal between two waits is kept, any number of them count once."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._closed = False

    @contextmanager
    def listen(self, key: str) -> Iterator[asyncio.Event]:
        """An event that ``notify(key)`` sets; clear it before looking at what changed."""
        event = asyncio.Event()
        self._listeners[key].add(event)
        try:
            yield event
        finally:
            self._listeners[key].discard(event)
            if not self._listeners[key]:
                del self._listeners[key]

    def notify(self, key: str) -> None:
        """Wake everyone who listens to ``key``."""
        for event in self._listeners.get(key, ()):
            event.set()

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for the event and clear it.

        Raises:
            Unavailable: The relay stops; the stream resumes from its cursor after the restart.
        """
        if not self._closed:
            await event.wait()
        if self._closed:
            raise Unavailable("the relay is stopping; resume from the last cursor")
        event.clear()

    def close(self) -> None:
        """End every stream, now and from now on."""
        self._closed = True
        for listeners in self._listeners.values():
            for event in listeners:
                event.set()


def check_topic(topic: str) -> None:
    """Refuse a topic that no notification can have.

    Raises:
        InvalidRequest: Not one of the two forms, or without an id.
    """
    if not any(topic.startswith(form) and topic != form for form in TOPIC_FORMS):
        raise InvalidRequest(f"topic {topic[:64]!r} is neither HISTORY_READY:request_id nor RESPONSE:client_id")
