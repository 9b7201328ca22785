"""Values of the records of realtime jobs, and the pages of closed candles.

docs/protocol.md, "Realtime records", has the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dexorder_common.kafka.page_record import encode_candle
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.page import MAX_PAGE_CANDLES, Candle
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.exchange.validation import MS_NS
from dexorder_ingestor.history.paging import CandlePage
from dexorder_ingestor.realtime.candle_builder import ClosedCandles
from dexorder_ingestor.realtime.live_buffer import LiveNews
from dexorder_protos.dexorder.market.v1 import market_pb2, ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb
from dexorder_protos.dexorder.relay.v1 import realtime_pb2

_SIDES = {"buy": market_pb2.Trade.SIDE_BUY, "sell": market_pb2.Trade.SIDE_SELL}
_PRICES = {"last": "last", "bid": "bid", "ask": "ask", "open": "open", "high": "high", "low": "low"}
_AMOUNTS = {
    "base_volume": "baseVolume",
    "quote_volume": "quoteVolume",
    "bid_size": "bidVolume",
    "ask_size": "askVolume",
}
_LARGEST = 1e300


def encode_trade(trade: Trade) -> market_pb2.Trade:
    """Return a trade without its ticker."""
    return market_pb2.Trade(
        trade_id=trade.trade_id,
        time=trade.time_ns,
        price=trade.price,
        amount=trade.amount,
        side=_SIDES.get(trade.side, market_pb2.Trade.SIDE_UNSPECIFIED),
        received_at=trade.received_ns,
    )


def trades_value(trades: Iterable[Trade]) -> bytes:
    """Return the value of a record of trades."""
    found = market_pb2.Trades(trades=[encode_trade(trade) for trade in trades])
    return found.SerializeToString(deterministic=True)


def encode_live(job_id: str, news: LiveNews, running: Iterable[tuple[int, Candle]]) -> relay_pb.JobMarketData:
    """Return the live data of a job, with the candles that run."""
    missed = [
        realtime_pb2.Missed(
            period_seconds=each.period_seconds, count=each.count, start_time=each.start_ns, end_time=each.end_ns
        )
        for each in news.missed
    ]
    candles = [live_candle(period, candle, closed=True, amends=amends) for period, candle, amends in news.closed]
    candles += [live_candle(period, candle, received_ns=news.received_ns) for period, candle in running]
    return relay_pb.JobMarketData(job_id=job_id, missed=missed, trades=map(encode_trade, news.trades), candles=candles)


def live_candle(
    period_seconds: int, candle: Candle, *, closed: bool = False, amends: bool = False, received_ns: int = 0
) -> market_pb2.Candle:
    """Return a live candle without its ticker."""
    return market_pb2.Candle(
        period_seconds=period_seconds,
        ohlcv=ohlcv_pb2.OHLCV.FromString(encode_candle(candle)),
        closed=closed,
        amends=amends,
        received_at=received_ns,
    )


def candle_pages(closed: ClosedCandles, fetched_ns: int) -> Iterator[CandlePage]:
    """Yield the pages of closed candles; periods without a candle are empty."""
    period = closed.period_seconds
    for span in split_by_periods(closed.span, period, MAX_PAGE_CANDLES):
        candles = tuple(c for c in closed.candles if span.start_ns <= c.open_ns < span.end_ns)
        taken = [TimeRange(c.open_ns, next_open(c.open_ns, period)) for c in candles]
        yield CandlePage(span, candles, tuple(subtract([span], taken)), fetched_ns)


def encode_ticker(venue: str, ticker: Mapping[str, Any], received_ns: int) -> market_pb2.TickerSnapshot | None:
    """Return ccxt's ticker of a market; None if it has no value or its symbol can't be a ticker's.

    The time is the exchange's, or ours where it gives none.
    """
    values = {name: _positive(ticker.get(of)) for name, of in _PRICES.items()}
    values |= {name: _not_negative(ticker.get(of)) for name, of in _AMOUNTS.items()}
    known = {name: value for name, value in values.items() if value is not None}
    symbol, time_ms = ticker.get("symbol"), ticker.get("timestamp")
    if not known or not isinstance(symbol, str):
        return None
    time_ns = int(time_ms) * MS_NS if isinstance(time_ms, int | float) and 0 < time_ms < 2**43 else received_ns
    text = str(Instrument.parse(f"{symbol}.{venue}"))
    return market_pb2.TickerSnapshot(ticker=text, time=time_ns, received_at=received_ns, **known)


def _not_negative(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return float(value)


def _positive(value: Any) -> float | None:
    return _not_negative(value) or None
