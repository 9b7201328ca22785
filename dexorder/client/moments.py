"""Times as people write them. Pure."""

from __future__ import annotations

import datetime as dt
import re
from math import isfinite

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.times import DAY_NS, SECOND_NS, iso, parse_time

Moment = str | int | float | dt.date | dt.datetime
"""``now``, ``today``, ``-30d``, ``2 days ago``, ``2024-01``, ISO text, a date or datetime (UTC without a zone), or
seconds, ms or ns since the epoch.
"""

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_WORDS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_AGO = re.compile(r"(?:now ?)?-(?:\d{1,9}[smhdw])+", re.ASCII)
_AGO_PART = re.compile(r"(\d+)([smhdw])", re.ASCII)
_AGO_WORDS = re.compile(rf"(\d{{1,9}}) ?(?:([smhdw])|({'|'.join(_WORDS)})s?) ago", re.ASCII)
_MONTH = re.compile(r"\d{4}-\d\d", re.ASCII)
_NUMBERS = re.compile(r"\d+", re.ASCII)
_EPOCH_UNITS_NS = (SECOND_NS, 1_000_000, 1)
_EARLIEST_NS, _LATEST_NS = (year * 365 * 86_400 * SECOND_NS for year in (11, 200))  # about 1981 and 2170
_FORMS = (
    "use now, -30d, 2024-01-31, 2024-01-31T12:00:00Z, 2024-01, today, 3 days ago, or seconds or milliseconds since the "
    "epoch"
)


def moment_ns(moment: Moment, field: str, *, now_ns: int) -> int:
    """Return nanoseconds since the epoch, not rounded; InvalidRequest names the field and the accepted forms.

    >>> moment_ns("-1h30m", "since", now_ns=parse_time("2024-01-31T12:00:00Z")) == parse_time("2024-01-31T10:30:00Z")
    True
    """
    if isinstance(moment, dt.date):
        return parse_time(moment.isoformat(), field)
    if isinstance(moment, int | float) and not isinstance(moment, bool) and isfinite(moment):
        return _epoch_ns(moment, str(moment), field)
    if not isinstance(moment, str):
        raise InvalidRequest(f"{field} {moment!r} is not a time; {_FORMS}")
    text = " ".join(moment.split())
    if text == "now":
        return now_ns
    if text in _DAYS_AGO:
        return (now_ns // DAY_NS - _DAYS_AGO[text]) * DAY_NS
    if (ago_s := _seconds_ago(text)) is not None:
        return now_ns - ago_s * SECOND_NS
    if _NUMBERS.fullmatch(moment):
        return _epoch_ns(int(moment), moment, field)
    try:
        return parse_time(f"{text}-01" if _MONTH.fullmatch(text) else text, field)
    except InvalidRequest:
        raise InvalidRequest(f"{field} {moment!r} is not a time; {_FORMS}") from None


def _seconds_ago(text: str) -> int | None:
    """Return the seconds of ``-1h30m``, ``now-2d`` or ``3 days ago``; None for other text."""
    if _AGO.fullmatch(text):
        return sum(int(count) * _UNIT_SECONDS[unit] for count, unit in _AGO_PART.findall(text))
    if words := _AGO_WORDS.fullmatch(text):
        return int(words[1]) * _UNIT_SECONDS[words[2] or _WORDS[words[3]]]
    return None


def _epoch_ns(number: float, text: str, field: str) -> int:
    """Return the time of a number whose size tells its unit. Other numbers, such as 20240131, are ambiguous."""
    for unit_ns in _EPOCH_UNITS_NS:
        if _EARLIEST_NS <= number * unit_ns < _LATEST_NS:
            return int(number * unit_ns)
    hint = _FORMS
    if (date := re.fullmatch(r"(\d{4})(\d\d)?(\d\d)?", text)) and "1970" <= text[:4] < "2200":
        hint = f"write {'-'.join([date[1], date[2] or '01', date[3] or '01'])} for a date"
    elif 0 < number * SECOND_NS < _LATEST_NS:
        hint = f"write {iso(int(number) * SECOND_NS)} for seconds since the epoch"
    raise InvalidRequest(f"{field} {text} is ambiguous; {hint}")
