"""The life of a request: what is accepted, when it times out, and its one final status. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from services.common.model.errors import InvalidRequest
from services.common.model.history import Outcome, RequestStatus, Submission
from services.common.model.instrument import Instrument, Series
from services.common.model.periods import ceil_to_grid, check_period, check_span, count_periods, floor_to_grid
from services.common.model.time_range import TimeRange
from services.common.model.times import MAX_TIME_NS

LONGEST_ID = 256
RANGES_IN_A_MESSAGE = 50
CANCELLED = "cancelled"


def check(submission: Submission, venues: Container[str], most_periods: int) -> None:
    """Refuse a request that can't be answered.

    Raises:
        InvalidRequest: Names the field and its value.
    """
    for field, text in (("request_id", submission.request_id), ("client_id", submission.client_id or "-")):
        if not text or len(text) > LONGEST_ID:
            raise InvalidRequest(f"{field} {text[:32]!r} has {len(text)} characters; 1 to {LONGEST_ID} are allowed")
    check_ticker(submission.ticker, venues)
    span = check_span(submission.start_ns, submission.end_ns, submission.period_seconds)
    if submission.limit == 0:
        raise InvalidRequest("limit 0 asks for nothing; leave it out for the whole range")
    if submission.refresh and submission.limit is not None:
        raise InvalidRequest(f"limit {submission.limit} does not go with a refresh; its whole range is fetched anew")
    periods = count_periods(span, submission.period_seconds)
    if min(periods, submission.limit or periods) > most_periods:
        raise InvalidRequest(f"end_time {submission.end_ns} makes {periods} periods; {most_periods} are allowed")


def check_ticker(ticker: str, venues: Container[str]) -> None:
    """Refuse what is no ticker, or one of an unknown exchange.

    Raises:
        InvalidRequest: Names it.
    """
    if len(ticker) > LONGEST_ID:
        raise InvalidRequest(f"ticker {ticker[:32]!r}... has over {LONGEST_ID} characters")
    venue = Instrument.parse(ticker).venue
    if venue not in venues:
        raise InvalidRequest(f"ticker {ticker!r} names the unknown exchange {venue!r}")


def check_part(series: Series, start_ns: int | None, end_ns: int | None, venues: Container[str]) -> TimeRange:
    """The part of a market's history that is asked about; where an end is left out, as far as time goes.

    Raises:
        InvalidRequest: Names the field and its value.
    """
    check_ticker(series.ticker, venues)
    period = series.period_seconds
    check_period(period)
    start_ns = ceil_to_grid(0, period) if start_ns is None else start_ns
    return check_span(start_ns, floor_to_grid(MAX_TIME_NS, period) if end_ns is None else end_ns, period)


def describe_missing(missing: Sequence[TimeRange]) -> str:
    """The ranges as text; long lists are cut, with the count of the rest."""
    text = ", ".join(map(str, missing[:RANGES_IN_A_MESSAGE]))
    rest = len(missing) - RANGES_IN_A_MESSAGE
    return f"missing {text}" + (f" and {rest} more" if rest > 0 else "")


def decide(
    *,
    end_ns: int,
    missing: Sequence[TimeRange],
    job_errors: Iterable[str],
    row_count: int,
    empty_periods: int,
    snapshot_id: int | None,
    completed_ns: int,
) -> Outcome:
    """The final status of a request all of whose jobs have ended: anything missing is an ERROR that names it."""
    error = ""
    if missing:
        status = RequestStatus.ERROR
        reasons, described = list(dict.fromkeys(e for e in job_errors if e)), describe_missing(missing)
        told = any(reason.startswith(described) for reason in reasons)  # a request of one job: it says the same
        error = "; ".join(reasons if told else [*reasons, described])
    else:
        status = RequestStatus.OK if row_count else RequestStatus.NOT_FOUND
    return Outcome(status, error, end_ns, completed_ns, row_count, empty_periods, tuple(missing), snapshot_id)


def cut_short(
    status: RequestStatus, error: str, *, end_ns: int, missing: Sequence[TimeRange], completed_ns: int
) -> Outcome:
    """The end of a request that was not carried through: cancelled, or timed out."""
    return Outcome(status, error, end_ns, completed_ns, missing=tuple(missing))
