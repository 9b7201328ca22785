"""Live data of one job that the stream to the relay has not taken yet. Pure.

Bounded, whatever the stream takes; what is dropped, the oldest first, is counted for those who watch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from services.common.model.page import Candle
from services.gen.dexorder.relay.v1 import ingestor_service_pb2 as pb
from services.gen.dexorder.relay.v1 import realtime_pb2
from services.ingestor.realtime.candle_builder import ClosedCandles
from services.ingestor.realtime.records import encode_trade, live_candle
from services.ingestor.realtime.trade import Trade

MAX_LIVE = 1_000
"""Trades, and closed candles, that are kept."""
_TRADES = 0


class LiveBuffer:
    """Trades and closed candles since the last `take`, and whether candles that run have changed."""

    def __init__(self, job_id: str, *, include_trades: bool, max_items: int = MAX_LIVE) -> None:
        self._job_id = job_id
        self._include_trades = include_trades
        self._max_items = max_items
        self._trades: deque[Trade] = deque()
        self._closed: deque[tuple[int, Candle, bool]] = deque()
        self._missed: dict[int, realtime_pb2.Missed] = {}
        self._has_news = False
        self._received_ns = 0

    def add_trades(self, trades: Iterable[Trade], *, received_ns: int) -> None:
        """Add trades; ``received_ns`` is of the newest one, for the candles that run."""
        self._has_news = True
        self._received_ns = received_ns
        if not self._include_trades:
            return
        self._trades.extend(trades)
        while len(self._trades) > self._max_items:
            self._miss(_TRADES, self._trades.popleft().time_ns)

    def add_closed(self, closed: Iterable[ClosedCandles]) -> None:
        """Add candles that were closed or amended."""
        self._has_news = True
        for each in closed:
            self._closed.extend((each.period_seconds, candle, each.amends) for candle in each.candles)
        while len(self._closed) > self._max_items:
            period, candle, _ = self._closed.popleft()
            self._miss(period, candle.open_ns)

    def take(self, running: Callable[[], Iterable[tuple[int, Candle]]]) -> pb.JobMarketData | None:
        """Remove and return everything, with the candles that ``running`` returns; None without news."""
        if not self._has_news:
            return None
        self._has_news = False
        trades, self._trades = self._trades, deque()
        closed, self._closed = self._closed, deque()
        missed, self._missed = self._missed, {}
        candles = [live_candle(period, candle, closed=True, amends=amends) for period, candle, amends in closed]
        candles += [live_candle(period, candle, received_ns=self._received_ns) for period, candle in running()]
        return pb.JobMarketData(
            job_id=self._job_id, missed=missed.values(), trades=map(encode_trade, trades), candles=candles
        )

    def _miss(self, period: int, time_ns: int) -> None:
        known = self._missed.setdefault(
            period, realtime_pb2.Missed(period_seconds=period, start_time=time_ns, end_time=time_ns)
        )
        known.count += 1
        known.start_time, known.end_time = min(known.start_time, time_ns), max(known.end_time, time_ns)
