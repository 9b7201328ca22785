"""Candles and samples as events of a simulated exchange's WebSockets, which only tests read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dexorder_exchange_sim.candles import CandleRequest
from dexorder_exchange_sim.dialects.dialect import SocketSession
from dexorder_exchange_sim.periods import Period
from dexorder_exchange_sim.stream import FOREVER_NS, Feed, Tape, TapeTrade
from tests.fakes.exchange.filled import Filled

_NS = 1_000_000_000


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


def samples(session: SocketSession, after_ns: int) -> Feed:
    """Return one sample a second, by the exchange's clock or by the machine's, whichever is slower.

    Samples of a time that the clock skipped are left out.
    """
    due_ns = after_ns
    while True:
        step_ns = int(_NS * max(1.0, session.tapes.clock.speed))
        due_ns = max(due_ns + step_ns, session.now_ns) // _NS * _NS
        yield due_ns, Sample(due_ns)


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
    first_id, next_id = (tape.source.first_trade_at(s * 1000, now_ns=FOREVER_NS) for s in (open_s, from_s))
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
