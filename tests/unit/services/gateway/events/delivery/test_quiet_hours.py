"""Quiet hours by the user's own clock, also where it is set forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dexorder_gateway.events.delivery.channel_policy import quiet_until
from dexorder_gateway.events.model import QuietHours

SECOND, DAY_MINUTES = 1_000_000_000, 1440
MINUTE, DAY = 60 * SECOND, DAY_MINUTES * 60 * SECOND
BERLIN, NEW_YORK, LORD_HOWE, SANTIAGO = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"
CHANGES = {
    BERLIN: ("2026-03-29T01:00", "2026-10-25T01:00"),  # 02:00 -> 03:00, 03:00 -> 02:00
    NEW_YORK: ("2026-03-08T07:00", "2026-11-01T06:00"),  # 02:00 -> 03:00, 02:00 -> 01:00
    LORD_HOWE: ("2026-10-03T15:30", "2026-04-04T15:00"),  # 02:00 -> 02:30, 02:00 -> 01:30
    SANTIAGO: ("2026-09-06T04:00", "2026-04-05T03:00"),  # 00:00 -> 01:00, 00:00 -> 23:00
    "Asia/Kathmandu": ("2026-06-01T00:00",),  # never
}
"""Times at which clocks are set forward and back, in UTC."""


def hours(text: str, zone: str) -> QuietHours:
    """Return quiet hours from text like 22:00-07:00."""
    start, end = (int(part[:2]) * 60 + int(part[3:]) for part in text.split("-"))
    return QuietHours(start, end, zone)


def at(utc: str) -> int:
    """Return the nanoseconds of a time in UTC."""
    return int(datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("zone", "window", "now", "end"),
    [
        # no clock change near: an hour's difference between winter and summer
        (BERLIN, "22:00-07:00", "2026-01-10T20:59:59", None),
        (BERLIN, "22:00-07:00", "2026-01-10T21:00", "2026-01-11T06:00"),
        (BERLIN, "22:00-07:00", "2026-01-11T05:59:59", "2026-01-11T06:00"),
        (BERLIN, "22:00-07:00", "2026-01-11T06:00", None),
        (BERLIN, "22:00-07:00", "2026-07-10T20:00", "2026-07-11T05:00"),
        (BERLIN, "12:30-13:15", "2026-07-10T10:30", "2026-07-10T11:15"),
        (BERLIN, "22:00-00:00", "2026-01-10T22:59:59", "2026-01-10T23:00"),
        (BERLIN, "00:00-06:00", "2026-01-10T23:00", "2026-01-11T05:00"),
        ("UTC", "08:00-08:00", "2026-01-10T08:00", None),
        # a night of eight hours and one of ten
        (BERLIN, "22:00-07:00", "2026-03-28T21:00", "2026-03-29T05:00"),
        (BERLIN, "22:00-07:00", "2026-10-24T20:00", "2026-10-25T06:00"),
        (NEW_YORK, "22:00-06:00", "2026-03-08T03:00", "2026-03-08T10:00"),
        (NEW_YORK, "22:00-06:00", "2026-11-01T02:00", "2026-11-01T11:00"),
        # spring: the end is skipped, so it is where the clock continues
        (BERLIN, "22:00-02:30", "2026-03-28T22:00", "2026-03-29T01:00"),
        (BERLIN, "22:00-02:30", "2026-03-29T00:59:59", "2026-03-29T01:00"),
        (BERLIN, "22:00-02:30", "2026-03-29T01:00", None),
        (BERLIN, "22:00-02:00", "2026-03-29T00:59:59", "2026-03-29T01:00"),
        (BERLIN, "22:00-03:00", "2026-03-29T00:59:59", "2026-03-29T01:00"),
        (NEW_YORK, "23:00-02:59", "2026-03-08T06:00", "2026-03-08T07:00"),
        (LORD_HOWE, "22:00-02:15", "2026-10-03T15:00", "2026-10-03T15:30"),
        (LORD_HOWE, "22:00-02:15", "2026-10-03T15:30", None),
        (SANTIAGO, "22:00-00:00", "2026-09-06T03:30", "2026-09-06T04:00"),
        # the start is skipped, or all quiet hours, or all other hours
        (BERLIN, "02:30-06:00", "2026-03-29T00:59:59", None),
        (BERLIN, "02:30-06:00", "2026-03-29T01:00", "2026-03-29T04:00"),
        (BERLIN, "02:10-02:50", "2026-03-29T00:59:59", None),
        (BERLIN, "02:10-02:50", "2026-03-29T01:00", None),
        (BERLIN, "02:50-02:10", "2026-03-29T00:59:59", "2026-03-30T00:10"),
        # autumn: repeated minutes are quiet both times
        (BERLIN, "22:00-02:30", "2026-10-24T23:00", "2026-10-25T00:30"),
        (BERLIN, "22:00-02:30", "2026-10-25T00:30", None),
        (BERLIN, "22:00-02:30", "2026-10-25T01:00", "2026-10-25T01:30"),
        (BERLIN, "22:00-02:30", "2026-10-25T01:30", None),
        (BERLIN, "02:10-02:20", "2026-10-25T00:15", "2026-10-25T00:20"),
        (BERLIN, "02:10-02:20", "2026-10-25T01:15", "2026-10-25T01:20"),
        (BERLIN, "02:00-03:00", "2026-10-25T00:00", "2026-10-25T02:00"),
        (BERLIN, "02:30-06:00", "2026-10-25T00:30", "2026-10-25T05:00"),
        (BERLIN, "02:30-06:00", "2026-10-25T01:10", None),
        (BERLIN, "02:30-06:00", "2026-10-25T01:30", "2026-10-25T05:00"),
        (NEW_YORK, "23:00-01:30", "2026-11-01T04:30", "2026-11-01T05:30"),
        (NEW_YORK, "23:00-01:30", "2026-11-01T06:15", "2026-11-01T06:30"),
        (LORD_HOWE, "22:00-01:45", "2026-04-04T14:00", "2026-04-04T14:45"),
        (LORD_HOWE, "22:00-01:45", "2026-04-04T14:50", None),
        (LORD_HOWE, "22:00-01:45", "2026-04-04T15:10", "2026-04-04T15:15"),
        (SANTIAGO, "22:00-00:00", "2026-04-05T02:30", "2026-04-05T04:00"),
    ],
)
def test_end_follows_the_users_clock(zone: str, window: str, now: str, end: str | None) -> None:
    assert quiet_until(hours(window, zone), at(now)) == (end and at(end))


def test_without_quiet_hours_no_time_is_quiet() -> None:
    assert quiet_until(None, at("2026-01-10T23:00")) is None


def clock(zone: str, ns: int) -> datetime:
    """Return the time that the user's clock shows."""
    return datetime.fromtimestamp(ns // SECOND, UTC).astimezone(ZoneInfo(zone))


def quiet(asked: QuietHours, ns: int) -> bool:
    """Return whether the shown time is quiet, by counting minutes."""
    shown = clock(asked.time_zone, ns)
    length = (asked.end_minute - asked.start_minute) % DAY_MINUTES
    return (shown.hour * 60 + shown.minute - asked.start_minute) % DAY_MINUTES < length


def offset(shown: datetime) -> timedelta:
    """Return the clock's offset from UTC."""
    return shown.utcoffset() or timedelta()


nights = st.sampled_from([(zone, at(change)) for zone, changes in CHANGES.items() for change in changes])
minutes = st.integers(0, DAY_MINUTES - 1)


@given(nights, minutes, minutes, st.integers(-DAY, DAY))
@example((BERLIN, at("2026-03-29T01:00")), 22 * 60, 150, -1)
def test_every_minute_up_to_the_end_is_quiet(night: tuple[str, int], start: int, end: int, away_ns: int) -> None:
    (zone, change_ns), asked = night, QuietHours(start, end, night[0])
    now_ns = change_ns + away_ns
    end_ns = quiet_until(asked, now_ns)
    assert (end_ns is not None) == quiet(asked, now_ns)
    if end_ns is None:
        return
    assert end_ns > now_ns and quiet(asked, end_ns - 1) and not quiet(asked, end_ns)
    before, after = clock(zone, end_ns - SECOND), clock(zone, end_ns)
    ends = after.replace(hour=end // 60, minute=end % 60, second=0, fold=after.fold)
    skipped = before.replace(tzinfo=None) < ends.replace(tzinfo=None) <= after.replace(tzinfo=None)
    assert after == ends or (skipped and offset(before) < offset(after))
    breaks = sum(not quiet(asked, ns) for ns in range(now_ns, end_ns, 5 * MINUTE))
    put_back = offset(clock(zone, now_ns)) > offset(after)
    assert not breaks or (put_back and breaks <= 12), "only the repeated hour may have quiet and other minutes mixed"
