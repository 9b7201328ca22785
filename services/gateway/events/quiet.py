"""When a user wants to be left alone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from services.common.errors import InvalidRequest
from services.gateway.events.model import QuietHours

_DAY_MINUTES = 24 * 60


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def check_quiet_hours(hours: QuietHours) -> None:
    """Refuse quiet hours that can't be kept; to be called where they are set.

    Raises:
        InvalidRequest: A minute is out of range, or the time zone is not known.
    """
    for name, minute in (("start_minute", hours.start_minute), ("end_minute", hours.end_minute)):
        if not 0 <= minute < _DAY_MINUTES:
            raise InvalidRequest(f"quiet_hours.{name} {minute} is not in 0-{_DAY_MINUTES - 1}")
    try:
        _zone(hours.time_zone)
    except (ValueError, OSError) as error:  # ZoneInfo's for paths, folders and names that are no key
        raise InvalidRequest(f"quiet_hours.time_zone {hours.time_zone!r} is not known") from error
    except KeyError as error:  # ZoneInfoNotFoundError
        raise InvalidRequest(f"quiet_hours.time_zone {hours.time_zone!r} is not known") from error


def quiet_until(hours: QuietHours | None, now_ns: int) -> int | None:
    """The end of the quiet hours that ``now_ns`` is in; None where it is in none.

    A start that equals its end means never. Where clocks are put forward over the end, it is when they go on; where
    they are put back, a minute that comes twice is quiet twice.

    Args:
        hours: As `check_quiet_hours` lets through.
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
