"""Values of the records of realtime jobs, and the pages of closed candles.

docs/protocol.md, "Realtime records", has the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dexorder_common.kafka.page_record import encode_candle
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle, Kind, PageHeaders
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.realtime import ProvisionalSpan, RealtimeDispatch
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.rpc.realtime_messages import encode_realtime_series
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.live_buffer import LiveNews
from dexorder_ingestor.realtime.live_candles import ClosedCandles
from dexorder_protos.dexorder.market.v1 import market_pb2, ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb2

_SIDES = {"buy": market_pb2.Trade.SIDE_BUY, "sell": market_pb2.Trade.SIDE_SELL}


def encode_trade(trade: Trade) -> market_pb2.Trade:
    """Return a trade without its ticker."""
    return market_pb2.Trade(
        trade_id=trade.trade_id,
        time_ns=trade.time_ns,
        price=trade.price,
        amount=trade.amount,
        side=_SIDES.get(trade.side, market_pb2.Trade.SIDE_UNSPECIFIED),
        received_ns=trade.received_ns,
        revision=trade.revision,
    )


def trades_value(trades: Iterable[Trade]) -> bytes:
    """Return the value of a record of trades."""
    found = market_pb2.Trades(trades=[encode_trade(trade) for trade in trades])
    return found.SerializeToString(deterministic=True)


def encode_live(
    job_id: str,
    ticker: str,
    news: LiveNews,
    running: Iterable[tuple[int, Candle]],
    provisional: Sequence[ProvisionalSpan] = (),
) -> relay_pb.JobMarketData:
    """Return the live data of a job, with running candles; candles that touch a provisional span are marked."""
    missed = [
        realtime_pb2.Missed(
            series=encode_realtime_series(ticker, each.period_seconds),
            count=each.count,
            start_ns=each.start_ns,
            end_ns=each.end_ns,
        )
        for each in news.missed
    ]
    candles = [live_candle(period, candle, closed=True, amends=amends) for period, candle, amends in news.closed]
    candles += [live_candle(period, candle, received_ns=news.received_ns) for period, candle in running]
    for candle in candles if provisional else ():
        open_ns = candle.ohlcv.open_time_ns
        span = TimeRange(open_ns, next_open(open_ns, candle.period_seconds))
        candle.provisional = any(each.span.overlaps(span) for each in provisional)
    trades = [encode_trade(each) for each in news.trades]
    for message in trades:
        message.refilled = message.trade_id in news.refilled
    return relay_pb.JobMarketData(job_id=job_id, missed=missed, trades=trades, candles=candles)


def live_candle(
    period_seconds: int, candle: Candle, *, closed: bool = False, amends: bool = False, received_ns: int = 0
) -> market_pb2.Candle:
    """Return a live candle without its ticker."""
    return market_pb2.Candle(
        period_seconds=period_seconds,
        ohlcv=ohlcv_pb2.OHLCV.FromString(encode_candle(candle)),
        closed=closed,
        amends=amends,
        received_ns=received_ns,
    )


class ClosedPage(NamedTuple):
    """Closed candles of one record; the periods of ``empty`` were without trades."""

    span: TimeRange
    candles: tuple[Candle, ...]
    empty: tuple[TimeRange, ...]


def candle_pages(closed: ClosedCandles) -> Iterator[ClosedPage]:
    """Yield the pages of closed candles."""
    period = closed.period_seconds
    for span in split_by_periods(closed.span, period, MAX_PAGE_CANDLES):
        candles = tuple(c for c in closed.candles if span.start_ns <= c.open_ns < span.end_ns)
        taken = [TimeRange(c.open_ns, next_open(c.open_ns, period)) for c in candles]
        yield ClosedPage(span, candles, tuple(subtract([span], taken)))


class RecordHeaders:
    """Headers of the records of one dispatch, which number them."""

    def __init__(self, dispatch: RealtimeDispatch, trace: str) -> None:
        self.dispatch = dispatch
        self._trace = trace
        self._pages = 0

    def next(
        self,
        kind: Kind,
        period_seconds: int,
        span: TimeRange,
        *,
        fetched_ns: int,
        empty: tuple[TimeRange, ...] = (),
        amends: bool = False,
    ) -> PageHeaders:
        """Return the headers of the next record."""
        page, self._pages = self._pages, self._pages + 1
        return PageHeaders(
            kind=kind,
            ticker=self.dispatch.ticker,
            period_seconds=period_seconds,
            dispatch_id=self.dispatch.dispatch_id,
            page=page,
            span=span,
            fetched_ns=fetched_ns,
            empty=empty,
            trace=self._trace,
            amends=amends,
        )
