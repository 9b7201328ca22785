"""When a user wants to be left alone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from services.gateway.events.model import QuietHours


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def quiet_until(hours: QuietHours | None, now_ns: int) -> int | None:
    """The end of the quiet hours that ``now_ns`` is in; None where it is in none.

    A start that equals its end means never. Where clocks are put forward over the end, it is when they go on; where
    they are put back, a minute that comes twice is quiet twice.

    Args:
        hours: Checked where they were set, see `contacts`.
        now_ns: Wall clock, nanoseconds.
    """
    if hours is None:
        return None
    local = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).astimezone(_zone(hours.time_zone))
    start, end, minute = hours.start_minute, hours.end_minute, local.hour * 60 + local.minute
    if start < end:
        quiet, next_day = start <= minute < end, False
    else:
        quiet, next_day = start != end and (minute >= start or minute < end), minute >= start
    if not quiet:
        return None
    day = local.date() + timedelta(days=int(next_day))
    ends = datetime(day.year, day.month, day.day, end // 60, end % 60, tzinfo=local.tzinfo, fold=local.fold)
    while not _exists(ends):
        ends += timedelta(minutes=1)
    end_ns = int(ends.timestamp()) * 1_000_000_000
    return quiet_until(hours, end_ns) or end_ns  # again at once, where all that was not quiet is skipped


def _exists(local: datetime) -> bool:
    """Whether a clock ever shows this time."""
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) == local.replace(tzinfo=None)
