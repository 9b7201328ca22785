"""Requests for history and everything that describes them, for relay, client, ingestor and pipeline alike. Pure.

``dexorder_common/rpc/history_messages.py`` converts these values to protobuf messages and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Self

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.datasets import CANDLES, Dataset
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import count_periods
from dexorder_common.model.proof import NO_PROOF
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso


class _NumberedEnum(StrEnum):
    """Enum with its members declared in the order of the protocol's numbers, from 0."""

    @property
    def number(self) -> int:
        """Number of the member in the protocol."""
        return list(type(self)).index(self)

    @classmethod
    def from_number(cls, number: int) -> Self:
        """Return the member with a number; IndexError for an unknown number."""
        return list(cls)[number]


class RequestState(_NumberedEnum):
    """State of a request. ``dexorder_relay/state/request.py`` has the transitions."""

    UNSPECIFIED = "UNSPECIFIED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


class RequestStatus(_NumberedEnum):
    """Final status of a request."""

    OK = "OK"
    NOT_FOUND = "NOT_FOUND"
    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"


class FinalStatus(IntEnum):
    """Status of a dispatch's final record, with the numbers of the proto's ResponseStatus."""

    OK = 0
    NOT_FOUND = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A request for one series in a half-open range. Two requests are the same if all fields are equal.

    Attributes:
        end_ns: Exclusive; both ends are on the period's grid.
        period_seconds: 0 for a dataset without periods.
        limit: Number of candles after which the answer ends; None for the whole range.
        client_id: The caller, which also receives the notification on its own topic; may be empty.
        refresh: Fetch the whole range from the exchange again, even if the table has it.
        again: As ``refresh``, for the relay itself: a candle that is not found again keeps its row and its claim.
    """

    request_id: str
    ticker: str
    start_ns: int
    end_ns: int
    period_seconds: int
    limit: int | None = None
    client_id: str = ""
    refresh: bool = False
    again: bool = False
    dataset: Dataset = CANDLES

    @classmethod
    def of_exchange(cls, request_id: str, exchange: str, dataset: Dataset, client_id: str) -> HistoryRequest:
        """Return a request, without a range, for a dataset that concerns a whole exchange."""
        ticker = Series.whole_exchange(exchange, dataset).ticker
        return cls(request_id, ticker, 0, 0, 0, client_id=client_id, dataset=dataset)

    @property
    def fetches_covered(self) -> bool:
        """Whether the whole range is fetched, covered or not."""
        return self.refresh or self.again

    @property
    def series(self) -> Series:
        """The series."""
        return Series(self.ticker, self.period_seconds, self.dataset)

    @property
    def span(self) -> TimeRange:
        """The requested range. Raises InvalidRequest if the fields have not been checked and are reversed."""
        return TimeRange(self.start_ns, self.end_ns)

    @property
    def max_candles(self) -> int:
        """Largest number of candles that can answer the request."""
        periods = count_periods(self.span, self.period_seconds)
        return periods if self.limit is None else min(periods, self.limit)

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics on which the end is announced. The client gets the last one."""
        own = f"HISTORY_READY:{self.request_id}"
        return (own, f"RESPONSE:{self.client_id}") if self.client_id else (own,)


@dataclass(frozen=True, slots=True)
class Delay:
    """Reason why an ingestor does not have the next page yet, and the time of its next attempt.

    Attributes:
        reason: Last error of the exchange.
        retries: Failed attempts of the current query.
        next_attempt_ns: Wall clock time of the next attempt; 0 while one is under way.
        banned_until_ns: Wall clock end of the exchange's ban; 0 without one.
    """

    reason: str
    retries: int = 0
    next_attempt_ns: int = 0
    banned_until_ns: int = 0

    def __str__(self) -> str:
        retries = f" ({self.retries} retries)" if self.retries else ""
        ban = f", banned until {iso(self.banned_until_ns)}" if self.banned_until_ns else ""
        attempt = f", next try {iso(self.next_attempt_ns)}" if self.next_attempt_ns else ""
        return f"{self.reason}{retries}{ban}{attempt}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a request. A period is settled by a candle or by the proof of its absence, and counts once.

    Attributes:
        waiting: Reason why it makes no progress, for example a table that can't be read; empty if unknown.
        calls: Calls of the exchange that its running jobs made up to their last page.
        delay: Delay of one of its jobs at the exchange; None while pages arrive.
    """

    state: RequestState
    expected_periods: int
    settled_periods: int
    candles: int
    expected_pages: int
    settled_pages: int
    jobs: int
    finished_jobs: int
    running_jobs: int
    waiting: str = ""
    calls: int = 0
    delay: Delay | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one end of a request.

    Attributes:
        end_ns: End of the answer, exclusive: the request's end or, if ``limit`` was reached, the last candle's end.
        snapshot_id: Snapshot of the table at which ``row_count`` was counted; None for a table without snapshots.
        provisional: The verified-empty ranges that are not final; the relay has them queried again.
        revised: Ranges that were verified empty before and now have candles, or have changed values; only of requests
            of the relay itself.
    """

    status: RequestStatus
    error: str
    end_ns: int
    completed_ns: int
    row_count: int = 0
    empty_periods: int = 0
    missing: tuple[TimeRange, ...] = ()
    snapshot_id: int | None = None
    provisional: tuple[TimeRange, ...] = ()
    revised: tuple[TimeRange, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request and its outcome.

    Attributes:
        outcome: None until the request has ended.
        sequence: Position in the relay's list of requests; 0 where it is not known.
    """

    request: HistoryRequest
    submitted_ns: int
    progress: Progress
    outcome: Outcome | None = None
    sequence: int = 0

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.request.request_id

    @property
    def client_id(self) -> str:
        """The caller; may be empty."""
        return self.request.client_id

    @property
    def ticker(self) -> str:
        """Ticker of the request."""
        return self.request.ticker

    @property
    def period_seconds(self) -> int:
        """Period of the request."""
        return self.request.period_seconds

    @property
    def span(self) -> TimeRange:
        """The requested range."""
        return self.request.span

    @property
    def limit(self) -> int | None:
        """Limit of the request."""
        return self.request.limit

    @property
    def topic(self) -> str:
        """Topic that was named to the client."""
        return self.request.topics[-1]

    @property
    def state(self) -> RequestState:
        """State of the request."""
        return self.progress.state

    @property
    def status(self) -> RequestStatus | None:
        """Final status; None until the request has ended."""
        return self.outcome.status if self.outcome else None

    @property
    def error_message(self) -> str:
        """Reason for a status other than OK; may be empty."""
        return self.outcome.error if self.outcome else ""

    @property
    def row_count(self) -> int:
        """Rows of the answer."""
        return self.outcome.row_count if self.outcome else 0

    @property
    def empty_periods(self) -> int:
        """Periods of the answer that are verified to be without a candle."""
        return self.outcome.empty_periods if self.outcome else 0

    @property
    def missing(self) -> tuple[TimeRange, ...]:
        """Ranges neither committed nor verified empty at the end."""
        return self.outcome.missing if self.outcome else ()

    @property
    def provisional(self) -> tuple[TimeRange, ...]:
        """Verified-empty ranges that were not final at the end."""
        return self.outcome.provisional if self.outcome else ()

    @property
    def revised(self) -> tuple[TimeRange, ...]:
        """Ranges that were verified empty before and now have candles; only of requests of the relay itself."""
        return self.outcome.revised if self.outcome else ()

    @property
    def snapshot_id(self) -> int | None:
        """Snapshot of the table at which the rows were counted."""
        return self.outcome.snapshot_id if self.outcome else None

    @property
    def completed_ns(self) -> int | None:
        """Time of the end; None until then."""
        return self.outcome.completed_ns if self.outcome else None

    @property
    def answered_end_ns(self) -> int | None:
        """End of the answer, exclusive; None until the request has ended."""
        return self.outcome.end_ns if self.outcome else None

    def reason(self) -> str:
        """Return why the request did not end OK, with the missing ranges."""
        text = self.error_message
        if self.status is RequestStatus.NOT_FOUND:
            text = text or f"no {self.request.dataset.rows.removesuffix('s')} of {self.ticker} exists in {self.span}"
        if self.missing and "missing" not in text:
            text = f"{text}{'; ' if text else ''}missing {describe_ranges(self.missing, 5)}"
        return text

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, with times as UTC text."""
        return {
            "request_id": self.request_id,
            "client_id": self.client_id,
            "ticker": self.ticker,
            "period_seconds": self.period_seconds,
            "since": iso(self.span.start_ns),
            "until": iso(self.span.end_ns),
            **({"dataset": self.request.dataset.name} if self.request.dataset.code else {}),
            "limit": self.limit,
            "refresh": self.request.refresh,
            "again": self.request.again,
            "state": self.state.value,
            "status": self.status.value if self.status else None,
            "error_message": self.error_message or None,
            "row_count": self.row_count,
            "empty_periods": self.empty_periods,
            "missing": [range_json(span) for span in self.missing],
            "provisional": [range_json(span) for span in self.provisional],
            "revised": [range_json(span) for span in self.revised],
            "snapshot_id": id_json(self.snapshot_id),
            "topic": self.topic,
            "submitted_at": iso(self.submitted_ns),
            "completed_at": iso(self.completed_ns) if self.completed_ns else None,
            "answered_until": iso(self.answered_end_ns) if self.answered_end_ns else None,
            "settled_periods": self.progress.settled_periods,
            "expected_periods": self.progress.expected_periods,
        }


@dataclass(frozen=True, slots=True)
class Notification:
    """Announcement that a request has ended.

    Attributes:
        cursor: Position from which a subscriber resumes; None if it was made from the record, without a notification.
        request: Without limit and client on the receiver's side.
        outcome: Without missing ranges, empty periods and snapshot on the receiver's side.
        table: Name of the Iceberg table, ``namespace.name``.
    """

    topic: str
    cursor: Cursor | None
    request: HistoryRequest
    outcome: Outcome
    table: str

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.request.request_id

    @property
    def status(self) -> RequestStatus:
        """Final status of the request."""
        return self.outcome.status

    @property
    def row_count(self) -> int:
        """Rows of the answer."""
        return self.outcome.row_count


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt of a job at one ingestor: the range that is still to fetch. The wire calls its id ``job_id``.

    Attributes:
        limit: Stop after this number of rows; 0 for the whole range.
    """

    dispatch_id: str
    request_id: str
    series: Series
    span: TimeRange
    client_id: str = ""
    limit: int = 0

    @property
    def instrument(self) -> Instrument:
        """The instrument of the series."""
        return Instrument.parse(self.series.ticker)

    @property
    def period_seconds(self) -> int:
        """Period of the series."""
        return self.series.period_seconds


@dataclass(frozen=True, slots=True)
class IssuedDispatch:
    """Entry of the relay's ledger for a dispatch that it has issued. It stays after the dispatch has ended.

    Attributes:
        is_realtime: It settles trades and candles of every period of the ticker.
    """

    dispatch_id: str
    series: Series
    span: TimeRange
    is_realtime: bool = False

    def covers(self, series: Series) -> bool:
        """Return whether pages of a series may be of this dispatch."""
        if self.is_realtime:
            return series.ticker == self.series.ticker and series.dataset.in_realtime
        return series == self.series


@dataclass(frozen=True, slots=True)
class PageResult:
    """Result of the pipeline for one page: committed, or refused for a reason.

    Attributes:
        refused: The reason; None for a good page.
        fetched_ns: Time at which the exchange answered, for information only; 0 if it is not known.
        rows: Candles written; 0 for a refused page.
        evidence: Proofs of the page as `proof` encodes them; the relay receives ``provisional`` instead.
        provisional: The part of ``empty`` that no final proof covers, on the relay's side.
    """

    dispatch_id: str
    series: Series
    span: TimeRange
    empty: tuple[TimeRange, ...] = ()
    refused: str | None = None
    fetched_ns: int = 0
    rows: int = 0
    evidence: str = NO_PROOF
    provisional: tuple[TimeRange, ...] = ()

    @property
    def dispatch(self) -> int:
        """Number of the dispatch; InvalidRequest for an id without a number."""
        return number_of(self.dispatch_id)


@dataclass(frozen=True, slots=True)
class FinalResult:
    """The final record of one dispatch that the pipeline has read.

    Attributes:
        total_records: Candles or snapshots of the whole dispatch.
    """

    dispatch_id: str
    status: FinalStatus
    error: str = ""
    total_records: int = 0


def describe_ranges(ranges: Sequence[TimeRange], limit: int) -> str:
    """Return the first ``limit`` ranges as text, with the number of the others."""
    text = ", ".join(map(str, ranges[:limit]))
    rest = len(ranges) - limit
    return f"{text} and {rest} more" if rest > 0 else text


def id_json(number: int | None) -> str | None:
    """Return an id of 64 bits as JSON has it: text, as JavaScript and jq round such a number."""
    return None if number is None else str(number)


def range_json(span: TimeRange) -> dict[str, Any]:
    """Return a range as JSON values, with both forms of its ends."""
    return {"start_ns": span.start_ns, "end_ns": span.end_ns, "since": iso(span.start_ns), "until": iso(span.end_ns)}
