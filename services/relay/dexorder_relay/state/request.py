"""State machine of a request: acceptance, states, and its one outcome. Pure.

=========  ======================================================  =====================================
State      Event                                                   Next
=========  ======================================================  =====================================
(none)     a valid submission is planned (``check``)               QUEUED
QUEUED     one of its jobs has been dispatched (``start``)         RUNNING
QUEUED,    all of its jobs are over: coverage and table are        ending; or the same state with
RUNNING    compared (``deciding``)                                 another wave of jobs (``limit``)
QUEUED,    cancelled, or no progress for the timeout               ending
RUNNING
ending     the outcome is on disk                                  FINISHED; announced
FINISHED   forgotten after the retention time                      (none)
=========  ======================================================  =====================================

A submission is answered QUEUED only when it is on disk. While a request is ``ending``, its outcome is chosen and being
written, and no other event can end it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from dexorder_common.model.dispatch_id import TraceContext, read_context
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest, Outcome, RequestState, RequestStatus, describe_ranges
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import (
    GIVEN_FIELDS,
    PERIODS,
    ceil_to_grid,
    check_period,
    check_span,
    check_times,
    count_periods,
    floor_to_grid,
    total_periods,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, iso
from dexorder_relay.state.compare import CoverageComparison

MAX_ID_LENGTH = 256
RANGES_IN_A_MESSAGE = 50
VENUES_IN_A_MESSAGE = 20
CANCELLED = "cancelled"


@dataclass(slots=True)
class LiveRequest:
    """A request without an outcome on disk.

    Attributes:
        planned_end_ns: End of the planned part; before the request's end if ``limit`` splits it into waves, and while
            steps of a long one are to come.
        progress_ns: Monotonic time of its last progress, for the timeout.
        jobs: Ids of its jobs.
        deciding: Its outcome is being worked out.
        ending: Its outcome is chosen and on its way to disk.
        retry_ns: Monotonic time before which its outcome is not worked out again.
        waiting: Reason why its outcome could not be worked out; empty if it has not failed.
        trace: Context of the span in which it was submitted, as text; empty if it is not traced.
    """

    request: HistoryRequest
    submitted_ns: int
    planned_end_ns: int
    progress_ns: int
    state: RequestState = RequestState.QUEUED
    jobs: set[int] = field(default_factory=set)
    deciding: bool = False
    ending: bool = False
    retry_ns: int = 0
    waiting: str = ""
    trace: str = ""

    @property
    def span(self) -> TraceContext | None:
        """Context of the request's own span, which starts at the submission and is recorded at the end.

        Any process of the relay can name it, so it is the parent of all work for the request.
        """
        parent = read_context(self.trace)
        return parent and parent.derived(self.request.request_id)

    @property
    def planned(self) -> TimeRange:
        """The planned part of its range."""
        return TimeRange(self.request.start_ns, self.planned_end_ns)

    @property
    def is_planned(self) -> bool:
        """Whether the last step is planned; waves of a request with a limit are not steps."""
        return self.request.limit is not None or self.planned_end_ns >= self.request.end_ns

    def start(self) -> bool:
        """Become RUNNING; return whether the request was QUEUED."""
        queued = self.state is RequestState.QUEUED
        self.state = RequestState.RUNNING
        return queued


def check(request: HistoryRequest, venues: Collection[str], max_periods: int) -> None:
    """Raise InvalidRequest, with the field and its value, for a request that cannot be answered."""
    check_id("request_id", request.request_id)
    check_id("client_id", request.client_id or "-")
    check_ticker(request.ticker, venues)
    if request.dataset.has_history and not request.dataset.has_periods:
        check_times(request.start_ns, request.end_ns, GIVEN_FIELDS)
        if request.limit is not None:
            raise InvalidRequest(f"limit {request.limit} is not allowed for {request.dataset.rows}; omit it")
        return
    span = check_span(request.start_ns, request.end_ns, request.period_seconds, GIVEN_FIELDS)
    if request.limit == 0:
        raise InvalidRequest("limit 0 requests no candle; omit it for the whole range")
    if request.refresh and request.limit is not None:
        raise InvalidRequest(f"limit {request.limit} is not allowed in a refresh, which fetches the whole range again")
    if request.max_candles > max_periods:
        periods = count_periods(span, request.period_seconds)
        raise InvalidRequest(
            f"end_time {iso(span.end_ns)} makes {periods} periods from {iso(span.start_ns)}; at most {max_periods} are "
            "allowed"
        )


def check_exchange(request: HistoryRequest, venues: Collection[str]) -> None:
    """Raise InvalidRequest, as ``check``, for a request for a dataset that concerns a whole exchange."""
    check_id("request_id", request.request_id)
    check_id("client_id", request.client_id or "-")
    venue = request.ticker.partition(".")[2]
    if venue not in venues:
        raise InvalidRequest(unknown_exchange(venue, venues))


def check_id(field_: str, text: str) -> None:
    """Raise InvalidRequest for an id that is empty or too long, or that a terminal or log would not show as it is."""
    if not text or len(text) > MAX_ID_LENGTH:
        raise InvalidRequest(f"{field_} {text[:32]!r} has {len(text)} characters; 1 to {MAX_ID_LENGTH} are allowed")
    if not text.isprintable():
        raise InvalidRequest(f"{field_} {text[:32]!a} has a control character; use letters, digits and punctuation")


def unknown_exchange(venue: str, venues: Collection[str]) -> str:
    """Return that an exchange is unknown, and which ones the relay has."""
    known = sorted(venues)
    listed, left = ", ".join(known[:VENUES_IN_A_MESSAGE]), len(known) - VENUES_IN_A_MESSAGE
    return f"exchange {venue[:64]!r} is not known; this relay has {listed}{f' and {left} more' if left > 0 else ''}"


def check_ticker(ticker: str, venues: Collection[str], *, whole_exchange: bool = False) -> None:
    """Raise InvalidRequest for an invalid ticker, or for one of an unknown exchange.

    Args:
        whole_exchange: Whether the ticker may name all markets of an exchange.
    """
    instrument = Instrument.parse(ticker)
    if instrument.venue not in venues:
        raise InvalidRequest(f"ticker {ticker!r}: {unknown_exchange(instrument.venue, venues)}")
    if instrument.is_whole_exchange and not whole_exchange:
        raise InvalidRequest(f"ticker {ticker!r} names all markets of an exchange; name one")


def check_part(
    series: Series, start_ns: int | None, end_ns: int | None, venues: Collection[str], *, without_periods: bool = False
) -> TimeRange:
    """Return a checked part of a series' history; an end that is None is the first or last time on the grid.

    Args:
        without_periods: Whether the dataset may be one without periods and therefore without a grid.
    """
    check_ticker(series.ticker, venues)
    period = series.period_seconds
    if without_periods and not series.dataset.has_periods:
        return _without_grid(start_ns, end_ns)
    check_period(period)
    start_ns = ceil_to_grid(0, period) if start_ns is None else start_ns
    return check_span(start_ns, floor_to_grid(MAX_TIME_NS, period) if end_ns is None else end_ns, period)


def check_rows(series: Series, start_ns: int | None, end_ns: int | None, venues: Collection[str]) -> TimeRange:
    """Return a checked range of stored rows of any dataset."""
    if series.dataset.has_periods:
        return check_part(series, start_ns, end_ns, venues)
    check_ticker(series.ticker, venues, whole_exchange=series.dataset.whole_exchange)
    return _without_grid(start_ns, end_ns)


def _without_grid(start_ns: int | None, end_ns: int | None) -> TimeRange:
    return TimeRange(start_ns or 0, MAX_TIME_NS if end_ns is None else end_ns)


def describe_wrong(found: CoverageComparison, series: Series) -> str:
    """Return as text which rows the table must not have, and how to remove them; empty without such rows."""
    if not found.wrong:
        return ""
    period = PERIODS.get(series.period_seconds, "")
    kinds = (
        (found.surplus_rows, "duplicate"),
        (total_periods(found.unexpected, series.period_seconds), "in ranges verified empty"),
        (found.off_grid_rows, f"off the {period} grid"),
    )
    counts = ", ".join(f"{count:,} {kind}" for count, kind in kinds if count)
    where = describe_ranges(found.wrong, RANGES_IN_A_MESSAGE)
    text = f"{series.dataset.table} has rows that it must not have: {counts}, in {where}"
    return f"{text}; `dexorder verify {series.ticker} {period} --repair` removes them" if period else text


def describe_missing(missing: Sequence[TimeRange]) -> str:
    """Return missing ranges as text; a long list is cut."""
    return f"missing {describe_ranges(missing, RANGES_IN_A_MESSAGE)}"


def decide(
    *,
    end_ns: int,
    completed_ns: int,
    row_count: int,
    missing: Sequence[TimeRange] = (),
    job_errors: Iterable[str] = (),
    wrong: str = "",
    empty_periods: int = 0,
    snapshot_id: int | None = None,
    provisional: Sequence[TimeRange] = (),
    revised: Sequence[TimeRange] = (),
) -> Outcome:
    """Return the outcome of a request after the end of all its jobs.

    Anything missing makes it an ERROR that names it, and so do rows that the table must not have, named in ``wrong``.
    """
    error = wrong
    if missing:
        status = RequestStatus.ERROR
        reasons, described = list(dict.fromkeys(filter(None, [*job_errors, wrong]))), describe_missing(missing)
        repeated = any(reason.startswith(described) for reason in reasons)  # a request of one job has the same ranges
        error = "; ".join(reasons if repeated else [*reasons, described])
    elif wrong:
        status = RequestStatus.ERROR
    else:
        status = RequestStatus.OK if row_count else RequestStatus.NOT_FOUND
    return Outcome(
        status,
        error,
        end_ns,
        completed_ns,
        row_count,
        empty_periods,
        tuple(missing),
        snapshot_id,
        tuple(provisional),
        tuple(revised),
    )
