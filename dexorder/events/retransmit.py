"""Which events go out on the guaranteed path, and when again. Pure; times are monotonic nanoseconds.

An event is *waiting* (its turn has come), *open* (sent, no answer yet) or *asleep* until it is due again. At most
``window`` are open. Only a final answer takes an event out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetransmitPolicy:
    """How often; nanoseconds.

    Attributes:
        base_ns: From the first try to the second without an answer; doubled each time.
        most_ns: Longest such wait.
        ask_ns: From an answer QUEUED to the next question.
        window: Most events that are open.
    """

    base_ns: int
    most_ns: int
    ask_ns: int
    window: int


@dataclass(slots=True)
class _Entry:
    tries: int = 0
    due_ns: int = 0
    waiting: bool = True


class RetransmitQueue:
    """The events that have no final answer yet."""

    def __init__(self, pace: RetransmitPolicy, jitter: Callable[[], float]) -> None:
        """``jitter`` gives a factor for each wait, about 1, so that containers do not come all at once."""
        self._pace = pace
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
        """New events, to go out as soon as there is room."""
        for event_id in event_ids:
            self._entries[event_id] = _Entry()
            self._waiting.append(event_id)

    def next(self, *, now_ns: int) -> str | None:
        """The event whose turn it is; say `sent` if it has gone out. None if the window is full or nothing is due."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, event_id = heapq.heappop(self._due)
            entry = self._entries.get(event_id)
            if entry and not entry.waiting and entry.due_ns == due_ns:
                entry.waiting = True
                self._open.discard(event_id)
                self._waiting.append(event_id)
        while self._waiting and not ((entry := self._entries.get(self._waiting[0])) and entry.waiting):
            self._waiting.popleft()  # it ended while it waited
        return self._waiting[0] if self._waiting and len(self._open) < self._pace.window else None

    def sent(self, event_id: str, *, now_ns: int) -> None:
        """What `next` said went out; without an answer it will again, later each time."""
        entry = self._entries[event_id]
        self._waiting.popleft()
        wait_ns = min(self._pace.base_ns << min(entry.tries, 32), self._pace.most_ns)
        entry.tries += 1
        self._open.add(event_id)
        self._sleep(event_id, entry, now_ns, wait_ns)

    def queued(self, event_id: str, *, now_ns: int) -> bool:
        """The gateway has it; it is asked again after a while, in case its end gets lost. False if not open."""
        entry = self._entries.get(event_id)
        if entry is None or event_id not in self._open:
            return False
        self._open.discard(event_id)
        entry.tries = 0
        self._sleep(event_id, entry, now_ns, self._pace.ask_ns)
        return True

    def settled(self, event_id: str) -> bool:
        """It has ended; False if it had before, or was never here."""
        self._open.discard(event_id)
        return self._entries.pop(event_id, None) is not None

    def reconnected(self) -> None:
        """Answers may have been lost with the connection: all go out again, in their order."""
        self._open.clear()
        self._due.clear()
        self._waiting = deque(self._entries)
        for entry in self._entries.values():
            entry.tries = 0
            entry.waiting = True

    def next_due_ns(self) -> int | None:
        """When `next` may have more to say, if nothing else happens."""
        return self._due[0][0] if self._due else None

    def _sleep(self, event_id: str, entry: _Entry, now_ns: int, wait_ns: int) -> None:
        entry.waiting = False
        entry.due_ns = now_ns + int(wait_ns * self._jitter())
        self._order = self._order + 1
        heapq.heappush(self._due, (entry.due_ns, self._order, event_id))
