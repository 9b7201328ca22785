"""What becomes of an event, as its container knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.common.model.user_events import Channel


class FinalStatus(StrEnum):
    """How it ended here."""

    DELIVERED = "DELIVERED"
    """It reached the user; the gateway said so."""
    ERROR = "ERROR"
    """The gateway will not deliver it, and says why."""
    SENT = "SENT"
    """It went out on the fast path while the user had a session open; nobody answers there."""
    DROPPED = "DROPPED"
    """INFORMATIONAL, and nobody was looking."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an event. ``via`` only where it was delivered, ``error`` only where it was not."""

    event_id: str
    status: FinalStatus
    via: Channel | None = None
    error: str = ""
