"""Snapshot of all tickers of an exchange: its records, then the final record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.dispatch_runner import DispatchRun
from dexorder_ingestor.exchange.answers import MS_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_protos.dexorder.market.v1 import market_pb2

_MAX_SNAPSHOTS = 1_000
"""Snapshots in one record."""
_PRICES = {"last": "last", "bid": "bid", "ask": "ask", "open": "open", "high": "high", "low": "low"}
_AMOUNTS = {
    "base_volume": "baseVolume",
    "quote_volume": "quoteVolume",
    "bid_size": "bidVolume",
    "ask_size": "askVolume",
}
_LARGEST = 1e300


async def publish_tickers(queries: Mapping[str, LiveQueries], run: DispatchRun) -> DispatchEnd:
    """Take and publish the snapshots of one dispatch; return how it ended."""
    try:
        tickers, fetched_ns = await queries[run.venue.name].tickers()
    except ExchangeFailure as error:
        now_ns = run.venue.clock.wall_ns()
        return await run.publish_final(str(error), TimeRange(now_ns, now_ns))
    snapshots = _encode(run.venue.name, tickers.values(), fetched_ns)
    times_ns = [each.time_ns for each in snapshots] or [fetched_ns]
    span = TimeRange(min(times_ns), max(times_ns))
    for first in range(0, len(snapshots), _MAX_SNAPSHOTS):
        page = snapshots[first : first + _MAX_SNAPSHOTS]
        value = market_pb2.TickerSnapshots(snapshots=page).SerializeToString(deterministic=True)
        await run.publish_snapshots(span, value, len(page))
    return await run.publish_final("", span)


def _encode(venue: str, tickers: Iterable[Mapping[str, Any]], received_ns: int) -> list[market_pb2.TickerSnapshot]:
    found = []
    for ticker in tickers:
        try:
            snapshot = encode_ticker(venue, ticker, received_ns)
        except InvalidRequest:  # its symbol can't be part of a ticker
            continue
        if snapshot is not None:
            found.append(snapshot)
    return sorted(found, key=lambda each: each.ticker)


def encode_ticker(venue: str, ticker: Mapping[str, Any], received_ns: int) -> market_pb2.TickerSnapshot | None:
    """Return ccxt's ticker of a market; None if it lacks all values or its symbol can't be a ticker's.

    The time is the exchange's, or ours where it gives none.
    """
    values = {name: _not_negative(ticker.get(of)) or None for name, of in _PRICES.items()}
    values |= {name: _not_negative(ticker.get(of)) for name, of in _AMOUNTS.items()}
    known = {name: value for name, value in values.items() if value is not None}
    symbol, time_ms = ticker.get("symbol"), ticker.get("timestamp")
    if not known or not isinstance(symbol, str):
        return None
    time_ns = int(time_ms) * MS_NS if isinstance(time_ms, int | float) and 0 < time_ms < 2**43 else received_ns
    text = str(Instrument.parse(f"{symbol}.{venue}"))
    return market_pb2.TickerSnapshot(ticker=text, time_ns=time_ns, received_ns=received_ns, **known)


def _not_negative(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return float(value)
