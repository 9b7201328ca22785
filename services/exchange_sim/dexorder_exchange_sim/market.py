"""Endless, deterministic candles of one symbol. Pure: the same seed, symbol and time always give the same numbers.

The path is drawn from the top down. A random walk, the sum of hat functions over powers of two days, gives the price at
any midnight directly. A day is then split into 24 hours, an hour into 60 minutes, a minute into 60 seconds, a second
into 4 trades. Each split fills its parent exactly: prices run from the parent's open to its close, one child reaches
the parent's high and one its low, and volumes add up. So a range of any period costs only its own length, and sums of
fine candles equal coarse ones to the last tick and lot.

A quiet market splits its hours into fewer minutes and its minutes into fewer seconds, drawn for each; an outage omits
days. Both have fixed counts, so that trades of any time are found without counting from the first.

Below the day everything is integer arithmetic or single, correctly rounded operations on independent rows, so a
range does not depend on how it is sliced.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from dexorder_exchange_sim.candles import CandleRequest, Candles, aggregate, concat
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import DAY, HOUR, MINUTE, Period
from dexorder_exchange_sim.trades import Ints, Trades

Hashes = NDArray[np.uint64]

TRADES_A_SECOND = 4
_STEPS_S = (DAY, HOUR, MINUTE, 1)
_NEVER_S = 1 << 60
_REFERENCE_DAY = 19_723
"""2024-01-01, the day of `SimInstrument.price`."""
_CHUNK_DAYS = 1024
_LONGEST_SWING_DAYS = 256
"""Longer swings have this one's amplitude, so that prices keep their order of magnitude for centuries."""
_LEAST_DAY_LOTS = 1 << 25
"""Enough for at least one lot in every trade of every second."""
_LEAST_TICKS = 100


def usual_trades(instrument: SimInstrument, lengths_s: Ints) -> Ints:
    """Return the average number of trades in candles of these lengths; 0 for recordings."""
    if instrument.price_decimals is None:
        return np.zeros_like(lengths_s)
    seconds, minutes = instrument.busy_seconds / 60, instrument.busy_minutes / 60
    share = np.where(lengths_s < MINUTE, 1.0, np.where(lengths_s < HOUR, seconds, seconds * minutes))
    return np.rint(lengths_s * share).astype(np.int64) * TRADES_A_SECOND


class SyntheticMarket:
    """Candles and trades of one instrument, from its listing to its delisting or the present."""

    def __init__(self, instrument: SimInstrument, *, seed: int) -> None:
        if instrument.price_decimals is None or instrument.lot_decimals is None:
            raise ValueError(f"{instrument.symbol}: a synthetic market needs a tick and a lot size")
        self.instrument = instrument
        self._tick = 10**instrument.price_decimals
        self._lot = 10**instrument.lot_decimals
        digest = hashlib.blake2b(f"{seed}/{instrument.symbol}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big")
        self._end_s = _NEVER_S if instrument.delisted_s is None else instrument.delisted_s
        self._outage_s = instrument.outage_s or (_NEVER_S, _NEVER_S)
        self._children = {HOUR: (24, 24), MINUTE: (60, instrument.busy_minutes), 1: (60, instrument.busy_seconds)}
        self._minute_trades = instrument.busy_seconds * TRADES_A_SECOND
        self._chunks: dict[int, Candles] = {}
        self._reference = float(self._walk(np.array([_REFERENCE_DAY]))[0])

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """See `Source.candles`; the last candle may be unfinished at ``now_ns``."""
        now_s = now_ns // 1_000_000_000
        start_ms = None if query.start_ms is None else max(query.start_ms, 0)
        end_ms = now_s * 1000 if query.end_ms is None else min(query.end_ms, now_s * 1000)
        if now_s < self.instrument.listed_s or end_ms < 0 or (start_ms is not None and start_ms > end_ms):
            return self._units(self._rows(0, 0, 0))
        low = period.index(self.instrument.listed_s)
        high = period.index(min(end_ms // 1000, self._end_s - 1))
        if start_ms is None:
            return self._units(self._newest(period, low, high, query.limit, now_s))
        return self._units(self._oldest(period, max(low, period.first_index(start_ms)), high, query.limit, now_s))

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`."""
        return min(now_ns // 1_000_000_000, self._end_s)

    def _oldest(self, period: Period, low: int, high: int, limit: int, now_s: int) -> Candles:
        """Return the first ``limit`` candles with indexes in [low, high]; continue the search across gaps."""
        parts, count, width = [self._rows(0, 0, 0)], 0, limit
        while count < limit and low <= high:
            parts.append(self._span(period, low, min(high, low + width - 1), now_s)[: limit - count])
            count, low, width = count + len(parts[-1]), low + width, 2 * width
        return concat(parts)

    def _newest(self, period: Period, low: int, high: int, limit: int, now_s: int) -> Candles:
        """Return the last ``limit`` candles with indexes in [low, high]; continue the search across gaps."""
        parts, count, width = [self._rows(0, 0, 0)], 0, limit
        while count < limit and low <= high:
            rows = self._span(period, max(low, high - width + 1), high, now_s)
            parts.append(rows[max(0, len(rows) - (limit - count)) :])
            count, high, width = count + len(parts[-1]), high - width, 2 * width
        return concat(parts[::-1])

    def _span(self, period: Period, low: int, high: int, now_s: int) -> Candles:
        """Return the candles with indexes in [low, high]."""
        start_s = max(period.open_s(low), self.instrument.listed_s)
        level = next(level for level, step in enumerate(_STEPS_S) if (period.step_s or DAY) % step == 0)
        return aggregate(self._until(level, start_s, period.open_s(high + 1), now_s + 1), period)

    def _until(self, level: int, start_s: int, end_s: int, stop_s: int) -> Candles:
        """Return rows of a level over [start_s, end_s), with finer rows after the last whole row before ``stop_s``."""
        parts = [self._rows(0, 0, 0)]
        for finer in range(level, len(_STEPS_S)):
            step = _STEPS_S[finer]
            cut_s = min(end_s, stop_s // step * step)
            if cut_s > start_s:
                parts.append(self._rows(finer, start_s, cut_s))
                start_s = cut_s
        return concat(parts)

    def _rows(self, level: int, start_s: int, end_s: int) -> Candles:
        """Return whole rows of a level over [start_s, end_s), in ticks and lots; both ends are on the level's step."""
        step = _STEPS_S[level]
        if level == 0:
            return self._days(start_s // DAY, end_s // DAY)
        above = _STEPS_S[level - 1]
        from_s = start_s // above * above
        parents = self._rows(level - 1, from_s, -(-end_s // above) * above)
        children = self._split(parents, step)
        low, high = np.searchsorted(children.open_s, (start_s, end_s))
        return children[int(low) : int(high)]

    def _units(self, rows: Candles) -> Candles:
        o, h, low, c = (column / self._tick for column in rows.columns()[1:5])
        return Candles(rows.open_s, o, h, low, c, rows.volume / self._lot)

    def _days(self, first: int, end: int) -> Candles:
        """Return the days [first, end) that have data; drawn in fixed chunks, which are cached."""
        parts = []
        for number in range(first // _CHUNK_DAYS, max(first, end - 1) // _CHUNK_DAYS + 1):
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = self._draw_days(number * _CHUNK_DAYS)
            low, high = np.searchsorted(chunk.open_s, (first * DAY, end * DAY))
            parts.append(chunk[int(low) : int(high)])
        return concat(parts)

    def _draw_days(self, first: int) -> Candles:
        """Return the days of one chunk without the outage and the days after the delisting."""
        market = self.instrument
        days = np.arange(first, first + _CHUNK_DAYS + 1)
        price = market.price * np.exp(self._walk(days) - self._reference)
        ticks = np.maximum(np.rint(price * self._tick), _LEAST_TICKS).astype(np.int64)
        opens, closes, days = ticks[:-1], ticks[1:], days[:-1]
        top, bottom = np.maximum(opens, closes), np.minimum(opens, closes)
        wick = 0.4 * market.daily_volatility
        high = top + np.rint(top * wick * np.abs(self._normal("high", days))).astype(np.int64)
        low = bottom - np.rint(bottom * wick * np.abs(self._normal("low", days))).astype(np.int64)
        # days with large moves are busy
        move = np.abs(closes - opens) / (opens * market.daily_volatility)
        lots = market.daily_turnover / price[:-1] * self._lot * np.exp(0.35 * self._normal("volume", days))
        volume = np.rint(np.maximum(lots * (0.6 + 0.5 * move), _LEAST_DAY_LOTS)).astype(np.int64)
        there = (days * DAY < self._end_s) & ((days * DAY < self._outage_s[0]) | (days * DAY >= self._outage_s[1]))
        return Candles(days * DAY, opens, high, low, closes, volume)[there]

    def _walk(self, days: Ints) -> NDArray[np.float64]:
        """Return the logarithmic price at midnight: the sum of the hats of all spans of 2, 4, 8 ... days around it."""
        walk = np.zeros(len(days))
        for power in range(1, 17):
            span = 1 << power
            hat = 1.0 - np.abs(2.0 * (days % span) / span - 1.0)
            amplitude = self.instrument.daily_volatility * np.sqrt(min(span, _LONGEST_SWING_DAYS)) / 2
            walk += amplitude * hat * self._normal(f"walk{power}", days // span)
        return walk

    def _split(self, parents: Candles, step_s: int) -> Candles:
        """Split each parent into its busy children, which fill it exactly."""
        starts = self._busy(parents.open_s, step_s)
        count = starts.shape[1]
        first, second = self._hash(f"path{step_s}", starts), self._hash(f"size{step_s}", starts)
        steps = _bell(first)
        o, h, low, c = (column[:, None] for column in (parents.open, parents.high, parents.low, parents.close))
        closes = _bridge(steps, o, h, low, c)
        opens = np.concatenate((o, closes[:, :-1]), axis=1)
        wick = (h - low) / (4 * count**0.5) / (1 << 32)
        upper = np.rint(wick * _square(second, 0)).astype(np.int64)
        lower = np.rint(wick * _square(second, 16)).astype(np.int64)
        highs = np.minimum(np.maximum(opens, closes) + upper, h)
        lows = np.maximum(np.minimum(opens, closes) - lower, low)
        row = np.arange(len(starts))
        highs[row, np.argmax(highs, axis=1)] = parents.high
        lows[row, np.argmin(lows, axis=1)] = parents.low
        weights = (_square(second, 32) + (1 << 28)) * (np.abs(steps) + (1 << 16))
        volumes = _share(parents.volume, weights, np.maximum(parents.volume // (4 * count), 1))
        return Candles(*(column.ravel() for column in (starts, opens, highs, lows, closes, volumes)))

    def _busy(self, parents_s: Ints, step_s: int) -> Ints:
        """Return the opens of the children with trades, one row per parent: all, or a fixed number drawn at random."""
        whole, count = self._children[step_s]
        starts = parents_s[:, None] + np.arange(whole) * step_s
        if count == whole:
            return starts
        chosen = np.argsort(self._hash(f"busy{step_s}", starts), axis=1)[:, :count]
        return np.take_along_axis(starts, np.sort(chosen, axis=1), axis=1)

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """See `TradeSource.trades`; they add up to the 1s candles exactly."""
        now_s, now_ms = now_ns // 1_000_000_000, now_ns // 1_000_000
        first, last = (self._minute_s(number // self._minute_trades) for number in (first_id, first_id + limit - 1))
        end_s = min(last + MINUTE, now_s // MINUTE * MINUTE + MINUTE)
        seconds = self._rows(3, first, end_s) if end_s > first else self._rows(0, 0, 0)
        start_id = first_id // self._minute_trades * self._minute_trades
        ids = start_id + np.arange(len(seconds) * TRADES_A_SECOND).reshape(-1, TRADES_A_SECOND)
        random = self._hash("trade", ids)
        times = seconds.open_s[:, None] * 1000 + np.arange(TRADES_A_SECOND) * 250 + _bits(random, 0, 16) % 250
        up = seconds.close >= seconds.open
        inner = (np.where(up, seconds.low, seconds.high), np.where(up, seconds.high, seconds.low))
        price = np.stack((seconds.open, *inner, seconds.close), axis=1)
        amount = _share(seconds.volume, _bits(random, 16, 16) + 1, np.ones(len(seconds), np.int64))
        wanted = ((ids >= first_id) & (ids < first_id + limit) & (times <= now_ms)).ravel()
        maker = _bits(random, 40, 1).astype(np.bool_)
        prices, amounts = price.ravel() / self._tick, amount.ravel() / self._lot
        return Trades(ids.ravel(), times.ravel(), (ids % 997 + 1).ravel(), prices, amounts, maker.ravel())[wanted]

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """See `TradeSource.first_trade_at`."""
        time_ms = min(time_ms, now_ns // 1_000_000 + 1)
        if time_ms <= self.instrument.listed_s * 1000:
            return 0
        minute_s = time_ms // 1000 // MINUTE * MINUTE
        first_id = self._minutes_before(minute_s) * self._minute_trades
        if self._minute_s(first_id // self._minute_trades) != minute_s or minute_s >= self._end_s:
            return first_id
        # trades of the minute that contains the time, as of its end
        minute = self.trades(first_id, self._minute_trades, now_ns=(minute_s + MINUTE) * 1_000_000_000 - 1)
        return first_id + int(np.count_nonzero(minute.time_ms < time_ms))

    def _minutes_before(self, minute_s: int) -> int:
        """Return the number of busy minutes between the listing and a minute."""
        minute_s = min(minute_s, self._end_s)
        hour_s = minute_s // HOUR * HOUR
        start_s, end_s = self._outage_s
        hours = (hour_s - self.instrument.listed_s - max(0, min(hour_s, end_s) - start_s)) // HOUR
        before = hours * self.instrument.busy_minutes
        if start_s <= hour_s < end_s:
            return before
        return before + int(np.count_nonzero(self._busy(np.array([hour_s]), MINUTE) < minute_s))

    def _minute_s(self, number: int) -> int:
        """Return the open of a busy minute, numbered from the listing."""
        hours, place = divmod(number, self.instrument.busy_minutes)
        hour_s = self.instrument.listed_s + min(hours, _NEVER_S // DAY) * HOUR
        if hour_s >= self._outage_s[0]:
            hour_s += self._outage_s[1] - self._outage_s[0]
        return int(self._busy(np.array([hour_s]), MINUTE)[0, place])

    def _normal(self, what: str, numbers: Ints) -> NDArray[np.float64]:
        """Return bell-shaped numbers: mean 0, standard deviation 1, bounded by 3.47."""
        return _bell(self._hash(what, numbers)) / 37_837.0

    def _hash(self, what: str, numbers: Ints) -> Hashes:
        """Return 64 random bits for each number, by the splitmix64 finaliser; ``what`` separates the uses."""
        salt = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), "big") ^ self._key
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _bits(hashes: Hashes, shift: int, count: int) -> Ints:
    return ((hashes >> np.uint64(shift)) & np.uint64((1 << count) - 1)).astype(np.int64)


def _bell(hashes: Hashes) -> Ints:
    """Return the sum of four 16-bit numbers less its mean: bell-shaped, deviation 37,837, within ±131,070."""
    total: Ints = np.sum([_bits(hashes, shift, 16) for shift in (0, 16, 32, 48)], axis=0)
    return total - 131_070


def _square(hashes: Hashes, shift: int) -> Ints:
    """Return the square of 16 bits: mostly small, sometimes large."""
    return _bits(hashes, shift, 16) ** 2


def _bridge(steps: Ints, o: Ints, h: Ints, low: Ints, c: Ints) -> Ints:
    """Return the children's closes: a random walk from the parent's open to its close, reflected into its range."""
    count = steps.shape[1]
    walk = np.cumsum(steps, axis=1)
    place = np.arange(1, count + 1)
    noise = walk * count - place * walk[:, -1:]
    spread = np.maximum(noise.max(axis=1, keepdims=True) - noise.min(axis=1, keepdims=True), 1)
    path = o + (c - o) * (place / count) + noise / spread * (h - low)
    path = np.where(path > h, 2 * h - path, path)
    path = np.where(path < low, 2 * low - path, path)
    closes: Ints = np.clip(np.rint(path).astype(np.int64), low, h)
    closes[:, -1:] = c
    return closes


def _share(whole: Ints, weights: Ints, least: Ints) -> Ints:
    """Divide each row's volume by weight in whole lots, ``least`` to each first; rows add up exactly."""
    running = np.cumsum(weights, axis=1)
    rest = (whole - least * weights.shape[1])[:, None]
    dealt = np.floor(rest * (running / running[:, -1:])).astype(np.int64)
    shares: Ints = np.diff(dealt, axis=1, prepend=0) + least[:, None]
    return shares
