"""What the delivery rules were set to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from services.common.model.user_events import Channel
from services.gateway.events.config import EventsSettings

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """The settings of the same names, durations in nanoseconds.

    Attributes:
        max_concurrent_sends: Most calls under way in one lane.
        digest_ns: Never more than half of normal_ttl_ns: an event is not to expire while it waits for others.
    """

    normal_ttl_ns: int = 60 * SECOND_NS
    session_ack_ns: int = 5 * SECOND_NS
    channel_attempts: int = 3
    retry_base_ns: int = 2 * SECOND_NS
    retry_most_ns: int = 300 * SECOND_NS
    digest_ns: int = 10 * SECOND_NS
    channel_order: tuple[Channel, ...] = (
        Channel.TELEGRAM,
        Channel.PUSH,
        Channel.EMAIL,
        Channel.DISCORD,
        Channel.SLACK,
    )
    max_concurrent_sends: int = 32

    @property
    def patience_ns(self) -> int:
        """How long an event waits for a channel that has asked for a pause, rather than go on with the next one."""
        return 6 * self.session_ack_ns

    @classmethod
    def of(cls, settings: EventsSettings) -> Self:
        """From the settings."""
        ttl_ns = int(settings.normal_ttl_seconds * SECOND_NS)
        return cls(
            normal_ttl_ns=ttl_ns,
            session_ack_ns=int(settings.session_ack_seconds * SECOND_NS),
            channel_attempts=settings.channel_attempts,
            retry_base_ns=int(settings.retry_base_seconds * SECOND_NS),
            retry_most_ns=int(settings.retry_max_seconds * SECOND_NS),
            digest_ns=min(int(settings.digest_seconds * SECOND_NS), ttl_ns // 2),
            channel_order=tuple(Channel[name.strip()] for name in settings.channel_order.split(",") if name.strip()),
            max_concurrent_sends=settings.max_concurrent_sends,
        )
