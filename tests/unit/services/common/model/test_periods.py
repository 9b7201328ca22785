"""Periods and their grid: tables, properties, and the calendar of the standard library as the oracle."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import (
    MONTH_SECONDS,
    PERIODS,
    TRADES_PERIOD,
    WEEK_SECONDS,
    ceil_to_grid,
    check_span,
    count_periods,
    floor_to_grid,
    is_on_grid,
    next_open,
    open_times,
    split_by_periods,
)
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS, parse_time

DAY = 86_400
LONG = {DAY: "1d", WEEK_SECONDS: "1w", MONTH_SECONDS: "1M"}
long_periods = st.sampled_from(sorted(LONG))
days = st.dates(date(1970, 1, 5), date(2262, 3, 1))
"""From the first Monday to the last month that nanoseconds hold whole."""


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("moment", "period", "floor", "after"),
    [
        ("2024-02-29T13:45:10", 60, "2024-02-29T13:45:00", "2024-02-29T13:46:00"),
        ("2024-02-29T13:45:10", 14_400, "2024-02-29T12:00:00", "2024-02-29T16:00:00"),
        ("2024-02-29T13:45:10", 604_800, "2024-02-26T00:00:00", "2024-03-04T00:00:00"),
        ("2024-02-29T13:45:10", 2_592_000, "2024-02-01T00:00:00", "2024-03-01T00:00:00"),
        ("2023-12-31T23:59:59", 2_592_000, "2023-12-01T00:00:00", "2024-01-01T00:00:00"),
        ("1970-01-02T00:00:00", 60, "1970-01-02T00:00:00", "1970-01-02T00:01:00"),
    ],
)
def test_grid(moment: str, period: int, floor: str, after: str) -> None:
    assert floor_to_grid(ns(moment), period) == ns(floor)
    assert next_open(ns(floor), period) == ns(after)
    assert next_open(ns(after), period, -1) == ns(floor)


@given(st.integers(0, 4_000_000_000), st.sampled_from(sorted(PERIODS)), st.integers(0, 400))
def test_grid_is_consistent(second: int, period: int, count: int) -> None:
    floor = floor_to_grid(second * SECOND_NS, period)
    assert floor <= second * SECOND_NS < next_open(floor, period)
    end = next_open(floor, period, count)
    if floor >= 0:
        span = TimeRange(floor, end)
        assert count_periods(span, period) == count == len(open_times(span, period))
        parts = split_by_periods(span, period, 7)
        assert merge(parts) == ([span] if count else [])
        assert sum(count_periods(p, period) for p in parts) == count


@pytest.mark.parametrize(
    ("start", "end", "period", "field"),
    [
        (60, 60, 60, "end_ns 60000000000 is not after"),
        (120, 60, 60, "end_ns 60000000000 is not after"),
        (1, 60, 60, "start_ns 1000000000 is not on the 1m grid"),
        (0, 61, 60, "end_ns 61000000000 is not on the 1m grid"),
        (0, 60, 61, "period_seconds 61"),
        (0, 2**64 // SECOND_NS, 60, "end_ns"),
        (0, 2**63 // SECOND_NS + 60, 60, r"end_ns \d+ is outside \[0, 9223372036854775807\] nanoseconds"),
        (0, 11 * 86_400, WEEK_SECONDS, "start_ns 0 is not on the 1w grid; the first open is 345600000000000"),
        (86_400, 31 * 86_400, MONTH_SECONDS, "start_ns .* is not on the 1M grid; the open before it is 0"),
    ],
)
def test_bad_span_names_field_and_value(start: int, end: int, period: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        check_span(start * SECOND_NS, end * SECOND_NS, period)


def midnight_ns(day: date) -> int:
    return calendar.timegm(day.timetuple()) * SECOND_NS


def opened(day: date, period_seconds: int) -> date:
    """Return the first day of the candle that contains a day."""
    if period_seconds == WEEK_SECONDS:
        year, week, _ = day.isocalendar()
        return date.fromisocalendar(year, week, 1)
    return day.replace(day=1) if period_seconds == MONTH_SECONDS else day


def following(day: date, period_seconds: int) -> date:
    """Return the first day of the candle after the one that opens on a day."""
    length = {DAY: 1, WEEK_SECONDS: 7, MONTH_SECONDS: calendar.monthrange(day.year, day.month)[1]}[period_seconds]
    return day + timedelta(days=length)


@given(days, st.integers(0, DAY * SECOND_NS - 1), long_periods)
def test_every_time_is_in_the_candle_of_its_calendar_day(day: date, inside_ns: int, period: int) -> None:
    moment_ns, first = midnight_ns(day) + inside_ns, opened(day, period)
    open_ns, close_ns = midnight_ns(first), midnight_ns(following(first, period))
    assert floor_to_grid(moment_ns, period) == open_ns
    assert next_open(open_ns, period) == close_ns
    assert next_open(close_ns, period, -1) == open_ns
    assert ceil_to_grid(moment_ns, period) == (open_ns if moment_ns == open_ns else close_ns)
    assert is_on_grid(moment_ns, period) == (moment_ns == open_ns)


@given(days, long_periods, st.integers(0, 120), st.integers(1, 40))
def test_calendar_has_the_same_candles(day: date, period: int, count: int, limit: int) -> None:
    walk = [opened(day, period)]
    while len(walk) <= count and walk[-1].year < 2262:
        walk.append(following(walk[-1], period))
    *inside, end = [midnight_ns(each) for each in walk]
    span = TimeRange(midnight_ns(walk[0]), end)
    assert open_times(span, period) == inside
    assert count_periods(span, period) == len(inside)
    assert next_open(span.start_ns, period, len(inside)) == end
    assert [t for part in split_by_periods(span, period, limit) for t in open_times(part, period)] == inside


@pytest.mark.parametrize(
    ("month", "candles"),
    [("2024-02", 29), ("2023-02", 28), ("2000-02", 29), ("2100-02", 28), ("2024-03", 31), ("2024-10", 31)],
)
def test_days_of_a_month(month: str, candles: int) -> None:
    """All three rules of leap years, and the months in which summer time begins and ends."""
    start_ns = parse_time(f"{month}-01")
    span = check_span(start_ns, next_open(start_ns, MONTH_SECONDS), DAY)
    assert count_periods(span, DAY) == candles
    assert count_periods(span, 3_600) == candles * 24, "no day has 23 or 25 hours"


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        ("2024-03-31T01:59:59+01:00", "2024-03-31T00:59:59"),  # Berlin, the second before summer time
        ("2024-03-31T03:00:00+02:00", "2024-03-31T01:00:00"),  # and the first of it
        ("2024-10-27T02:30:00+02:00", "2024-10-27T00:30:00"),  # an hour that is there twice
        ("2024-10-27T02:30:00+01:00", "2024-10-27T01:30:00"),
        ("2024-04-07T01:45:00+10:30", "2024-04-06T15:15:00"),  # Lord Howe, half an hour of summer time
        ("2024-02-29T23:30:00-05:00", "2024-03-01T04:30:00"),
    ],
)
def test_local_times_around_changes_of_summer_time(local: str, utc: str) -> None:
    assert parse_time(local) == midnight_ns(date.fromisoformat(utc[:10])) + seconds_of_day(utc) * SECOND_NS


def seconds_of_day(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return moment.hour * 3_600 + moment.minute * 60 + moment.second


@pytest.fixture(params=["UTC0", "EST5EDT,M3.2.0,M11.1.0", "LHST-10:30LHDT-11,M10.1.0,M4.1.0/2"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time zone with summer time; its rules are in the text, so no zone files are needed."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("machine_zone")
def test_zone_of_the_machine_has_no_effect() -> None:
    for text in ("2024-03-10", "2024-03-11", "2024-04-07", "2024-10-06", "2024-11-03", "2024-02-29"):
        day = date.fromisoformat(text)
        assert parse_time(text) == midnight_ns(day)
        for period in LONG:
            open_ns = midnight_ns(opened(day, period))
            assert floor_to_grid(midnight_ns(day) + 2 * 3_600 * SECOND_NS, period) == open_ns
            assert next_open(open_ns, period) == midnight_ns(following(opened(day, period), period))


@pytest.mark.parametrize("period", [60, 3_600, *LONG])
def test_grid_is_valid_up_to_the_last_nanosecond(period: int) -> None:
    last_ns = floor_to_grid(MAX_TIME_NS, period)
    assert datetime.fromtimestamp(last_ns // SECOND_NS, UTC).year == 2262
    assert check_span(next_open(last_ns, period, -3), last_ns, period).end_ns == last_ns
    assert not is_on_grid(MAX_TIME_NS, period)


def test_a_large_window_of_months_does_not_reach_beyond_the_calendar() -> None:
    start_ns = parse_time("2024-02-01")
    for end_ns in (parse_time("2024-05-01"), parse_time("2262-04-01")):
        span = TimeRange(start_ns, end_ns)
        assert split_by_periods(span, MONTH_SECONDS, 500_000) == [span]


def test_every_time_is_on_the_grid_of_trades_which_have_no_periods() -> None:
    assert floor_to_grid(7, TRADES_PERIOD) == ceil_to_grid(7, TRADES_PERIOD) == 7
    assert is_on_grid(7, TRADES_PERIOD) and count_periods(TimeRange(7, 99), TRADES_PERIOD) == 0
    with pytest.raises(InvalidRequest, match="period_seconds 0"):
        check_span(0, 7, TRADES_PERIOD)
