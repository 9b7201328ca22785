"""Times as nanoseconds since the epoch, and their forms as text and datetime. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dexorder_common.model.errors import InvalidRequest

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
MAX_TIME_NS = 2**63 - 1
"""Largest time. Arrow and Iceberg store signed 64-bit nanoseconds, so the protos' uint64 fields are limited to this."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_datetime(time_ns: int) -> datetime:
    """Return a time as a datetime in UTC, rounded down to the microsecond, as Iceberg stores it."""
    return _EPOCH + time_ns // 1_000 * _MICROSECOND


def from_datetime(moment: datetime) -> int:
    """Return the nanoseconds since the epoch of a datetime that has a time zone."""
    return (moment - _EPOCH) // _MICROSECOND * 1_000


def iso(time_ns: int) -> str:
    """Return the UTC text of a time, to the second: ``2024-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_microseconds(time_ns: int, separator: str = "T") -> str:
    """Return ISO text with a zone, to the microsecond, as timestamp literals of Iceberg and Spark require it."""
    return to_datetime(time_ns).isoformat(separator)


def parse_time(text: str, field: str = "time") -> int:
    """Return an ISO 8601 date or time, in UTC without a zone; InvalidRequest names ``field``."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{field} {text!r} is not ISO 8601; use 2024-01-31 or 2024-01-31T12:00:00Z") from None
    return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
