"""Slots, the dispatches that hold them, and the messages about them that the broker knows. Pure.

    slot        event                     next
    free        WorkerReady sent          offered
    offered     DataRequest taken         busy
    offered     DataRequest rejected      free (offered again)
    offered     connection lost           free (offered again)
    busy        last call answered        free; its dispatch is publishing
    busy        dispatch ends             free

A dispatch holds its slot for its calls of the exchange. Its last pages are published while the slot fetches for the
next one. At most ``PUBLISHING_PER_SLOT`` dispatches a slot wait for Kafka without holding it; any more hold slots.

    completion  event                     next
    unsent      WorkComplete sent         sent
    sent        ``repeat_ns`` elapsed     settled (forgotten)
    unsent, sent  new connection          sent again

WorkComplete is not answered, so one that was sent shortly before a connection was lost may not have arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

PUBLISHING_PER_SLOT = 4
"""Dispatches without a slot that publish, for each slot of their type."""


class JobKind(Enum):
    """Kind of the jobs that a slot takes; tickers count as historical."""

    HISTORICAL = "historical"
    REALTIME = "realtime"


class SlotType(NamedTuple):
    """Slots of one venue and one kind of jobs."""

    venue: str
    kind: JobKind

    def __str__(self) -> str:
        return f"{self.kind.value} jobs of {self.venue}"


@dataclass(frozen=True, slots=True)
class DispatchEnd:
    """End of a dispatch. Without ``success`` the relay queues the rest of the job again."""

    dispatch_id: str
    success: bool
    message: str = ""


class JobSlots:
    """Owner of the map from running dispatches to slots, of offers, and of completions that may not have arrived."""

    def __init__(self, capacity: Mapping[SlotType, int], *, repeat_ns: int) -> None:
        self.types = tuple(capacity)
        """Types of slots that this ingestor has."""
        self.limit = sum(capacity.values())
        """Number of dispatches that may hold slots at once, of all types; not more than there are slots."""
        self._capacity = dict(capacity)
        self._fetching: dict[str, SlotType] = {}
        self._publishing: dict[str, SlotType] = {}
        self._offered: Counter[SlotType] = Counter()
        self._completions: dict[str, tuple[DispatchEnd, int | None]] = {}
        self._repeat_ns = repeat_ns
        self.is_stopped = False
        """No slot is offered and no dispatch taken any more."""

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the dispatches that fetch or publish."""
        return (*self._publishing, *self._fetching)

    def free(self, slot: SlotType) -> int:
        """Return the number of slots of a type that no dispatch holds."""
        return self._capacity.get(slot, 0) - self.busy(slot)

    def busy(self, slot: SlotType) -> int:
        """Return the number of slots of a type that dispatches hold."""
        fetching, publishing = (list(each.values()).count(slot) for each in (self._fetching, self._publishing))
        return fetching + max(0, publishing - PUBLISHING_PER_SLOT * self._capacity.get(slot, 0))

    def count(self, kind: JobKind) -> int:
        """Return the number of running dispatches of a kind."""
        held = (*self._fetching.values(), *self._publishing.values())
        return sum(1 for each in held if each.kind is kind)

    def take_offers(self) -> list[SlotType]:
        """Mark free slots as offered, within the limit; return the type of each new offer, a WorkerReady for each."""
        if self.is_stopped:
            return []
        wanted = [(nth, slot) for slot in self._capacity for nth in range(self.free(slot) - self._offered[slot])]
        wanted.sort(key=lambda each: each[0])  # the limit leaves some of each type
        room = self.limit - self._all_busy() - sum(self._offered.values())
        offers = [slot for _, slot in wanted[: max(0, room)]]
        self._offered.update(offers)
        return offers

    def use_offer(self, slot: SlotType) -> None:
        """Count an offer as used by a dispatch, whether or not the dispatch is taken."""
        self._offered[slot] = max(0, self._offered[slot] - 1)

    def forget_offers(self) -> None:
        """Forget all offers, because the broker does not know them on a new connection."""
        self._offered.clear()

    def take(self, dispatch_id: str, slot: SlotType) -> str | None:
        """Give a slot to a dispatch; return the reason for a WorkReject if it gets none."""
        venues = dict.fromkeys(held.venue for held in self._capacity)
        if slot.venue not in venues:
            return f"exchange {slot.venue!r} is not served by this ingestor; it serves {', '.join(venues)}"
        if self.is_stopped:
            return "this ingestor is shutting down"
        if self.free(slot) <= 0:
            return f"no free slot for {slot}"
        if self._all_busy() >= self.limit:
            return f"max_concurrent {self.limit} dispatches are running"
        self._fetching[dispatch_id] = slot
        return None

    def fetched(self, dispatch_id: str) -> None:
        """Free the slot of a dispatch that has made its last call of the exchange and publishes its pages."""
        self._publishing[dispatch_id] = self._fetching.pop(dispatch_id)

    def release(self, dispatch_id: str) -> None:
        """Forget a dispatch, and free its slot if it holds one."""
        held = self._fetching if dispatch_id in self._fetching else self._publishing
        del held[dispatch_id]

    def _all_busy(self) -> int:
        return sum(map(self.busy, self._capacity))

    def stop(self) -> None:
        """Stop offering slots and taking dispatches."""
        self.is_stopped = True

    def complete(self, completion: DispatchEnd) -> None:
        """Keep a completion until it is settled."""
        self._completions[completion.dispatch_id] = (completion, None)

    def note_sent(self, dispatch_id: str, *, now_ns: int) -> None:
        """Record that a completion was sent on the current connection."""
        kept = self._completions.get(dispatch_id)
        if kept is not None:
            self._completions[dispatch_id] = (kept[0], now_ns)

    def unsettled(self, *, now_ns: int) -> list[DispatchEnd]:
        """Return the completions to send on a new connection: unsent, or sent so recently that they may be lost."""
        self._completions = {
            dispatch_id: (completion, sent_ns)
            for dispatch_id, (completion, sent_ns) in self._completions.items()
            if sent_ns is None or now_ns - sent_ns < self._repeat_ns
        }
        return [completion for completion, _ in self._completions.values()]
