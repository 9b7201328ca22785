"""Bars of candle charts: candles, or where these are too many, whole periods of candles. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dexorder.rows.table import Rows, times_ns
from dexorder_common.model.periods import MONDAY_NS, MONTH_SECONDS, PERIODS, WEEK_SECONDS
from dexorder_common.model.times import DAY_NS, SECOND_NS, to_datetime

_NAMES: dict[int, str] = {5: "5s", 15: "15s", 30: "30s", **PERIODS}
_MULTIPLES = (2, 3, 6, 12, 24, 60, 120, 240)
"""How many months, or weeks of weekly candles, a bar has when shorter periods are too many."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One column of the chart: a candle, or the candles of a longer period combined."""

    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float

    @property
    def rises(self) -> bool:
        """Whether the price did not fall."""
        return self.close >= self.open


@dataclass(frozen=True, slots=True)
class Level:
    """One length of a chart's bars.

    Attributes:
        name: Its period, ``4h`` for example.
        seconds: Length of the period; 30 days for each month.
        starts: Index of the first candle of each bar, ascending.
        opens_ns: Open time of each bar, on the grid of the period.
    """

    name: str
    seconds: int
    starts: Sequence[int]
    opens_ns: Sequence[int]


def levels(times_ns: Sequence[int], period_seconds: int) -> Iterator[Level]:
    """Yield the candles themselves, and then longer and longer periods that consist of whole candles.

    Days open at midnight, weeks on Monday, months on the 1st, in UTC.

    Args:
        times_ns: Open times of the candles, ascending; at least one.
    """
    yield Level(_NAMES[period_seconds], period_seconds, range(len(times_ns)), times_ns)
    is_within_a_day = DAY_NS % (period_seconds * SECOND_NS) == 0
    for seconds in sorted(_NAMES):
        if period_seconds < seconds < MONTH_SECONDS and seconds % period_seconds == 0:
            yield _fixed(_NAMES[seconds], seconds, times_ns)
    if period_seconds == WEEK_SECONDS:
        yield from (_fixed(f"{n}w", n * WEEK_SECONDS, times_ns) for n in _MULTIPLES)
    elif is_within_a_day or period_seconds == MONTH_SECONDS:
        counts = (1, *_MULTIPLES) if is_within_a_day else _MULTIPLES
        yield from (_monthly(n, times_ns) for n in counts)
    yield Level("all candles", _MULTIPLES[-1] * MONTH_SECONDS, [0], [times_ns[0]])


def fitting(times_ns: Sequence[int], period_seconds: int, limit: int) -> Level:
    """Return the first level with at most ``limit`` bars; one bar always fits."""
    return next(each for each in levels(times_ns, period_seconds) if len(each.starts) <= max(limit, 1))


def candles(rows: Rows) -> list[Bar]:
    """Return each candle of a table as a bar."""
    columns = (rows[name].to_pylist() for name in ("open", "high", "low", "close", "volume"))
    return [Bar(*each) for each in zip(times_ns(rows, "open_time"), *columns, strict=True)]


def combine(single: Sequence[Bar], level: Level) -> list[Bar]:
    """Return the bars of a level: first open, highest high, lowest low, last close, and the sum of the volumes."""
    found = []
    for open_ns, start, end in zip(level.opens_ns, level.starts, [*level.starts[1:], len(single)], strict=True):
        part = single[start:end]
        high, low = max(each.high for each in part), min(each.low for each in part)
        volume = math.fsum(each.volume for each in part)
        found.append(Bar(open_ns, part[0].open, high, low, part[-1].close, volume))
    return found


def bars(rows: Rows, limit: int) -> list[Bar]:
    """Return at most ``limit`` bars for the candles of one series in time order; at least one candle."""
    single = candles(rows)
    return combine(single, fitting([each.open_ns for each in single], rows["period_seconds"][0].as_py(), limit))


def marked(opens_ns: Sequence[int], marks_ns: Sequence[int]) -> list[int]:
    """Return the indices of the candles or bars in which a time falls, ascending; the end of a candle belongs to it."""
    return sorted({max(0, bisect_left(opens_ns, time_ns) - 1) for time_ns in marks_ns})


def _fixed(name: str, seconds: int, times: Sequence[int]) -> Level:
    step_ns = seconds * SECOND_NS
    origin_ns = MONDAY_NS if seconds % WEEK_SECONDS == 0 else 0
    keys = [(each - origin_ns) // step_ns for each in times]
    starts = _starts(keys)
    return Level(name, seconds, starts, [keys[n] * step_ns + origin_ns for n in starts])


def _monthly(count: int, times: Sequence[int]) -> Level:
    days = [to_datetime(each) for each in times]
    keys = [(day.year * 12 + day.month - 1) // count for day in days]
    starts = _starts(keys)
    firsts = [datetime(keys[n] * count // 12, keys[n] * count % 12 + 1, 1, tzinfo=UTC) for n in starts]
    return Level(f"{count}M", count * MONTH_SECONDS, starts, [int(each.timestamp()) * SECOND_NS for each in firsts])


def _starts(keys: Sequence[int]) -> list[int]:
    """Return the indices at which a key differs from the one before."""
    return [n for n, key in enumerate(keys) if n == 0 or key != keys[n - 1]]
