"""Dispatches, the slots that they hold, and everything the broker was told about them. Pure.

    slot        event                     next
    free        WorkerReady sent          offered
    offered     DataRequest taken         busy
    offered     DataRequest rejected      free (offered again)
    offered     connection lost           free (offered again)
    busy        dispatch ends             free

    completion  event                     next
    unsent      WorkComplete sent         sent
    sent        ``repeat_ns`` elapsed     settled (forgotten)
    unsent, sent  new connection          sent again

WorkComplete has no answer, so one that was sent shortly before a connection was lost may not have arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from services.common.model.instrument import Instrument
from services.common.model.time_range import TimeRange


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt of a job for historical candles.

    Attributes:
        id: Id of this attempt; ``job_id`` on the wire.
        span: Half open, nanoseconds; both ends on the period's grid.
        limit: Stop after this many candles; 0 means all of ``span``.
    """

    id: str
    request_id: str
    instrument: Instrument
    span: TimeRange
    period_seconds: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """End of a dispatch. Without ``success`` the relay queues the rest of the job again."""

    dispatch_id: str
    success: bool
    message: str = ""


class Slots:
    """Owner of the map from running dispatches to venues, of offers, and of completions that may not have arrived."""

    def __init__(self, capacity: Mapping[str, int], *, repeat_ns: int) -> None:
        self.venues = tuple(capacity)
        """Venues that this ingestor serves."""
        self._capacity = dict(capacity)
        self._running: dict[str, str] = {}
        self._offered: Counter[str] = Counter()
        self._completions: dict[str, tuple[Completion, int | None]] = {}
        self._repeat_ns = repeat_ns
        self._stopped = False

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the dispatches that hold a slot, oldest first."""
        return tuple(self._running)

    def free(self, venue: str) -> int:
        """Return the number of slots of a venue that no dispatch holds."""
        return self._capacity.get(venue, 0) - self.busy(venue)

    def busy(self, venue: str) -> int:
        """Return the number of slots of a venue that dispatches hold."""
        return sum(1 for v in self._running.values() if v == venue)

    def take_offers(self) -> list[str]:
        """Mark every free slot as offered; return the venue of each new offer, one WorkerReady to send for each."""
        if self._stopped:
            return []
        venues = [venue for venue in self._capacity for _ in range(self.free(venue) - self._offered[venue])]
        for venue in venues:
            self._offered[venue] += 1
        return venues

    def use_offer(self, venue: str) -> None:
        """Count an offer as used by a dispatch, whether or not the dispatch is taken."""
        self._offered[venue] = max(0, self._offered[venue] - 1)

    def forget_offers(self) -> None:
        """Forget all offers, as the broker does not know them on a new connection."""
        self._offered.clear()

    def take(self, dispatch_id: str, venue: str) -> str | None:
        """Give a slot to a dispatch; return the reason for a WorkReject if there is none to give."""
        if venue not in self._capacity:
            return f"exchange {venue!r} is not served by this ingestor; it serves {', '.join(self._capacity)}"
        if self._stopped:
            return "this ingestor is shutting down"
        if self.free(venue) <= 0:
            return f"no free slot for {venue}"
        self._running[dispatch_id] = venue
        return None

    def release(self, dispatch_id: str) -> None:
        """Free the slot of a dispatch."""
        del self._running[dispatch_id]

    def stop(self) -> None:
        """Offer nothing and take nothing from now on."""
        self._stopped = True

    def complete(self, completion: Completion) -> None:
        """Keep a completion until it is settled."""
        self._completions[completion.dispatch_id] = (completion, None)

    def note_sent(self, dispatch_id: str, *, now_ns: int) -> None:
        """Record that a completion was sent on the current connection."""
        kept = self._completions.get(dispatch_id)
        if kept is not None:
            self._completions[dispatch_id] = (kept[0], now_ns)

    def unsettled(self, *, now_ns: int) -> list[Completion]:
        """Return the completions to send on a new connection: unsent, or sent so recently that they may be lost."""
        self._completions = {
            dispatch_id: (completion, sent_ns)
            for dispatch_id, (completion, sent_ns) in self._completions.items()
            if sent_ns is None or now_ns - sent_ns < self._repeat_ns
        }
        return [completion for completion, _ in self._completions.values()]
