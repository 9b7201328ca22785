"""Queue of live data for one client: bounded, whatever the client reads. Pure.

Until it is full it keeps everything in order. What happens then is the client's choice: COALESCE keeps the newest of
each kind, DROP_OLDEST drops the oldest. Either way what was dropped is counted for the client.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

M = TypeVar("M")


class SlowClientPolicy(IntEnum):
    """Policy for a client that does not read in time; numbers of the proto."""

    COALESCE = 1
    DROP_OLDEST = 2


class LiveKind(NamedTuple):
    """Subject of an item; under COALESCE the newest of each kind is kept.

    Attributes:
        period_seconds: 0 for trades.
        closed: Of a candle.
    """

    ticker: str
    period_seconds: int
    closed: bool = False


class LiveItem(NamedTuple, Generic[M]):
    """A trade, or a state of a candle, as a message that only the receiver reads; its time may be an open time."""

    kind: LiveKind
    time_ns: int
    message: M


@dataclass(slots=True)
class Dropped:
    """Items of a series that were dropped, and the times of the first and last of them."""

    count: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class LiveQueue(Generic[M]):
    """The items that a client has not read.

    Attributes:
        max_items: At most this many are kept, or one of each kind if that is more.
    """

    policy: SlowClientPolicy
    max_items: int
    items: deque[LiveItem[M]] = field(default_factory=deque)
    dropped: dict[tuple[str, int], Dropped] = field(default_factory=dict)
    _full: int = 0

    def __post_init__(self) -> None:
        self._full = self.max_items

    def put(self, item: LiveItem[M]) -> None:
        """Add an item; make room first if the queue is full."""
        if len(self.items) >= self._full:
            if self.policy is SlowClientPolicy.DROP_OLDEST:
                self._drop(self.items.popleft())
            else:
                self._coalesce()
        self.items.append(item)

    def _coalesce(self) -> None:
        newest = {item.kind: index for index, item in enumerate(self.items)}
        kept: deque[LiveItem[M]] = deque()
        for index, item in enumerate(self.items):
            if newest[item.kind] == index:
                kept.append(item)
            else:
                self._drop(item)
        self.items = kept
        self._full = max(self.max_items, 2 * len(kept))  # so that each coalescing halves the queue

    def _drop(self, item: LiveItem[M]) -> None:
        self.count_dropped((item.kind.ticker, item.kind.period_seconds), Dropped(1, item.time_ns, item.time_ns))

    def count_dropped(self, series: tuple[str, int], found: Dropped) -> None:
        """Count items of a ticker and period that were dropped, here or before they came here."""
        known = self.dropped.get(series)
        if known is None:
            self.dropped[series] = found
        else:
            known.count += found.count
            known.start_ns, known.end_ns = min(known.start_ns, found.start_ns), max(known.end_ns, found.end_ns)

    def take(self, limit: int) -> tuple[dict[tuple[str, int], Dropped], list[LiveItem[M]]]:
        """Remove and return what was dropped since the last call, and then at most ``limit`` items, oldest first."""
        dropped, self.dropped = self.dropped, {}
        return dropped, [self.items.popleft() for _ in range(min(limit, len(self.items)))]
