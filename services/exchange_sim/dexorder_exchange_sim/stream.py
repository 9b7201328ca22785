"""Events of a market in time order, and the merged events of a connection's subscriptions. Pure.

A feed is an iterator of times and events that runs ahead of the clock; `Merge` holds each back until its time. So the
messages of a subscription between two times do not depend on how often it is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from dexorder_exchange_sim.candles import CandleRequest, printer
from dexorder_exchange_sim.filled import Filled
from dexorder_exchange_sim.periods import Period
from dexorder_exchange_sim.trades import TradeSource

_MS, _NS = 1_000_000, 1_000_000_000
_FOREVER_NS = 2**62
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


@dataclass(frozen=True, slots=True)
class Kline:
    """Candle [open_s, end_s) as of a time; ``trades`` is their number."""

    open_s: int
    end_s: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Time at which something is sampled, nanoseconds since the epoch."""

    time_ns: int


Event = TapeTrade | Kline | Sample
Feed = Iterator[tuple[int, Event]]
"""Pairs of a time, nanoseconds since the epoch, and an event; times do not decrease."""


class Tape:
    """Trades of one market as single events, rendered in chunks that all subscriptions share."""

    def __init__(self, source: TradeSource) -> None:
        self.source = source
        self._chunks: dict[int, list[TapeTrade]] = {}

    def after(self, time_ns: int) -> Iterator[TapeTrade]:
        """Return the trades of the milliseconds after a time, without end unless the market has one."""
        return self.since(self.source.first_trade_at(time_ns // _MS + 1, now_ns=_FOREVER_NS))

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
        trades, instrument = self.source.trades(first_id, _CHUNK, now_ns=_FOREVER_NS), self.source.instrument
        columns = (trades.id, trades.time_ms, trades.micros, trades.price, trades.amount)
        texts = (printer(instrument.price_decimals)(trades.price), printer(instrument.lot_decimals)(trades.amount))
        makers = trades.buyer_is_maker.astype(np.bool_).tolist()
        return [TapeTrade(*row) for row in zip(*(column.tolist() for column in columns), *texts, makers, strict=True)]


class _Running:
    """Candle that trades are added to; volumes in whole lots, so that sums are exact."""

    def __init__(self, period: Period, open_s: int, first_id: int, price: float, lot: int) -> None:
        self.open_s = open_s
        self.end_s = period.open_s(period.index(open_s) + 1)
        self._first_id = first_id
        self._lot = lot
        self._trades = self._lots = 0
        self._open = self._high = self._low = self._close = price

    def add(self, trade: TapeTrade) -> None:
        self.merge(trade.price, trade.price, trade.price, trade.amount, trade.id + 1)

    def merge(self, high: float, low: float, close: float, volume: float, next_id: int) -> None:
        """Add the trades before an id."""
        self._high, self._low, self._close = max(self._high, high), min(self._low, low), close
        self._trades = next_id - self._first_id
        self._lots += round(volume * self._lot)

    def at(self, time_s: int) -> Kline:
        """Return the candle as of a time."""
        prices = self._open, self._high, self._low, self._close
        return Kline(self.open_s, self.end_s, *prices, self._lots / self._lot, self._trades, time_s >= self.end_s)


def klines(tape: Tape, period: Period, after_ns: int) -> Feed:
    """Yield the running candle at the end of each second with trades, and the closed one when its period ends.

    A closed candle comes on time, also if its last trade was long before. Periods without trades have a closed candle
    only if the source has one.
    """
    return ((at_s * _NS, kline) for at_s, kline in _klines(tape, period, after_ns // _NS) if at_s * _NS > after_ns)


def _klines(tape: Tape, period: Period, from_s: int) -> Iterator[tuple[int, Kline]]:
    running = _begun(tape, period, from_s)
    seen_s, end_s = -1, period.open_s(period.index(from_s))
    for trade in tape.after(from_s * _NS - 1):
        time_s = trade.time_ms // 1000
        if running is not None and seen_s < time_s:
            if 0 <= seen_s < running.end_s - 1:
                yield seen_s + 1, running.at(seen_s + 1)
            if time_s >= running.end_s:
                yield running.end_s, running.at(running.end_s)
                end_s, running = running.end_s, None
        if running is None:
            yield from _flat(tape, period, end_s, time_s)
            open_s = period.open_s(period.index(time_s))
            running = _Running(period, open_s, trade.id, trade.price, _lot(tape))
        running.add(trade)
        seen_s = time_s
    if running is not None:
        yield running.end_s, running.at(running.end_s)
        end_s = running.end_s
    yield from _flat(tape, period, end_s, None)


def _begun(tape: Tape, period: Period, from_s: int) -> _Running | None:
    """Return the candle that contains a second with its trades before it."""
    open_s = period.open_s(period.index(from_s))
    query = CandleRequest(open_s * 1000, open_s * 1000, 1)
    rows = tape.source.candles(period, query, now_ns=from_s * _NS - 1)
    if open_s == from_s or not len(rows) or not rows.volume[0]:
        return None
    first_id, next_id = (tape.source.first_trade_at(s * 1000, now_ns=_FOREVER_NS) for s in (open_s, from_s))
    running = _Running(period, open_s, first_id, float(rows.open[0]), _lot(tape))
    high, low, close, volume = (float(column[0]) for column in rows.columns()[2:])
    running.merge(high, low, close, volume, next_id)
    return running


def _flat(tape: Tape, period: Period, open_s: int, until_s: int | None) -> Iterator[tuple[int, Kline]]:
    """Yield the closed candles without trades of [open_s, until_s), if the source fills them."""
    if not isinstance(tape.source, Filled):
        return
    rows = tape.source.candles(period, CandleRequest(None, open_s * 1000 - 1, 1), now_ns=open_s * _NS - 1)
    if not len(rows):
        return
    price, index = float(rows.close[0]), period.index(open_s)
    stop_s = tape.source.end_s if until_s is None else until_s
    while period.open_s(index + 1) <= stop_s:
        start_s, end_s = period.open_s(index), period.open_s(index + 1)
        yield end_s, Kline(start_s, end_s, price, price, price, price, 0.0, 0, closed=True)
        index += 1


def _lot(tape: Tape) -> int:
    decimals = tape.source.instrument.lot_decimals
    return int(10 ** (8 if decimals is None else decimals))


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
        """Remove a feed; an unknown key changes nothing."""
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
