"""How much a container may send. Pure; the monotonic time comes in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.gateway.events.config import EventsSettings
from services.gateway.events.containers import Container
from services.gateway.events.model import Priority

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an event may come in, and whether it is above the soft quota."""

    refused: bool
    soft: bool


_FINE, _SOFT, _REFUSED = Verdict(False, False), Verdict(False, True), Verdict(True, True)


class Bucket:
    """A rate with a burst of one second's worth, at least one."""

    def __init__(self) -> None:
        self._filled: float | None = None
        self._at_ns = 0

    def take(self, per_second: float, now_ns: int) -> bool:
        """Take one; False when there is none."""
        most = max(1.0, per_second)
        if self._filled is None:
            self._filled = most
        else:
            self._filled = min(most, self._filled + (now_ns - self._at_ns) * per_second / _SECOND_NS)
        self._at_ns = now_ns
        if self._filled < 1:
            return False
        self._filled -= 1
        return True


class Quotas:
    """What each container has used. The limits are looked up each time, as their file may change.

    Attributes:
        queued: Events of each container that are not final.
    """

    def __init__(self, settings: EventsSettings) -> None:
        self._settings = settings
        self._soft: dict[str, Bucket] = {}
        self._hard: dict[str, Bucket] = {}
        self.queued: Counter[str] = Counter()

    def take(self, container: Container, priority: Priority, now_ns: int) -> Verdict:
        """Count a new event. One that is CRITICAL counts like any other, and is never refused nor delayed."""
        own, all_others, name = container.quota, self._settings, container.name
        soft = own.soft_events_per_second or all_others.soft_events_per_second
        hard = own.hard_events_per_second or all_others.hard_events_per_second
        within_hard = self._bucket(self._hard, name).take(hard, now_ns)
        within_soft = self._bucket(self._soft, name).take(soft, now_ns)
        if priority is Priority.CRITICAL:
            return _FINE
        if not within_hard or self.queued[name] >= (own.queued_events or all_others.hard_queued_events):
            return _REFUSED
        return _FINE if within_soft else _SOFT

    @staticmethod
    def _bucket(buckets: dict[str, Bucket], name: str) -> Bucket:
        return buckets.setdefault(name, Bucket()) if name not in buckets else buckets[name]
