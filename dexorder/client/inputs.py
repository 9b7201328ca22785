"""Conversion of a request as people write it to exact values; ``now_ns`` is the present by default."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import index
from typing import SupportsIndex

from dexorder.client.moments import Moment, moment_ns
from dexorder.errors import RequestRefused
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.datasets import CANDLES, DATASETS, TRADES, Dataset
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import (
    GIVEN_FIELDS,
    PERIOD_SECONDS,
    PERIODS,
    check_period,
    check_span,
    floor_to_grid,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso


def make_request(
    request_id: str,
    ticker: str,
    period: str | int,
    since: Moment,
    until: Moment = "now",
    *,
    now_ns: int | None = None,
    limit: int | None = None,
    client_id: str = "",
    refresh: bool = False,
) -> HistoryRequest:
    """Return a request, its range rounded down to the period's grid; RequestRefused names a value that is invalid.

    >>> request = make_request("mine", "BTC/USDT.BINANCE", "1h", "2024-01-01T00:40", "2024-01-02")
    >>> print(request.period_seconds, request.span)
    3600 [2024-01-01T00:00:00Z, 2024-01-02T00:00:00Z)
    """
    check_ticker(ticker)
    seconds, span = read_range(period, since, until, now_ns=now_ns)
    check_limit(limit)
    return HistoryRequest(request_id, ticker, span.start_ns, span.end_ns, seconds, limit, client_id, refresh)


@contextmanager
def refused() -> Iterator[None]:
    """Raise RequestRefused for a value that is invalid in the block."""
    try:
        yield
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def check_ticker(ticker: str) -> None:
    """Raise RequestRefused unless the ticker is SYMBOL.VENUE."""
    with refused():
        Instrument.parse(ticker)


def read_range(period: str | int, since: Moment, until: Moment, *, now_ns: int | None = None) -> tuple[int, TimeRange]:
    """Return the period in seconds and the range, rounded down to the grid: ``now`` ends the last closed candle.

    Raises RequestRefused if a value is invalid or the range is empty; the message names the value.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    with refused():
        seconds = parse_period(period)
        since_ns, until_ns = (moment_ns(m, f, now_ns=now_ns) for m, f in ((since, "since"), (until, "until")))
        if until == "now" and until_ns < since_ns:
            raise InvalidRequest(f"since {since} is in the future")
        if until_ns <= since_ns:
            raise InvalidRequest(f"until {until} is not after since {since}")
        start_ns, end_ns = floor_to_grid(since_ns, seconds), floor_to_grid(until_ns, seconds)
        if end_ns <= start_ns:
            raise InvalidRequest(f"since {since} and until {until} are in the same {PERIODS[seconds]} candle")
        return seconds, check_span(start_ns, end_ns, seconds, GIVEN_FIELDS)


def closed_part(span: TimeRange, period_seconds: int, *, now_ns: int | None = None) -> TimeRange:
    """Return the part of a range with candles that are closed now; RequestRefused if it is empty."""
    closed_ns = floor_to_grid(time.time_ns() if now_ns is None else now_ns, period_seconds)
    if span.start_ns >= closed_ns:
        raise RequestRefused(
            f"since {iso(span.start_ns)}: no {PERIODS[period_seconds]} candle from there on is closed yet; the last "
            f"closed one ends at {iso(closed_ns)}"
        )
    return TimeRange(span.start_ns, min(span.end_ns, closed_ns))


def covered_dataset(period: str | int) -> Dataset:
    """Return the dataset of a period: a dataset without periods by its name, trades by 0, else candles."""
    named = {each.name: each for each in DATASETS if each.is_covered and not each.has_periods}
    return TRADES if period == 0 else named.get(str(period), CANDLES)


def read_part(
    period: str | int,
    since: Moment | None,
    until: Moment | None,
    *,
    now_ns: int | None = None,
    dataset: Dataset = CANDLES,
) -> tuple[int, int | None, int | None]:
    """Return the period in seconds and the given ends, rounded down to its grid; RequestRefused as ``read_range``.

    For a dataset without periods, the period is its name, of which the seconds are 0, and every time is accepted.
    """
    if since is not None and until is not None and dataset.has_periods:
        seconds, span = read_range(period, since, until, now_ns=now_ns)
        return seconds, span.start_ns, span.end_ns
    now_ns = time.time_ns() if now_ns is None else now_ns
    with refused():
        seconds = parse_period(period) if dataset.has_periods else 0
        start_ns, end_ns = (
            value if value is None else floor_to_grid(moment_ns(value, field, now_ns=now_ns), seconds)
            for field, value in (("since", since), ("until", until))
        )
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        raise RequestRefused(f"until {until} is not after since {since}")
    return seconds, start_ns, end_ns


def read_moment(moment: Moment, field: str, now_ns: int) -> int:
    """Return a time in nanoseconds, not rounded; RequestRefused names the field of an invalid one."""
    with refused():
        return moment_ns(moment, field, now_ns=now_ns)


def read_exact_range(since: Moment, until: Moment) -> TimeRange:
    """Return the range between two times, not rounded; RequestRefused if it is empty or a time is invalid."""
    now_ns = time.time_ns()
    start_ns, end_ns = read_moment(since, "since", now_ns), read_moment(until, "until", now_ns)
    if end_ns <= start_ns:
        raise RequestRefused(f"until {until} is not after since {since}")
    return TimeRange(start_ns, end_ns)


def read_series(ticker: str, period: str | int, since: Moment, until: Moment) -> tuple[Series, TimeRange]:
    """Return a series of candles or, by the name of its dataset, one without periods, and the range.

    Raises RequestRefused as ``check_ticker`` and ``read_range``, or ``read_exact_range`` without periods.
    """
    check_ticker(ticker)
    dataset = covered_dataset(period)
    seconds, span = read_range(period, since, until) if dataset.has_periods else (0, read_exact_range(since, until))
    return Series(ticker, seconds, dataset), span


def read_periods(periods: Iterable[str | int]) -> list[int]:
    """Return periods in seconds, ascending, each once; RequestRefused names one that is unknown."""
    with refused():
        return sorted({parse_period(each) for each in periods})


def check_limit(limit: int | None) -> None:
    """Raise RequestRefused unless the limit is None or fits the message."""
    if limit is not None and not 0 < limit < 2**32:
        raise RequestRefused(f"limit {limit} is not between 1 and {2**32 - 1}")


def parse_period(period: object) -> int:
    """Return the seconds of ``1h`` or of ``3600`` (text or number); InvalidRequest if the period is unknown."""
    if isinstance(period, str) and period in PERIOD_SECONDS:
        return PERIOD_SECONDS[period]
    if isinstance(period, SupportsIndex):  # a number of numpy is one, too
        seconds = index(period)
    elif isinstance(period, str) and period.isascii() and period.isdigit():
        seconds = int(period)
    else:
        raise InvalidRequest(f"period {period!r} is not one of {', '.join(PERIOD_SECONDS)}, or its seconds")
    check_period(seconds)
    return seconds


def read_cursor(text: str) -> Cursor | None:
    """Return the cursor that a text stands for, None for an empty text; RequestRefused if it is none."""
    try:
        return Cursor.parse(text)
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None
