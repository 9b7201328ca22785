"""Quotas of containers: events per second and queued events. Pure; the monotonic time is an argument."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dexorder_common.model.user_events import Priority

if TYPE_CHECKING:
    from dexorder_gateway.events.config import EventsSettings
    from dexorder_gateway.events.ingress.containers import Container

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result for an event: refused, delayed (``soft``) or neither; ``above`` if it exceeds the hard rate."""

    refused: bool
    soft: bool
    above: bool


_WITHIN = Verdict(False, False, False)
_SOFT = Verdict(False, True, False)
_REFUSED = {above: Verdict(True, True, above) for above in (False, True)}
_CRITICAL_ABOVE = Verdict(False, False, True)


class Bucket:
    """Token bucket with a burst of one second's worth, at least one."""

    __slots__ = ("_at_ns", "_tokens")

    def __init__(self) -> None:
        self._tokens = float("inf")  # full at the first rate
        self._at_ns = 0

    def take(self, per_second: float, now_ns: int) -> bool:
        """Take a token; return False if the bucket is empty."""
        tokens = self._tokens + (now_ns - self._at_ns) * per_second / _SECOND_NS
        burst = per_second if per_second > 1 else 1.0
        if tokens > burst:
            tokens = burst
        self._at_ns = now_ns
        self._tokens = tokens - 1 if tokens >= 1 else tokens
        return tokens >= 1


class ContainerQuotas:
    """Use of quotas by container. The limits are read each time, because their file may change."""

    def __init__(self, settings: EventsSettings) -> None:
        self._limits = settings.soft_events_per_second, settings.hard_events_per_second, settings.hard_queued_events
        self._buckets: dict[str, tuple[Bucket, Bucket]] = {}
        self.queued: Counter[str] = Counter()  # events that are not final

    def take(self, container: Container, priority: Priority, now_ns: int) -> Verdict:
        """Count a new event. CRITICAL ones count as well, and are never refused or delayed."""
        name, own = container.name, container.quota
        soft, hard, queued = self._limits
        soft = own.soft_events_per_second or soft
        hard = own.hard_events_per_second or hard
        queued = own.queued_events or queued
        buckets = self._buckets.get(name)
        if buckets is None:
            buckets = self._buckets[name] = Bucket(), Bucket()
        within_soft, within_hard = buckets[0].take(soft, now_ns), buckets[1].take(hard, now_ns)
        if priority is Priority.CRITICAL:
            return _WITHIN if within_hard else _CRITICAL_ABOVE
        if not within_hard or self.queued[name] >= queued:
            return _REFUSED[not within_hard]
        return _WITHIN if within_soft else _SOFT
