"""Candles and trades in Kraken's dialect. Pure.

Candles cover the last 720 periods, whatever is requested; older history comes from the trades, which are those of
Binance's dialect, at the same milliseconds. Volume-weighted prices and numbers of trades are estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dexorder_exchange_sim.candles import CandleRequest, Source, printer
from dexorder_exchange_sim.dialects.dialect import History, Query, Row, RowLayout, Rows, SimAnswer
from dexorder_exchange_sim.market import usual_trades
from dexorder_exchange_sim.periods import DAY, PERIODS, Period
from dexorder_exchange_sim.trades import Ints, Trades, TradeSource
from dexorder_exchange_sim.venue import SimVenue
from tests.fakes.exchange.kraken_query import KrakenError, Pair, integer, one_pair, since_ns

MAX_CANDLES = 720
MAX_TRADES = 1000
_NS, _MS = 1_000_000_000, 1_000_000
_OHLC = RowLayout(time=0, unit_ns=_NS, close=4, volume=6, high=2, low=3, off_grid=1)
_TRADE = RowLayout(time=2, unit_ns=_NS, close=0, volume=1)
PERIODS_BY_MINUTES = {
    **{PERIODS[name].step_s // 60: PERIODS[name] for name in ("1m", "5m", "15m", "30m", "1h", "4h", "1d")},
    10_080: Period("7d", 7 * DAY),
    21_600: Period("15d", 15 * DAY),
}
"""Periods by ``interval``, in minutes; weeks and half months count from the epoch, so weeks open on Thursdays."""


def ohlc(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Return the newest 720 finished candles and the running one; of the finished, those that open after ``since``."""
    pair = one_pair(query, venue)
    period = PERIODS_BY_MINUTES.get(integer(query, "interval", 1))
    if period is None:
        raise KrakenError("EGeneral:Invalid arguments:interval")
    since, source = since_ns(query), pair.source
    running_s = period.open_s(period.index(now_ns // _NS))
    newest = _candles(source, period, CandleRequest(None, None, MAX_CANDLES + 1), now_ns)
    finished = [row for row in newest if row[0] < running_s][-MAX_CANDLES:]
    asked = 0 if since is None else since // _NS
    rows = [row for row in finished if since is None or row[0] * _NS > since]
    rows += [row for row in newest if row[0] >= running_s]
    asked_ns = since + 1 if since is not None else rows[0][0] * _NS if rows else now_ns

    def half() -> Row | None:
        open_s = rows[-1][0]
        middle_ns = min(now_ns, (open_s + period.step_s // 2) * _NS - 1)
        return next(iter(_candles(source, period, CandleRequest(open_s * 1000, open_s * 1000, 1), middle_ns)), None)

    def earlier(size: int) -> Rows:
        return _candles(source, period, CandleRequest(None, (asked_ns - 1) // _MS, size), now_ns)

    history = History(
        rows,
        _OHLC,
        (asked_ns, now_ns),
        wrap=_wrap(pair, finished[-1][0] if finished else asked),
        nothing=_wrap(pair, asked)([]),
        earlier=earlier,
        half=half,
        running=running_s,
    )
    return SimAnswer(history.wrap(rows), weight=0, history=history)


def _candles(source: Source, period: Period, wanted: CandleRequest, now_ns: int) -> Rows:
    candles = source.candles(period, wanted, now_ns=now_ns)
    price, lot = printer(source.instrument.price_decimals), printer(8)
    mean = np.clip((candles.open + candles.high + candles.low + candles.close) / 4, candles.low, candles.high)
    columns = (
        candles.open_s.tolist(),
        *(price(column) for column in (candles.open, candles.high, candles.low, candles.close, mean)),
        lot(candles.volume),
        usual_trades(source.instrument, np.full(len(candles), period.step_s)).tolist(),
    )
    return [list(row) for row in zip(*columns, strict=True)]


def trades(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Return the oldest trades after ``since``, which is exclusive; without it, the newest ones."""
    pair, since = one_pair(query, venue), since_ns(query)
    count = min(integer(query, "count", MAX_TRADES), MAX_TRADES)
    if count < 1:
        raise KrakenError("EGeneral:Invalid arguments:count")
    source, asked = pair.source, str(now_ns if since is None else since)
    if not isinstance(source, TradeSource):  # a recording of candles
        return SimAnswer(_wrap(pair, asked)([]), weight=0)
    oldest_id, stop_id = source.first_trade_at(0, now_ns=now_ns), _first_after(source, now_ns, now_ns)
    first_id = max(oldest_id, stop_id - count) if since is None else _first_after(source, since, now_ns)
    rows, times = _trade_rows(source, first_id, min(count, stop_id - first_id), now_ns)
    full = bool(rows) and rows[-1][6] < stop_id - 1
    start_ns = since + 1 if since is not None else times[0] if rows else now_ns
    wrap = _wrap(pair, str(times[-1]) if rows else asked)

    def earlier(size: int) -> Rows:
        from_id = max(0, first_id - size)
        return _trade_rows(source, from_id, first_id - from_id, now_ns)[0]

    window_ns = (start_ns, times[-1] + 1 if full else now_ns)
    history = History(rows, _TRADE, window_ns, wrap, _wrap(pair, asked)([]), earlier)
    return SimAnswer(wrap(rows), weight=0, history=history)


def _first_after(source: TradeSource, since_ns: int, now_ns: int) -> int:
    """Return the id of the first trade after a time."""
    first_id = source.first_trade_at(since_ns // _MS, now_ns=now_ns)
    passed = 0
    for limit in (1, MAX_TRADES):  # a millisecond rarely has several, and never more than 998
        found = times_ns(source.trades(first_id, limit, now_ns=now_ns))
        passed = int(np.count_nonzero(found <= since_ns))
        if passed < limit:
            break
    return first_id + passed


def times_ns(trades: Trades) -> Ints:
    """Return the nanoseconds of trades: some microseconds after the market's millisecond, never exactly on one."""
    return trades.time_ms * _MS + trades.micros * 1000


def _trade_rows(source: TradeSource, first_id: int, limit: int, now_ns: int) -> tuple[Rows, list[int]]:
    """Return rows and their nanoseconds."""
    found = source.trades(first_id, max(0, limit), now_ns=now_ns)
    times = times_ns(found).tolist()
    columns = (
        printer(source.instrument.price_decimals)(found.price),
        printer(8)(found.amount),
        [time_ns / _NS for time_ns in times],
        np.where(found.buyer_is_maker, "s", "b").tolist(),
        np.where(found.id % 3 == 0, "m", "l").tolist(),
        found.id.tolist(),
    )
    return [[p, v, t, side, kind, "", id] for p, v, t, side, kind, id in zip(*columns, strict=True)], times


def _wrap(pair: Pair, last: int | str) -> Callable[[Rows], Any]:
    return lambda rows: {"error": [], "result": {pair.key: rows, "last": last}}
