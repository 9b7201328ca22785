"""Interface of a channel, and what its implementations share: common reasons and truncation of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.model import Contacts, EventMessage, Result

NO_CONTACT = "no contact"
NOT_CONFIGURED = "not configured"
HOST_NOT_ALLOWED = "host not allowed"
NOT_ACCEPTED = "not accepted"
NO_CONNECTION = "no connection"
TIMEOUT = "timeout"
PUSH_TTL_SECONDS: Final = {Priority.INFORMATIONAL: 0, Priority.NORMAL: 3600, Priority.CRITICAL: 24 * 3600}
"""Time for which a push service keeps a message for a device that is offline."""
_ELLIPSIS = "…"


class ChannelAdapter(Protocol):
    """One channel to users. Its reasons and log lines, at any level, hold no token, URL, address or id."""

    channel: Channel

    def reachable(self, contacts: Contacts) -> str:
        """Return why nothing can be sent to these contacts, empty if it can; for any thread."""

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """Call the provider once (PUSH: once for each of the user's devices). Raises only CancelledError."""


def utf16_units(character: str) -> int:
    """Return the size that Telegram and Discord count: two beyond the basic multilingual plane."""
    return 2 if character > "\uffff" else 1


def utf8_bytes(character: str) -> int:
    """Return the size that push services count."""
    return len(character.encode())


def truncate(text: str, limit: int, size: Callable[[str], int] = utf16_units) -> str:
    """Shorten a text until the sizes of its characters add up to at most ``limit``; an ellipsis marks the cut."""
    room = limit - size(_ELLIPSIS)
    taken = fits = 0
    for end, character in enumerate(text, 1):
        taken += size(character)
        if taken <= room:
            fits = end
        if taken > limit:
            return text[:fits].rstrip() + _ELLIPSIS
    return text
