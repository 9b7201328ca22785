"""What is counted of the calls of providers."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Histogram

from services.common.model.user_events import Channel
from services.gateway.events.model import Later, Refused, Result, Sent

_OUTCOMES: Mapping[type[Result], str] = {Sent: "sent", Refused: "refused", Later: "later"}
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)


class SendingMetrics:
    """Added to the gateway's registry once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "dexorder_gateway_event_send_seconds",
            "Time a call of a provider took, by what came of it.",
            ["channel", "outcome"],
            registry=registry,
            buckets=_SECONDS,
        )

    def called(self, channel: Channel, result: Result, seconds: float) -> None:
        """One call is over."""
        self._seconds.labels(channel.name, _OUTCOMES[type(result)]).observe(seconds)
