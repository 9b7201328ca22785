"""Events of a market in time order, and the merged events of a connection's subscriptions. Pure.

A feed is an iterator of times and events that runs ahead of the clock; `Merge` holds each back until its time. So the
messages of a subscription between two times do not depend on how often it is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from dexorder_exchange_sim.candles import printer
from dexorder_exchange_sim.trades import TradeSource

_MS = 1_000_000
FOREVER_NS = 2**62
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class TapeTrade:
    """One trade; ``price_text`` and ``amount_text`` are as the exchange prints them."""

    id: int
    time_ms: int
    micros: int
    price: float
    amount: float
    price_text: str
    amount_text: str
    buyer_is_maker: bool

    @property
    def time_ns(self) -> int:
        """Return the time with the microseconds that finer dialects show."""
        return self.time_ms * _MS + self.micros * 1000


Event = object
"""`TapeTrade`, or a dialect's event from trades and the clock."""
Feed = Iterator[tuple[int, Event]]
"""Pairs of a time, nanoseconds since the epoch, and an event; times do not decrease."""


class Tape:
    """Trades of one market as single events, rendered in chunks that all subscriptions share."""

    def __init__(self, source: TradeSource) -> None:
        self.source = source
        self._chunks: dict[int, list[TapeTrade]] = {}

    def after(self, time_ns: int) -> Iterator[TapeTrade]:
        """Return the trades of the milliseconds after a time, without end unless the market has one."""
        return self.since(self.source.first_trade_at(time_ns // _MS + 1, now_ns=FOREVER_NS))

    def since(self, first_id: int) -> Iterator[TapeTrade]:
        """Return the trades from an id on."""
        while True:
            number = first_id // _CHUNK
            chunk = self._chunk(number)
            yield from (trade for trade in chunk if trade.id >= first_id)
            first_id = (number + 1) * _CHUNK
            if not chunk or chunk[-1].id != first_id - 1:
                return

    def _chunk(self, number: int) -> list[TapeTrade]:
        chunk = self._chunks.get(number)
        if chunk is None:
            if len(self._chunks) > 1:
                del self._chunks[next(iter(self._chunks))]
            chunk = self._chunks[number] = self._render(number * _CHUNK)
        return chunk

    def _render(self, first_id: int) -> list[TapeTrade]:
        trades, instrument = self.source.trades(first_id, _CHUNK, now_ns=FOREVER_NS), self.source.instrument
        columns = (trades.id, trades.time_ms, trades.micros, trades.price, trades.amount)
        texts = (printer(instrument.price_decimals)(trades.price), printer(instrument.lot_decimals)(trades.amount))
        makers = trades.buyer_is_maker.astype(np.bool_).tolist()
        return [TapeTrade(*row) for row in zip(*(column.tolist() for column in columns), *texts, makers, strict=True)]


class Merge:
    """Feeds of one connection by key, merged by time."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, int] = {}
        self._heap: list[tuple[int, int, Hashable, Event, Feed]] = []
        self._added = 0

    def add(self, key: Hashable, feed: Feed) -> None:
        """Add a feed; one with the same key is replaced."""
        self._added += 1
        self._feeds[key] = self._added
        self._push(self._added, key, feed)

    def remove(self, key: Hashable) -> None:
        """Remove a feed; ignore an unknown key."""
        self._feeds.pop(key, None)

    def take(self, now_ns: int, limit: int) -> list[tuple[Hashable, Event]]:
        """Return the events that are due, at most ``limit``, each with its feed's key."""
        found: list[tuple[Hashable, Event]] = []
        while len(found) < limit and self._heap and self._heap[0][0] <= now_ns:
            _, number, key, event, feed = heapq.heappop(self._heap)
            if self._feeds.get(key) == number:
                found.append((key, event))
                self._push(number, key, feed)
        return found

    def next_ns(self) -> int | None:
        """Return the time of the next event; None without any."""
        return self._heap[0][0] if self._heap else None

    def _push(self, number: int, key: Hashable, feed: Feed) -> None:
        due = next(feed, None)
        if due is not None:
            heapq.heappush(self._heap, (due[0], number, key, due[1], feed))
