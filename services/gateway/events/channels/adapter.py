"""What every channel is, and the reasons that several of them give."""

from __future__ import annotations

from typing import Protocol

from services.common.model.user_events import Channel
from services.gateway.events.model import Contacts, Message, Result

NO_CONTACT = "no contact"
NOT_CONFIGURED = "not configured"
HOST_NOT_ALLOWED = "host not allowed"
NO_CONNECTION = "no connection"
TIMEOUT = "timeout"
TOO_MANY_REQUESTS = "too many requests"
TROUBLE = "the provider is in trouble"


class ChannelAdapter(Protocol):
    """One channel. Nothing that it says or logs, at any level, has a token, a URL, an address or an id in it."""

    channel: Channel

    def reachable(self, contacts: Contacts) -> str:
        """Empty, or why nothing can be sent to these contacts; from any thread."""

    async def send(self, message: Message, contacts: Contacts) -> Result:
        """Call the provider once (PUSH: once for each of the user's devices); only cancellation is raised."""
