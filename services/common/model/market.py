"""Tickers, candle periods and half-open ranges of time. Pure."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from services.common.model.errors import InvalidRequest

SECOND_NS = 1_000_000_000
MAX_TIME_NS = 2**63 - 1
"""Times are signed 64-bit nanoseconds in Arrow and Iceberg, so the uint64 of the protos is bounded by this."""

WEEK_SECONDS = 604_800
MONTH_SECONDS = 2_592_000
_MONDAY_NS = 4 * 86_400 * SECOND_NS  # 1970-01-05, the first Monday after the epoch

PERIODS: dict[int, str] = {
    1: "1s",
    60: "1m",
    180: "3m",
    300: "5m",
    900: "15m",
    1_800: "30m",
    3_600: "1h",
    7_200: "2h",
    14_400: "4h",
    21_600: "6h",
    28_800: "8h",
    43_200: "12h",
    86_400: "1d",
    WEEK_SECONDS: "1w",
    MONTH_SECONDS: "1M",
}
"""Every period the suite knows, in seconds, and its name (also ccxt's timeframe).

Three days are not among them: exchanges count them from different days, so there is no one grid.
"""
PERIOD_SECONDS = {name: seconds for seconds, name in PERIODS.items()}


@dataclass(frozen=True, slots=True)
class Ticker:
    """A market: ccxt's unified symbol and the venue, written ``BTC/USDT.BINANCE``.

    A symbol is text that only ccxt gives a meaning to: ``BTC/USDT:USDT`` (swap), ``BTC/USD:BTC`` (inverse swap),
    ``BTC/USDT:USDT-251226`` (dated future), ``BTC/USDT:USDT-251226-50000-C`` (option), ``ETH2.S/ETH``. Case matters.
    """

    symbol: str
    venue: str

    @staticmethod
    def parse(text: str) -> Ticker:
        """Split at the last dot, since symbols may hold dots.

        Raises:
            InvalidRequest: No dot, an empty side, a venue that is not ASCII, a character that can't be printed (an end
                of line, half a surrogate pair), or blanks around it.
        """
        symbol, dot, venue = text.rpartition(".")
        if not dot or not symbol or not venue or not venue.isascii() or not text.isprintable() or text != text.strip():
            raise InvalidRequest(f"ticker {text!r} is not SYMBOL.VENUE, for example BTC/USDT.BINANCE")
        return Ticker(symbol, venue)

    def __str__(self) -> str:
        return f"{self.symbol}.{self.venue}"


@dataclass(frozen=True, slots=True, order=True)
class TimeRange:
    """Half open, ``[start_ns, end_ns)``, nanoseconds since the epoch; never reversed, may be empty."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.start_ns <= self.end_ns <= MAX_TIME_NS:
            raise InvalidRequest(f"range [{self.start_ns}, {self.end_ns}) is reversed or outside [0, {MAX_TIME_NS}]")

    def __bool__(self) -> bool:
        return self.start_ns < self.end_ns

    def intersect(self, other: TimeRange) -> TimeRange | None:
        """The common part; None when there is none."""
        start, end = max(self.start_ns, other.start_ns), min(self.end_ns, other.end_ns)
        return TimeRange(start, end) if start < end else None

    def overlaps(self, other: TimeRange) -> bool:
        """Whether there is a common part."""
        return max(self.start_ns, other.start_ns) < min(self.end_ns, other.end_ns)

    def contains(self, other: TimeRange) -> bool:
        """Whether ``other`` lies wholly inside."""
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns

    def __str__(self) -> str:
        return f"[{iso(self.start_ns)}, {iso(self.end_ns)})"


def iso(time_ns: int) -> str:
    """UTC text of a time, as short as it is exact to the second."""
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- periods -------------------------------------------------------------------------------------------------------


def check_period(period_seconds: int) -> None:
    """Refuse a period the table does not hold."""
    if period_seconds not in PERIODS:
        raise InvalidRequest(f"period_seconds {period_seconds} is none of {sorted(PERIODS)}")


def floor_to_grid(time_ns: int, period_seconds: int) -> int:
    """The open time of the candle that holds ``time_ns``; weeks open on Monday, months on the first, in UTC."""
    if period_seconds == MONTH_SECONDS:
        day = datetime.fromtimestamp(time_ns // SECOND_NS, UTC)
        return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()) * SECOND_NS
    step_ns = period_seconds * SECOND_NS
    origin_ns = _MONDAY_NS if period_seconds == WEEK_SECONDS else 0
    return (time_ns - origin_ns) // step_ns * step_ns + origin_ns


def ceil_to_grid(time_ns: int, period_seconds: int) -> int:
    """The first open time at or after ``time_ns``."""
    floor_ns = floor_to_grid(time_ns, period_seconds)
    return floor_ns if floor_ns == time_ns else next_open(floor_ns, period_seconds)


def is_on_grid(time_ns: int, period_seconds: int) -> bool:
    """Whether a candle of the period opens at ``time_ns``."""
    return floor_to_grid(time_ns, period_seconds) == time_ns


def next_open(open_ns: int, period_seconds: int, count: int = 1) -> int:
    """The open time ``count`` periods after an open time on the grid (``count`` may be negative)."""
    if period_seconds != MONTH_SECONDS:
        return open_ns + count * period_seconds * SECOND_NS
    day = datetime.fromtimestamp(open_ns // SECOND_NS, UTC)
    months = day.year * 12 + day.month - 1 + count
    return int(datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS


def count_periods(span: TimeRange, period_seconds: int) -> int:
    """Candles that open inside ``span``, whose ends are on the grid."""
    if period_seconds != MONTH_SECONDS:
        return (span.end_ns - span.start_ns) // (period_seconds * SECOND_NS)
    start, end = (datetime.fromtimestamp(t // SECOND_NS, UTC) for t in (span.start_ns, span.end_ns))
    return (end.year - start.year) * 12 + end.month - start.month


def open_times(span: TimeRange, period_seconds: int) -> list[int]:
    """Every open time inside ``span``, whose start is on the grid, ascending."""
    if period_seconds != MONTH_SECONDS:
        return list(range(span.start_ns, span.end_ns, period_seconds * SECOND_NS))
    times, open_ns = [], span.start_ns
    while open_ns < span.end_ns:
        times.append(open_ns)
        open_ns = next_open(open_ns, period_seconds)
    return times


def split_by_periods(span: TimeRange, period_seconds: int, most: int) -> list[TimeRange]:
    """Adjacent ranges of at most ``most`` periods that cover ``span``; none for an empty one."""
    parts, start_ns = [], span.start_ns
    while start_ns < span.end_ns:
        end_ns = min(next_open(start_ns, period_seconds, most), span.end_ns)
        parts.append(TimeRange(start_ns, end_ns))
        start_ns = end_ns
    return parts


def check_span(start_ns: int, end_ns: int, period_seconds: int) -> TimeRange:
    """A request's range, checked field by field.

    Raises:
        InvalidRequest: Unknown period, overflow, reversed, empty, or an end off the period's grid.
    """
    check_period(period_seconds)
    for field, value in (("start_time", start_ns), ("end_time", end_ns)):
        if not 0 <= value <= MAX_TIME_NS:
            raise InvalidRequest(f"{field} {value} is outside [0, {MAX_TIME_NS}] nanoseconds")
    if end_ns <= start_ns:
        raise InvalidRequest(f"end_time {end_ns} is not after start_time {start_ns}")
    for field, value in (("start_time", start_ns), ("end_time", end_ns)):
        if not is_on_grid(value, period_seconds):
            before_ns = floor_to_grid(value, period_seconds)
            near = (
                f"open before it is {before_ns}" if before_ns >= 0 else f"first open is {_first_open(period_seconds)}"
            )
            raise InvalidRequest(f"{field} {value} is not on the {PERIODS[period_seconds]} grid; the {near}")
    return TimeRange(start_ns, end_ns)


def _first_open(period_seconds: int) -> int:
    return ceil_to_grid(0, period_seconds)


def parse_time(text: str) -> int:
    """Nanoseconds since the epoch of an ISO date or time; without a zone it is UTC.

    Raises:
        InvalidRequest: Not ISO 8601.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"time {text!r} is not ISO 8601, for example 2024-01-31 or 2024-01-31T12:00:00Z") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    whole = moment.astimezone(UTC)
    seconds = calendar.timegm(whole.timetuple())
    return seconds * SECOND_NS + timedelta(microseconds=whole.microsecond) // timedelta(microseconds=1) * 1_000


# ---- sets of ranges ------------------------------------------------------------------------------------------------


def merge(ranges: Iterable[TimeRange]) -> list[TimeRange]:
    """The same points as sorted ranges that neither overlap nor touch."""
    merged: list[TimeRange] = []
    for part in sorted(r for r in ranges if r):
        if merged and part.start_ns <= merged[-1].end_ns:
            merged[-1] = TimeRange(merged[-1].start_ns, max(merged[-1].end_ns, part.end_ns))
        else:
            merged.append(part)
    return merged


def subtract(ranges: Iterable[TimeRange], taken: Iterable[TimeRange]) -> list[TimeRange]:
    """The points of ``ranges`` that no range of ``taken`` holds, merged."""
    return list(_subtract(merge(ranges), merge(taken)))


def _subtract(left: list[TimeRange], right: list[TimeRange]) -> Iterator[TimeRange]:
    first = 0
    for part in left:
        start_ns = part.start_ns
        while first < len(right) and right[first].end_ns <= start_ns:
            first += 1
        for hole in right[first:]:
            if hole.start_ns >= part.end_ns:
                break
            if hole.start_ns > start_ns:
                yield TimeRange(start_ns, hole.start_ns)
            start_ns = max(start_ns, hole.end_ns)
        if start_ns < part.end_ns:
            yield TimeRange(start_ns, part.end_ns)


def intersect(ranges: Iterable[TimeRange], span: TimeRange) -> list[TimeRange]:
    """The points of ``ranges`` inside ``span``, merged."""
    return merge(part for r in ranges if (part := r.intersect(span)))


def total_periods(ranges: Iterable[TimeRange], period_seconds: int) -> int:
    """Periods in all of ``ranges``."""
    return sum(count_periods(r, period_seconds) for r in merge(ranges))
