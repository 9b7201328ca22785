"""Endless, deterministic candles for one symbol. Pure: the same seed, symbol and time always give the same numbers.

The path is drawn from the top down. A random walk built from hats at powers of two days gives the price at every
midnight without walking to it. A day is then split into 24 hours, an hour into 60 minutes, a minute into 60 seconds, a
second into 4 trades; each split fills its parent exactly: prices chain from the parent's open to its close, one child
touches the parent's high and one its low, and volumes add up. Any range of any period therefore costs only its own
length, and sums of fine candles equal coarse ones to the last tick and lot.

Below the day everything is integer arithmetic or single correctly rounded operations on rows that do not know each
other, so how a range is sliced cannot change it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.exchange_sim.candles import CandleQuery, Candles, aggregate, concat
from services.exchange_sim.instruments import Instrument
from services.exchange_sim.periods import DAY, HOUR, MINUTE, Period

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

TRADES_A_SECOND = 4
_STEPS_S = (DAY, HOUR, MINUTE, 1)
_REFERENCE_DAY = 19_723
"""2024-01-01, the day `Instrument.price` speaks of."""
_CHUNK_DAYS = 1024
_LONGEST_SWING_DAYS = 256
"""Longer swings keep this one's amplitude: prices wander for centuries without leaving their decade."""
_LEAST_DAY_LOTS = 1 << 25
"""Enough for every trade of every second to carry at least one lot."""
_LEAST_TICKS = 100


@dataclass(frozen=True, slots=True)
class Trades:
    """Trades in time order; ids are consecutive from the listing on, prices and amounts in units (float64)."""

    id: Ints
    time_ms: Ints
    price: NDArray[np.float64]
    amount: NDArray[np.float64]
    buyer_is_maker: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.id)


class SyntheticMarket:
    """Candles and trades of one instrument, from its listing to any now."""

    def __init__(self, instrument: Instrument, *, seed: int) -> None:
        if instrument.price_decimals is None or instrument.lot_decimals is None:
            raise ValueError(f"{instrument.symbol}: a synthetic market needs a tick and a lot size")
        self.instrument = instrument
        self._tick = 10**instrument.price_decimals
        self._lot = 10**instrument.lot_decimals
        digest = hashlib.blake2b(f"{seed}/{instrument.symbol}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big")
        self._chunks: dict[int, Candles] = {}
        self._reference = float(self._walk(np.array([_REFERENCE_DAY]))[0])

    # Candles

    def candles(self, period: Period, query: CandleQuery, *, now_ns: int) -> Candles:
        """See `Source.candles`; the last candle may be the one still running at ``now_ns``."""
        now_s = now_ns // 1_000_000_000
        start_ms = None if query.start_ms is None else max(query.start_ms, 0)
        end_ms = now_s * 1000 if query.end_ms is None else min(query.end_ms, now_s * 1000)
        if now_s < self.instrument.listed_s or end_ms < 0 or (start_ms is not None and start_ms > end_ms):
            return self._units(self._rows(0, 0, 0))
        low = first = period.index(self.instrument.listed_s)
        high = period.index(end_ms // 1000)
        if start_ms is None:
            low = max(first, high - query.limit + 1)
        else:
            low = max(first, period.first_index(start_ms))
            high = min(high, low + query.limit - 1)
        if high < low:
            return self._units(self._rows(0, 0, 0))
        start_s = max(period.open_s(low), self.instrument.listed_s)
        level = next(level for level, step in enumerate(_STEPS_S) if (period.step_s or DAY) % step == 0)
        return self._units(aggregate(self._until(level, start_s, period.open_s(high + 1), now_s + 1), period))

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`."""
        return now_ns // 1_000_000_000

    def _until(self, level: int, start_s: int, end_s: int, stop_s: int) -> Candles:
        """Rows of a level over [start_s, end_s), the part after the last whole row before ``stop_s`` in finer rows."""
        parts = []
        for finer in range(level, len(_STEPS_S)):
            step = _STEPS_S[finer]
            cut_s = min(end_s, stop_s // step * step)
            if cut_s > start_s:
                parts.append(self._rows(finer, start_s, cut_s))
                start_s = cut_s
        return concat(parts)

    def _rows(self, level: int, start_s: int, end_s: int) -> Candles:
        """Whole rows of a level over [start_s, end_s), in ticks and lots; both ends on the level's step."""
        step = _STEPS_S[level]
        if level == 0:
            return self._days(start_s // DAY, end_s // DAY)
        above = _STEPS_S[level - 1]
        from_s = start_s // above * above
        parents = self._rows(level - 1, from_s, -(-end_s // above) * above)
        children = self._split(parents, step, above // step)
        return children[(start_s - from_s) // step : (end_s - from_s) // step]

    def _units(self, rows: Candles) -> Candles:
        o, h, low, c = (column / self._tick for column in (rows.open, rows.high, rows.low, rows.close))
        return Candles(rows.open_s, o, h, low, c, rows.volume / self._lot)

    # Days

    def _days(self, first: int, end: int) -> Candles:
        """Whole days [first, end); drawn in fixed chunks, which are kept."""
        parts = []
        for number in range(first // _CHUNK_DAYS, max(first, end - 1) // _CHUNK_DAYS + 1):
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = self._draw_days(number * _CHUNK_DAYS)
            origin = number * _CHUNK_DAYS
            parts.append(chunk[max(first - origin, 0) : max(min(end - origin, _CHUNK_DAYS), 0)])
        return concat(parts)

    def _draw_days(self, first: int) -> Candles:
        market = self.instrument
        days = np.arange(first, first + _CHUNK_DAYS + 1)
        price = market.price * np.exp(self._walk(days) - self._reference)
        ticks = np.maximum(np.rint(price * self._tick), _LEAST_TICKS).astype(np.int64)
        opens, closes, days = ticks[:-1], ticks[1:], days[:-1]
        top, bottom = np.maximum(opens, closes), np.minimum(opens, closes)
        wick = 0.4 * market.daily_volatility
        high = top + np.rint(top * wick * np.abs(self._normal("high", days))).astype(np.int64)
        low = bottom - np.rint(bottom * wick * np.abs(self._normal("low", days))).astype(np.int64)
        # Busy days are the ones that move.
        move = np.abs(closes - opens) / (opens * market.daily_volatility)
        lots = market.daily_turnover / price[:-1] * self._lot * np.exp(0.35 * self._normal("volume", days))
        volume = np.rint(np.maximum(lots * (0.6 + 0.5 * move), _LEAST_DAY_LOTS)).astype(np.int64)
        return Candles(days * DAY, opens, high, low, closes, volume)

    def _walk(self, days: Ints) -> NDArray[np.float64]:
        """Logarithmic price at midnight: the hats of every span of 2, 4, 8 ... days that hold the day, added up."""
        walk = np.zeros(len(days))
        for power in range(1, 17):
            span = 1 << power
            hat = 1.0 - np.abs(2.0 * (days % span) / span - 1.0)
            amplitude = self.instrument.daily_volatility * np.sqrt(min(span, _LONGEST_SWING_DAYS)) / 2
            walk += amplitude * hat * self._normal(f"walk{power}", days // span)
        return walk

    # Splitting

    def _split(self, parents: Candles, step_s: int, count: int) -> Candles:
        """Cut each parent into ``count`` children that fill it exactly."""
        starts = parents.open_s[:, None] + np.arange(count) * step_s
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

    # Trades

    def trades(self, first_id: int, limit: int, *, now_ns: int) -> Trades:
        """Up to ``limit`` trades from an id on, none after ``now_ns``; they add up to the 1s candles exactly."""
        now_s, now_ms = now_ns // 1_000_000_000, now_ns // 1_000_000
        start_s = self.instrument.listed_s + first_id // TRADES_A_SECOND
        end_s = min(start_s + limit // TRADES_A_SECOND + 2, now_s + 1)
        seconds = self._rows(3, start_s, end_s) if end_s > start_s else self._rows(0, 0, 0)
        ids = (seconds.open_s - self.instrument.listed_s)[:, None] * TRADES_A_SECOND + np.arange(TRADES_A_SECOND)
        random = self._hash("trade", ids)
        times = seconds.open_s[:, None] * 1000 + np.arange(TRADES_A_SECOND) * 250 + _bits(random, 0, 16) % 250
        up = seconds.close >= seconds.open
        inner = (np.where(up, seconds.low, seconds.high), np.where(up, seconds.high, seconds.low))
        price = np.stack((seconds.open, *inner, seconds.close), axis=1)
        amount = _share(seconds.volume, _bits(random, 16, 16) + 1, np.ones(len(seconds), np.int64))
        wanted = ((ids >= first_id) & (ids < first_id + limit) & (times <= now_ms)).ravel()
        maker = _bits(random, 40, 1).astype(np.bool_)
        return Trades(
            ids.ravel()[wanted],
            times.ravel()[wanted],
            (price.ravel() / self._tick)[wanted],
            (amount.ravel() / self._lot)[wanted],
            maker.ravel()[wanted],
        )

    def first_trade_at(self, time_ms: int, *, now_ns: int) -> int:
        """Id of the first trade at or after a time; one past the newest if there is none."""
        time_ms = min(max(time_ms, self.instrument.listed_s * 1000), now_ns // 1_000_000 + 1)
        first_id = max((time_ms // 1000 - self.instrument.listed_s) * TRADES_A_SECOND, 0)
        # The trades of the second that holds the time, seen from its end.
        second = self.trades(first_id, TRADES_A_SECOND, now_ns=(time_ms // 1000 + 1) * 1_000_000_000 - 1)
        return first_id + int(np.count_nonzero(second.time_ms < time_ms))

    # Random numbers

    def _normal(self, what: str, numbers: Ints) -> NDArray[np.float64]:
        """Bell-shaped, mean 0, deviation 1, bounded by 3.47."""
        return _bell(self._hash(what, numbers)) / 37_837.0

    def _hash(self, what: str, numbers: Ints) -> Hashes:
        """64 random bits for each number, by the splitmix64 finaliser; ``what`` keeps the uses apart."""
        salt = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), "big") ^ self._key
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _bits(hashes: Hashes, shift: int, count: int) -> Ints:
    return ((hashes >> np.uint64(shift)) & np.uint64((1 << count) - 1)).astype(np.int64)


def _bell(hashes: Hashes) -> Ints:
    """The sum of four 16-bit numbers less its mean: bell-shaped, deviation 37,837, at most 131,070 either way."""
    total: Ints = np.sum([_bits(hashes, shift, 16) for shift in (0, 16, 32, 48)], axis=0)
    return total - 131_070


def _square(hashes: Hashes, shift: int) -> Ints:
    """The square of 16 bits: mostly small, sometimes large."""
    number = _bits(hashes, shift, 16)
    squared: Ints = number * number
    return squared


def _bridge(steps: Ints, o: Ints, h: Ints, low: Ints, c: Ints) -> Ints:
    """The children's closes: a random walk tied to the parent's open and close, folded back into its range."""
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
    """Deal each row's whole out by weight in whole lots, ``least`` to each first; rows add up exactly."""
    running = np.cumsum(weights, axis=1)
    rest = (whole - least * weights.shape[1])[:, None]
    dealt = np.floor(rest * (running / running[:, -1:])).astype(np.int64)
    shares: Ints = np.diff(dealt, axis=1, prepend=0) + least[:, None]
    return shares
