"""Live trades and candles: from the ingestors that push them to the clients that stream them. They are not stored."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from dexorder_common.model.datasets import TRADES, realtime_dataset
from dexorder_common.model.realtime import RealtimeState
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb

M = TypeVar("M")
Message = market_pb2.Trade | market_pb2.Candle


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
    """A trade, or a state of a candle: a message that only the receiver reads; its time may be an open time."""

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
    """The items that a client has not read, bounded even if the client never reads.

    Until the queue is full it keeps every item in order. A full queue follows the client's policy: COALESCE keeps the
    newest of each kind, DROP_OLDEST drops the oldest. Both count the dropped items for the client.

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
        """Remove and return the counts of items dropped since the last call, and the ``limit`` oldest items."""
        dropped, self.dropped = self.dropped, {}
        return dropped, [self.items.popleft() for _ in range(min(limit, len(self.items)))]


class Interest(NamedTuple):
    """Filter of a client; ``live_only`` leaves out trades that are refilled."""

    tickers: frozenset[str]
    trades: bool
    periods: frozenset[int]
    running: bool
    policy: SlowClientPolicy
    live_only: bool = False

    def wants(self, kind: LiveKind, message: Message | None = None) -> bool:
        """Return whether the client wants to see items of a kind, or this one."""
        if self.live_only and isinstance(message, market_pb2.Trade) and message.refilled:
            return False
        has_series = self.has_series(kind.period_seconds)
        return has_series and (kind.closed or self.running or realtime_dataset(kind.period_seconds) is TRADES)

    def has_series(self, period_seconds: int) -> bool:
        """Return whether the client has asked for trades (0) or for candles of a period."""
        return self.trades if realtime_dataset(period_seconds) is TRADES else period_seconds in self.periods


@dataclass(eq=False, slots=True)
class LiveStream:
    """One client: its queue, states that have changed, and an event for when there is something to send."""

    interest: Interest
    queue: LiveQueue[Message]
    states: dict[str, RealtimeState] = field(default_factory=dict)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class LiveHub:
    """Gives each message to the streams that want it; belongs to one event loop."""

    def __init__(self, max_items: int) -> None:
        """Keep at most ``max_items`` for a client that does not read."""
        self._max_items = max_items
        self._streams: defaultdict[str, set[LiveStream]] = defaultdict(set)
        self.state: Callable[[str], RealtimeState] = lambda ticker: RealtimeState.WAITING
        """Returns the state of an instrument's job."""

    @contextmanager
    def open(self, interest: Interest) -> Iterator[LiveStream]:
        """Yield a stream, which starts with the states of all its instruments."""
        stream = LiveStream(interest, LiveQueue(interest.policy, self._max_items))
        stream.states = {ticker: self.state(ticker) for ticker in sorted(interest.tickers)}
        for ticker in interest.tickers:
            self._streams[ticker].add(stream)
        try:
            yield stream
        finally:
            for ticker in interest.tickers:
                self._streams[ticker].discard(stream)
                if not self._streams[ticker]:
                    del self._streams[ticker]

    def changed(self, ticker: str) -> None:
        """Send the state of an instrument's job to its streams."""
        for stream in self._streams.get(ticker, ()):
            stream.states[ticker] = self.state(ticker)
            stream.event.set()

    def push(
        self,
        ticker: str,
        trades: Sequence[market_pb2.Trade],
        candles: Sequence[market_pb2.Candle],
        missed: Sequence[pb.Missed] = (),
    ) -> None:
        """Give live data of an instrument to its streams; ``missed`` counts earlier data that was not sent."""
        streams: Collection[LiveStream] = self._streams.get(ticker, ())
        if not streams:
            return
        items: list[LiveItem[Message]] = []
        for trade in trades:
            trade.ticker = ticker
            items.append(LiveItem(LiveKind(ticker, 0), trade.time_ns, trade))
        for candle in candles:
            candle.ticker = ticker
            items.append(
                LiveItem(LiveKind(ticker, candle.period_seconds, candle.closed), candle.ohlcv.open_time_ns, candle)
            )
        for stream in streams:
            for each in missed:
                period = each.series.period_seconds
                if stream.interest.has_series(period):
                    key = ticker, period
                    stream.queue.count_dropped(key, Dropped(each.count, each.start_ns, each.end_ns))
            for item in items:
                if stream.interest.wants(item.kind, item.message):
                    stream.queue.put(item)
                    stream.event.set()
