"""What is counted of sessions, by what their clients speak: grpc or websocket."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "dexorder_gateway_event"
Kind = Literal["grpc", "websocket"]
KINDS: tuple[Kind, ...] = ("grpc", "websocket")


class SessionMetrics:
    """Added to the gateway's registry once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        sessions = Gauge(f"{PREFIX}_sessions", "Open sessions.", ["kind"], registry=registry)
        shown = Counter(f"{PREFIX}s_shown", "Items given to sessions.", ["kind"], registry=registry)
        self._open = {kind: sessions.labels(kind) for kind in KINDS}
        self._shown = {kind: shown.labels(kind) for kind in KINDS}
        self._ended = Counter(
            f"{PREFIX}_sessions_ended",
            "Sessions that ended, by why: CLOSED by the client, or a status.",
            ["kind", "reason"],
            registry=registry,
        )
        self._acks = Counter(f"{PREFIX}_session_acks", "Acks of sessions.", ["kind", "said"], registry=registry)
        self._refused = Counter(
            f"{PREFIX}_sessions_refused", "Sessions refused, by status.", ["kind", "reason"], registry=registry
        )

    def opened(self, kind: Kind) -> None:
        """A session is open."""
        self._open[kind].inc()

    def ended(self, kind: Kind, reason: str) -> None:
        """It is no longer."""
        self._open[kind].dec()
        self._ended.labels(kind, reason).inc()

    def shown(self, kind: Kind, count: int) -> None:
        """Items were taken to be sent."""
        self._shown[kind].inc(count)

    def acked(self, kind: Kind, *, seen: bool) -> None:
        """A client said that it has an event, or that its user saw it."""
        self._acks.labels(kind, "seen" if seen else "received").inc()

    def refused(self, kind: Kind, reason: str) -> None:
        """Somebody wanted a session and got none."""
        self._refused.labels(kind, reason).inc()
