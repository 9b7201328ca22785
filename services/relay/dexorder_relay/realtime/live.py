"""Live trades and candles: from the ingestors that push them to the clients that stream them. Nothing is kept."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dexorder_common.model.datasets import TRADES, realtime_dataset
from dexorder_common.model.realtime import RealtimeState
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_pb2 as pb
from dexorder_relay.realtime.live_queue import Dropped, LiveItem, LiveKind, LiveQueue, SlowClientPolicy

Message = market_pb2.Trade | market_pb2.Candle


@dataclass(frozen=True, slots=True)
class Interest:
    """Filter of a client."""

    tickers: frozenset[str]
    trades: bool
    periods: frozenset[int]
    running: bool
    policy: SlowClientPolicy

    def wants(self, kind: LiveKind) -> bool:
        """Return whether the client wants to see items of a kind."""
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
        """Yield a stream, which begins with the states of all its instruments."""
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
        """Tell those who watch an instrument the state of its job."""
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
        """Give live data of an instrument to its streams; ``missed`` is what the ingestor did not send before it."""
        streams: Collection[LiveStream] = self._streams.get(ticker, ())
        if not streams:
            return
        items: list[LiveItem[Message]] = []
        for trade in trades:
            trade.ticker = ticker
            items.append(LiveItem(LiveKind(ticker, 0), trade.time, trade))
        for candle in candles:
            candle.ticker = ticker
            items.append(
                LiveItem(LiveKind(ticker, candle.period_seconds, candle.closed), candle.ohlcv.open_time, candle)
            )
        for stream in streams:
            for each in missed:
                if stream.interest.has_series(each.period_seconds):
                    key = ticker, each.period_seconds
                    stream.queue.count_dropped(key, Dropped(each.count, each.start_time, each.end_time))
            for item in items:
                if stream.interest.wants(item.kind):
                    stream.queue.put(item)
                    stream.event.set()
