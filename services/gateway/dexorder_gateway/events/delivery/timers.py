"""Things that are due at a time: earliest first, each at most once, moved and cancelled in O(log n). Pure."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar


class Timed:
    """Something that can be due. Only `Timers` touches its fields."""

    __slots__ = ("_at_ns", "_ticket")

    def __init__(self) -> None:
        self._at_ns = 0
        self._ticket = 0


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    """Heap that keeps cancelled entries until they come up or outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._tickets = 0
        self._set = 0

    def set(self, thing: T, at_ns: int) -> None:
        """Make a thing due then, and at no other time."""
        if thing._ticket and thing._at_ns == at_ns:
            return
        self.cancel(thing)
        self._tickets += 1
        self._set += 1
        thing._at_ns = at_ns
        thing._ticket = self._tickets
        if len(self._heap) > 1000 + 2 * self._set:  # or cancelled entries would fill the memory
            self._heap = [entry for entry in self._heap if entry[2]._ticket == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at_ns, self._tickets, thing))

    def cancel(self, thing: T) -> None:
        """Make a thing due at no time."""
        if thing._ticket:
            thing._ticket = 0
            self._set -= 1

    def next_ns(self) -> int | None:
        """Return when the first thing is due; None for never."""
        while self._heap and self._heap[0][2]._ticket != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now_ns: int) -> T | None:
        """Remove and return the first thing that is due; at the same time, the one that was set first."""
        at_ns = self.next_ns()
        if at_ns is None or at_ns > now_ns:
            return None
        thing = heapq.heappop(self._heap)[2]
        self.cancel(thing)
        return thing
