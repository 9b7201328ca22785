"""Candle periods: the period table, the grid of open times, counting and splitting by periods. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import DAY_NS, MAX_TIME_NS, SECOND_NS

TRADES_PERIOD = 0
"""Stands for trades wherever a series has a period: every time is on its grid, and no span has a number of periods."""
WEEK_SECONDS = 604_800
MONTH_SECONDS = 2_592_000
MONDAY_NS = 4 * DAY_NS
"""1970-01-05, the first Monday after the epoch: weeks are counted from it."""

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
"""Supported periods in seconds, with their names (also ccxt's timeframes).

Three days are not supported: exchanges count them from different days, so they lack a common grid.
"""
PERIOD_SECONDS = {name: seconds for seconds, name in PERIODS.items()}


FIELDS = "start_ns", "end_ns"
GIVEN_FIELDS = "start_time", "end_time"
"""Names of the ends of a range: in our messages, and in messages of the given protocol."""


def check_period(period_seconds: int) -> None:
    """Raise InvalidRequest if the period is not in the period table."""
    if period_seconds not in PERIODS:
        raise InvalidRequest(f"period_seconds {period_seconds} is not one of {sorted(PERIODS)}")


def check_span(start_ns: int, end_ns: int, period_seconds: int, fields: tuple[str, str] = FIELDS) -> TimeRange:
    """Return a range; InvalidRequest names the field that is invalid, or off the period's grid."""
    check_period(period_seconds)
    span = check_times(start_ns, end_ns, fields)
    for field, value in zip(fields, (start_ns, end_ns), strict=True):
        if not is_on_grid(value, period_seconds):
            open_ns = floor_to_grid(value, period_seconds)
            near = (
                f"open before it is {open_ns}" if open_ns >= 0 else f"first open is {ceil_to_grid(0, period_seconds)}"
            )
            raise InvalidRequest(f"{field} {value} is not on the {PERIODS[period_seconds]} grid; the {near}")
    return span


def check_times(start_ns: int, end_ns: int, fields: tuple[str, str] = FIELDS) -> TimeRange:
    """Return a range without a grid; InvalidRequest names the field that is invalid."""
    for field, value in zip(fields, (start_ns, end_ns), strict=True):
        if not 0 <= value <= MAX_TIME_NS:
            raise InvalidRequest(f"{field} {value} is outside [0, {MAX_TIME_NS}] nanoseconds")
    if end_ns <= start_ns:
        raise InvalidRequest(f"{fields[1]} {end_ns} is not after {fields[0]} {start_ns}")
    return TimeRange(start_ns, end_ns)


def floor_to_grid(time_ns: int, period_seconds: int) -> int:
    """Return the open time of the candle that contains ``time_ns``; weeks open on Monday, months on the 1st, in UTC."""
    if period_seconds == MONTH_SECONDS:
        day = datetime.fromtimestamp(time_ns // SECOND_NS, UTC)
        return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()) * SECOND_NS
    if period_seconds == TRADES_PERIOD:
        return time_ns
    step_ns = period_seconds * SECOND_NS
    origin_ns = MONDAY_NS if period_seconds == WEEK_SECONDS else 0
    return (time_ns - origin_ns) // step_ns * step_ns + origin_ns


def ceil_to_grid(time_ns: int, period_seconds: int) -> int:
    """Return the first open time at or after ``time_ns``."""
    floor_ns = floor_to_grid(time_ns, period_seconds)
    return floor_ns if floor_ns == time_ns else next_open(floor_ns, period_seconds)


def is_on_grid(time_ns: int, period_seconds: int) -> bool:
    """Return whether a candle of the period opens at ``time_ns``."""
    return floor_to_grid(time_ns, period_seconds) == time_ns


def next_open(open_ns: int, period_seconds: int, count: int = 1) -> int:
    """Return the open time ``count`` periods after an open time; ``count`` may be negative."""
    if period_seconds != MONTH_SECONDS:
        return open_ns + count * period_seconds * SECOND_NS
    day = datetime.fromtimestamp(open_ns // SECOND_NS, UTC)
    months = day.year * 12 + day.month - 1 + count
    return int(datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS


def count_periods(span: TimeRange, period_seconds: int) -> int:
    """Return the number of candles that open inside ``span``, which must be on the grid; 0 for trades."""
    if period_seconds == TRADES_PERIOD:
        return 0
    if period_seconds != MONTH_SECONDS:
        return (span.end_ns - span.start_ns) // (period_seconds * SECOND_NS)
    start, end = (datetime.fromtimestamp(t // SECOND_NS, UTC) for t in (span.start_ns, span.end_ns))
    return (end.year - start.year) * 12 + end.month - start.month


def total_periods(ranges: Iterable[TimeRange], period_seconds: int) -> int:
    """Return the number of candles that open inside any of ``ranges``."""
    return sum(count_periods(r, period_seconds) for r in merge(ranges))


def open_times(span: TimeRange, period_seconds: int) -> list[int]:
    """Return every open time inside ``span``, ascending; its start must be on the grid."""
    if period_seconds != MONTH_SECONDS:
        return list(range(span.start_ns, span.end_ns, period_seconds * SECOND_NS))
    return [each.start_ns for each in split_by_periods(span, period_seconds, 1)]


def split_by_periods(span: TimeRange, period_seconds: int, max_periods: int) -> list[TimeRange]:
    """Return adjacent ranges of at most ``max_periods`` periods that cover ``span``; none for an empty one.

    Without periods that is the whole span.
    """
    if not period_seconds:
        return [span] if span else []
    parts, start_ns = [], span.start_ns
    while start_ns < span.end_ns:
        left = count_periods(TimeRange(start_ns, span.end_ns), period_seconds) + 1  # a calendar ends with the year 9999
        end_ns = min(next_open(start_ns, period_seconds, min(max_periods, left)), span.end_ns)
        parts.append(TimeRange(start_ns, end_ns))
        start_ns = end_ns
    return parts
