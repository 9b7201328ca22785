"""How much a container may send. Pure; the monotonic time comes in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.common.model.user_events import Priority
from services.gateway.events.config import EventsSettings
from services.gateway.events.ingress.containers import NO_QUOTA, Container

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an event may come in, and whether it is delayed for the soft quota.

    Attributes:
        above: Whether its container sends more a second than the hard quota, be the event refused for it or not.
    """

    refused: bool
    soft: bool
    above: bool


_FINE, _SOFT = Verdict(False, False, False), Verdict(False, True, False)
_REFUSED = {above: Verdict(True, True, above) for above in (False, True)}
_CRITICAL_ABOVE = Verdict(False, False, True)


class Bucket:
    """A rate with a burst of one second's worth, at least one."""

    __slots__ = ("_at_ns", "_filled")

    def __init__(self) -> None:
        self._filled = float("inf")  # as full as the first rate lets it be
        self._at_ns = 0

    def take(self, per_second: float, now_ns: int) -> bool:
        """Take one; False when there is none."""
        filled = self._filled + (now_ns - self._at_ns) * per_second / _SECOND_NS
        most = per_second if per_second > 1 else 1.0
        if filled > most:
            filled = most
        self._at_ns = now_ns
        self._filled = filled - 1 if filled >= 1 else filled
        return filled >= 1


class Quotas:
    """What each container has used. The limits are looked up each time, as their file may change.

    Attributes:
        queued: Events of each container that are not final.
    """

    def __init__(self, settings: EventsSettings) -> None:
        self._limits = (
            settings.soft_events_per_second,
            settings.hard_events_per_second,
            settings.hard_queued_events,
        )
        self._buckets: dict[str, tuple[Bucket, Bucket]] = {}
        self.queued: Counter[str] = Counter()

    def take(self, container: Container, priority: Priority, now_ns: int) -> Verdict:
        """Count a new event. One that is CRITICAL counts like any other, and is never refused nor delayed."""
        name, own = container.name, container.quota
        soft, hard, queued = self._limits
        if own is not NO_QUOTA:
            soft, hard = own.soft_events_per_second or soft, own.hard_events_per_second or hard
            queued = own.queued_events or queued
        buckets = self._buckets.get(name)
        if buckets is None:
            buckets = self._buckets[name] = Bucket(), Bucket()
        within_soft, within_hard = buckets[0].take(soft, now_ns), buckets[1].take(hard, now_ns)
        if priority is Priority.CRITICAL:
            return _FINE if within_hard else _CRITICAL_ABOVE
        if not within_hard or self.queued[name] >= queued:
            return _REFUSED[not within_hard]
        return _FINE if within_soft else _SOFT
