"""A request for history as people write it, made exact. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from dexorder.errors import RequestRefused
from services.common.model.errors import InvalidRequest
from services.common.model.instrument import Instrument as MarketTicker
from services.common.model.periods import (
    PERIOD_SECONDS,
    PERIODS,
    check_period,
    check_span,
    count_periods,
    floor_to_grid,
)
from services.common.model.time_range import TimeRange
from services.common.model.times import parse_time
from services.gen.dexorder.ingest.v1 import ingest_pb2

Moment = str | int | dt.date | dt.datetime
"""A time: ISO text, nanoseconds since the epoch, a date or a datetime; without a zone it is UTC."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Candles of one ticker and period in a half-open range on the period's grid.

    Attributes:
        refresh: Fetch all of it from the exchange again, whatever the table has.
    """

    request_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    limit: int | None = None
    client_id: str = ""
    refresh: bool = False

    @property
    def expected_candles(self) -> int:
        """The most candles it can bring."""
        periods = count_periods(self.span, self.period_seconds)
        return periods if self.limit is None else min(periods, self.limit)

    def message(self) -> ingest_pb2.SubmitHistoricalRequest:
        """The message that submits it."""
        return ingest_pb2.SubmitHistoricalRequest(
            request_id=self.request_id,
            ticker=self.ticker,
            start_time=self.span.start_ns,
            end_time=self.span.end_ns,
            period_seconds=self.period_seconds,
            limit=self.limit,
            client_id=self.client_id or None,
        )


def make_request(
    request_id: str,
    ticker: str,
    period: str | int,
    since: Moment,
    until: Moment,
    *,
    limit: int | None = None,
    client_id: str = "",
    refresh: bool = False,
) -> HistoryRequest:
    """Read what a person wrote; ``since`` and ``until`` are floored to the grid.

    Raises:
        RequestRefused: A value can't be read, or the floored range is empty; names the value.
    """
    check_ticker(ticker)
    seconds, span = read_range(period, since, until)
    check_limit(limit)
    return HistoryRequest(request_id, ticker, seconds, span, limit, client_id, refresh)


def check_ticker(ticker: str) -> None:
    """RequestRefused unless it is SYMBOL.VENUE."""
    try:
        MarketTicker.parse(ticker)
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def read_range(period: str | int, since: Moment, until: Moment) -> tuple[int, TimeRange]:
    """Period in seconds, and the range floored to its grid; RequestRefused names the value that means nothing."""
    try:
        seconds = parse_period(period)
        since_ns, until_ns = moment_ns(since), moment_ns(until)
        if until_ns <= since_ns:
            raise InvalidRequest(f"until {until} is not after since {since}")
        start_ns, end_ns = floor_to_grid(since_ns, seconds), floor_to_grid(until_ns, seconds)
        if end_ns <= start_ns:
            raise InvalidRequest(f"since {since} and until {until} lie in the same {PERIODS[seconds]} candle")
        return seconds, check_span(start_ns, end_ns, seconds)
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None


def read_part(period: str | int, since: Moment | None, until: Moment | None) -> tuple[int, int | None, int | None]:
    """Period in seconds, and the ends that are given, floored to its grid; RequestRefused as ``read_range``."""
    if since is not None and until is not None:
        seconds, span = read_range(period, since, until)
        return seconds, span.start_ns, span.end_ns
    try:
        seconds = parse_period(period)
        start_ns, end_ns = (
            each if each is None else floor_to_grid(moment_ns(each), seconds) for each in (since, until)
        )
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from None
    return seconds, start_ns, end_ns


def check_limit(limit: int | None) -> None:
    """RequestRefused unless it is None or fits the message."""
    if limit is not None and not 0 < limit < 2**32:
        raise RequestRefused(f"limit {limit} is not between 1 and {2**32 - 1}")


def parse_period(period: str | int) -> int:
    """Seconds of ``1h`` or of ``3600`` (text or number).

    Raises:
        InvalidRequest: The suite has no such period; names those it has.
    """
    if isinstance(period, str) and period in PERIOD_SECONDS:
        return PERIOD_SECONDS[period]
    if isinstance(period, str) and not (period.isascii() and period.isdigit()):
        raise InvalidRequest(f"period {period!r} is none of {', '.join(PERIOD_SECONDS)}")
    seconds = int(period)
    check_period(seconds)
    return seconds


def moment_ns(moment: Moment) -> int:
    """Nanoseconds since the epoch, before any flooring."""
    if isinstance(moment, int):
        return moment
    return parse_time(moment if isinstance(moment, str) else moment.isoformat())
