"""Transmission and retransmission of events on the guaranteed path. Pure; times are monotonic nanoseconds.

    state      entered by                                 left by
    waiting    `add`, `next` when due, `reconnected`      `sent` -> open
    open       `sent`                                     `queued` -> asleep; when due -> waiting
    asleep     `queued`                                   when due -> waiting

At most ``window`` events are open. Only `settled` removes an event, from any state.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    attempts: int = 0
    due_ns: int = 0
    waiting: bool = True


class RetransmitQueue:
    """Events without a final answer yet.

    Args:
        base_ns: Interval between the first transmission and the second without an answer; doubled each time.
        max_ns: Limit of that interval.
        query_ns: Interval between an answer QUEUED and the next transmission, which asks for the state.
        window: Limit of open events.
        jitter: Returns a factor about 1 for each interval, to spread the load.
    """

    def __init__(self, base_ns: int, max_ns: int, query_ns: int, window: int, jitter: Callable[[], float]) -> None:
        self._base_ns = base_ns
        self._max_ns = max_ns
        self._query_ns = query_ns
        self._window = window
        self._jitter = jitter
        self._entries: dict[str, _Entry] = {}
        self._waiting: deque[str] = deque()
        self._open: set[str] = set()
        self._due: list[tuple[int, int, str]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._entries

    def add(self, event_ids: Iterable[str]) -> None:
        """Add new events, to be transmitted as soon as the window allows."""
        for event_id in event_ids:
            self._entries[event_id] = _Entry()
            self._waiting.append(event_id)

    def next(self, *, now_ns: int) -> str | None:
        """Return the next event to transmit (confirm it with `sent`); None if the window is full or no event is due."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, event_id = heapq.heappop(self._due)
            entry = self._entries.get(event_id)
            if entry and not entry.waiting and entry.due_ns == due_ns:
                entry.waiting = True
                self._open.discard(event_id)
                self._waiting.append(event_id)
        while self._waiting and not ((entry := self._entries.get(self._waiting[0])) and entry.waiting):
            self._waiting.popleft()  # settled while it waited
        return self._waiting[0] if self._waiting and len(self._open) < self._window else None

    def sent(self, event_id: str, *, now_ns: int) -> None:
        """Record the transmission of the event that `next` returned; without an answer it is repeated."""
        entry = self._entries[event_id]
        self._waiting.popleft()
        wait_ns = min(self._base_ns << min(entry.attempts, 32), self._max_ns)
        entry.attempts += 1
        self._open.add(event_id)
        self._schedule(event_id, entry, now_ns, wait_ns)

    def queued(self, event_id: str, *, now_ns: int) -> bool:
        """Record the answer QUEUED; False if the event is not open. Later it is sent again: an answer may get lost."""
        entry = self._entries.get(event_id)
        if entry is None or event_id not in self._open:
            return False
        self._open.discard(event_id)
        entry.attempts = 0
        self._schedule(event_id, entry, now_ns, self._query_ns)
        return True

    def settled(self, event_id: str) -> bool:
        """Remove an event; False if it is not in the queue."""
        self._open.discard(event_id)
        return self._entries.pop(event_id, None) is not None

    def reconnected(self) -> None:
        """Make all events wait again in their order: answers may have been lost with the connection."""
        self._open.clear()
        self._due.clear()
        self._waiting = deque(self._entries)
        for entry in self._entries.values():
            entry.attempts = 0
            entry.waiting = True

    def next_due_ns(self) -> int | None:
        """Return when `next` may return another event without other input."""
        return self._due[0][0] if self._due else None

    def _schedule(self, event_id: str, entry: _Entry, now_ns: int, wait_ns: int) -> None:
        entry.waiting = False
        entry.due_ns = now_ns + int(wait_ns * self._jitter())
        self._order += 1
        heapq.heappush(self._due, (entry.due_ns, self._order, event_id))
