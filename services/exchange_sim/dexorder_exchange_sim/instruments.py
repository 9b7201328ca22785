"""Markets of the simulated exchange, and the funding of its perpetual futures. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dexorder_exchange_sim.periods import HOUR


@dataclass(frozen=True, slots=True)
class SimInstrument:
    """One spot market.

    Attributes:
        price_decimals: Decimals of the tick size; None for recorded data, with values that are printed unchanged.
        lot_decimals: Decimals of the lot size; None for recorded data.
        active: False lists the market as halted (``BREAK``); its history stays readable.
        listed_s: First second with data, midnight UTC.
        delisted_s: First second after the data, midnight UTC; None for a market that continues.
        outage_s: First second of a gap in the data and the first one after it, both midnight UTC.
        busy_minutes: Minutes of each hour that have trades, and therefore a candle.
        busy_seconds: Seconds of each such minute that have trades.
        price: Price on the reference day (see `market`).
        daily_volatility: Standard deviation of a day's logarithmic return.
        daily_turnover: Typical quote units traded per day.
    """

    base: str
    quote: str
    price_decimals: int | None = None
    lot_decimals: int | None = None
    active: bool = True
    listed_s: int = 0
    price: float = 1.0
    daily_volatility: float = 0.03
    daily_turnover: float = 1e8
    delisted_s: int | None = None
    outage_s: tuple[int, int] | None = None
    busy_minutes: int = 60
    busy_seconds: int = 60

    @property
    def id(self) -> str:
        """Return the exchange's id of the market, ``BTCUSDT``."""
        return self.base + self.quote

    @property
    def symbol(self) -> str:
        """Return the unified symbol, ``BTC/USDT``."""
        return f"{self.base}/{self.quote}"

    def is_active(self, now_s: int) -> bool:
        """Return whether it is traded at a time, seconds since the epoch."""
        return self.active and (self.delisted_s is None or now_s < self.delisted_s)


def _day(text: str) -> int:
    return int(dt.datetime.fromisoformat(f"{text}T00:00:00+00:00").timestamp())


_COLUMNS = (
    # base, quote, price decimals, lot decimals, listed, price, daily volatility, daily turnover
    ("BTC", "USDT", 2, 5, "2017-08-17", 44_000, 0.030, 1.5e9),
    ("ETH", "USDT", 2, 4, "2017-08-17", 2_300, 0.038, 9e8),
    ("BNB", "USDT", 2, 4, "2017-11-06", 310, 0.038, 2e8),
    ("SOL", "USDT", 2, 4, "2020-08-11", 105, 0.050, 5e8),
    ("XRP", "USDT", 4, 1, "2018-05-04", 0.62, 0.042, 3e8),
    ("ADA", "USDT", 4, 1, "2018-04-17", 0.59, 0.045, 1e8),
    ("DOGE", "USDT", 5, 0, "2019-07-05", 0.09, 0.050, 2e8),
    ("LTC", "USDT", 2, 4, "2017-12-13", 73, 0.038, 1e8),
    ("LINK", "USDT", 3, 3, "2019-01-16", 15, 0.045, 1e8),
    ("DOT", "USDT", 3, 3, "2020-08-18", 8.3, 0.045, 8e7),
    ("AVAX", "USDT", 3, 3, "2020-09-22", 39, 0.050, 1e8),
    ("SHIB", "USDT", 8, 0, "2021-05-10", 1.03e-5, 0.055, 1e8),
    ("TRX", "USDT", 5, 1, "2018-06-11", 0.107, 0.035, 6e7),
    ("BTC", "USD", 2, 5, "2017-08-17", 44_000, 0.030, 1e8),
    ("ETH", "USD", 2, 4, "2017-08-17", 2_300, 0.038, 6e7),
    ("BTC", "EUR", 2, 5, "2020-01-03", 40_000, 0.030, 8e7),
    ("ETH", "BTC", 6, 4, "2017-07-14", 0.052, 0.025, 1e3),
    ("SOL", "BTC", 7, 3, "2020-08-11", 0.0024, 0.035, 2e2),
    ("BTC", "USDC", 2, 5, "2018-12-15", 44_000, 0.030, 3e8),
    ("USDC", "USDT", 4, 2, "2018-12-15", 1.0, 0.0006, 3e8),
    ("EUR", "USDT", 4, 2, "2020-01-03", 1.1, 0.005, 2e7),
)
_ODD = (
    # halted
    SimInstrument("LUNA", "USDT", 4, 2, False, _day("2020-08-21"), 20, 0.05, 1e8),
    # quiet: 18 minutes of each hour without a trade
    SimInstrument("XMR", "USD", 2, 5, True, _day("2019-01-01"), 160, 0.04, 2e6, busy_minutes=42, busy_seconds=3),
    # down for three days
    SimInstrument(
        *("ZEC", "USD", 2, 5, True, _day("2019-01-01"), 28, 0.05, 2e6),
        outage_s=(_day("2022-03-10"), _day("2022-03-13")),
    ),
    # delisted
    SimInstrument("OMG", "USD", 4, 3, True, _day("2019-01-01"), 0.7, 0.05, 2e6, delisted_s=_day("2023-06-15")),
    # names: a coin that some exchanges rename, and one with a dot
    SimInstrument("DOGE", "USD", 5, 0, True, _day("2019-07-05"), 0.09, 0.05, 2e7, busy_seconds=10),
    SimInstrument("ETH2.S", "ETH", 5, 5, True, _day("2021-01-01"), 0.98, 0.004, 1e3, busy_minutes=12, busy_seconds=1),
)

INSTRUMENTS = (
    *(
        SimInstrument(base, quote, ticks, lots, True, _day(listed), price, volatility, turnover)
        for base, quote, ticks, lots, listed, price, volatility, turnover in _COLUMNS
    ),
    *_ODD,
)
"""Synthetic markets; recorded files replace or extend them (see `venue`)."""


def extra_instruments(count: int, *, busy_seconds: int = 60) -> list[SimInstrument]:
    """Return more markets, ``X0001/USDT`` and so on, for tests of many subscriptions.

    Args:
        busy_seconds: Seconds of each minute that have trades.
    """
    listed_s = _day("2020-01-01")
    return [
        SimInstrument(f"X{number:04}", "USDT", 4, 2, True, listed_s, 10, 0.04, 1e7, busy_seconds=busy_seconds)
        for number in range(1, count + 1)
    ]


@dataclass(frozen=True, slots=True)
class Funding:
    """Funding of one market.

    Attributes:
        changes: From which second on, and every how many hours it is paid; ascending.
    """

    market: str
    changes: Sequence[tuple[int, int]]

    def times_s(self, start_s: int, end_s: int) -> list[int]:
        """Return the times in [start, end), ascending."""
        found: list[int] = []
        ends_s = [*(since_s for since_s, _ in self.changes[1:]), end_s]
        for (since_s, hours), until_s in zip(self.changes, ends_s, strict=True):
            step_s = hours * HOUR
            first = max(0, -(-(start_s - since_s) // step_s))
            found += range(since_s + first * step_s, min(until_s, end_s), step_s)
        return found

    def next_s(self, now_s: int) -> int:
        """Return the next time after now."""
        place = max(0, bisect_right(self.changes, now_s, key=lambda change: change[0]) - 1)
        return self.times_s(now_s + 1, now_s + 2 + 2 * self.changes[place][1] * HOUR)[0]

    def rate(self, time_s: int) -> str:
        """Return the rate of a time, as exchanges print it."""
        return f"{self._number(time_s) % 20_001 / 1e7 - 1e-3:.8f}"

    def mark_price(self, time_s: int) -> str:
        """Return the mark price of a time."""
        return f"{30_000 + self._number(time_s) % 1_000_000 / 100:.8f}"

    def _number(self, time_s: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self.market}/{time_s}".encode(), digest_size=8).digest(), "big")
