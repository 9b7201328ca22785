"""Connections that send more than their container's quota, and the order of acks during a flood. Pure.

Events of a flood are refused, or accepted at the pace of the quota. Their sender does not wait for them, so the
dispatcher commits them a hundred times a second at most, and other connections' events as soon as they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dexorder_gateway.events.model import Ack, ReplyTo

FLOOD_NS = 1_000_000_000
"""Time for which a connection counts as a flood after an event of it was refused."""


class Floods:
    """Routing ids of connections that exceed a quota, without gRPC publishers. For one thread."""

    def __init__(self) -> None:
        self._refused_ns: dict[ReplyTo, int] = {}

    def __bool__(self) -> bool:
        return bool(self._refused_ns)

    def refused(self, sender: ReplyTo | None, now_ns: int) -> None:
        """Record that a quota has refused an event."""
        if isinstance(sender, bytes):
            self._refused_ns[sender] = now_ns

    def has_only(self, senders: Iterable[ReplyTo | None]) -> bool:
        """Return whether all of the senders flood."""
        return all(sender in self._refused_ns for sender in senders)

    def forget(self, now_ns: int) -> None:
        """Forget connections that a quota has not refused for some time."""
        oldest_ns = now_ns - FLOOD_NS
        for sender in [each for each, refused_ns in self._refused_ns.items() if refused_ns < oldest_ns]:
            del self._refused_ns[sender]


def fewest_first(acks: Sequence[tuple[bytes, Ack]]) -> Sequence[tuple[bytes, Ack]]:
    """Return acks so that a connection with few of them does not wait for one with many.

    The acks of each connection stay in their order.
    """
    counts = Counter([routing_id for routing_id, _ in acks])
    return acks if len(counts) < 2 else sorted(acks, key=lambda each: counts[each[0]])
