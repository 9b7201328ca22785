"""Slots: what is offered to the broker, which job holds one, what has to be said again after a reconnect. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Completion:
    """How a dispatch ended, as WorkComplete says it."""

    job_id: str
    success: bool
    message: str = ""


class Slots:
    """Owner of the map from running jobs to venues, and of what the broker has been told."""

    def __init__(self, capacity: Mapping[str, int], *, repeat_ns: int) -> None:
        self._capacity = dict(capacity)
        self._running: dict[str, str] = {}
        self._offered: Counter[str] = Counter()
        self._completions: dict[str, tuple[Completion, int | None]] = {}
        self._repeat_ns = repeat_ns
        self._stopped = False

    @property
    def venues(self) -> tuple[str, ...]:
        """Venues this ingestor serves."""
        return tuple(self._capacity)

    @property
    def running(self) -> tuple[str, ...]:
        """Jobs that hold a slot, oldest first."""
        return tuple(self._running)

    def free(self, venue: str) -> int:
        """Slots of a venue that no job holds."""
        return self._capacity.get(venue, 0) - self.held(venue)

    def held(self, venue: str) -> int:
        """Slots of a venue that jobs hold."""
        return sum(1 for v in self._running.values() if v == venue)

    def due(self) -> list[str]:
        """Venues to send one WorkerReady each for, so that every free slot is offered; notes them as offered."""
        if self._stopped:
            return []
        venues = [venue for venue in self._capacity for _ in range(self.free(venue) - self._offered[venue])]
        for venue in venues:
            self._offered[venue] += 1
        return venues

    def used(self, venue: str) -> None:
        """A dispatch came, whether or not it will be taken: the broker holds one offer less."""
        self._offered[venue] = max(0, self._offered[venue] - 1)

    def forget_offers(self) -> None:
        """The broker knows none of our offers: the connection is new."""
        self._offered.clear()

    def take(self, job_id: str, venue: str) -> str | None:
        """Give a job a slot; the reason why not, for WorkReject."""
        if venue not in self._capacity:
            return f"exchange {venue!r} is none of {', '.join(self._capacity)}"
        if self._stopped:
            return "this ingestor is shutting down"
        if self.free(venue) <= 0:
            return f"no free slot for {venue}"
        self._running[job_id] = venue
        return None

    def release(self, job_id: str) -> None:
        """Take a job's slot back."""
        del self._running[job_id]

    def stop(self) -> None:
        """Offer nothing and take nothing from now on."""
        self._stopped = True

    # WorkComplete has no answer, so one that was sent shortly before a loss may not have arrived.

    def complete(self, completion: Completion) -> None:
        """Keep a completion until it can be taken as arrived."""
        self._completions[completion.job_id] = (completion, None)

    def sent(self, job_id: str, *, now_ns: int) -> None:
        """Note that a completion went out on the present connection."""
        kept = self._completions.get(job_id)
        if kept is not None:
            self._completions[job_id] = (kept[0], now_ns)

    def unsettled(self, *, now_ns: int) -> list[Completion]:
        """Completions to say on a new connection: never sent, or sent so recently that they may be lost."""
        self._completions = {
            job_id: (completion, sent_ns)
            for job_id, (completion, sent_ns) in self._completions.items()
            if sent_ns is None or now_ns - sent_ns < self._repeat_ns
        }
        return [completion for completion, _ in self._completions.values()]
