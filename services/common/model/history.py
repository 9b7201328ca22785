"""What the relay's rooms pass to each other. Plain values; protobuf stops at ``service.py`` and ``broker.py``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange


class ListedInstrument(NamedTuple):
    """A market as its exchange lists it; fields of the proto's Market."""

    ticker: str
    active: bool
    type: str
    base: str
    quote: str


class InstrumentList(NamedTuple):
    """All markets of an exchange, by ticker, and when an ingestor had them from it."""

    markets: tuple[ListedInstrument, ...]
    fetched_ns: int


class RequestState(IntEnum):
    """Where a request is in its life; numbers of the proto's RequestState."""

    QUEUED = 1
    RUNNING = 2
    FINISHED = 3


class RequestStatus(IntEnum):
    """How a request ended; numbers of the proto's NotificationStatus."""

    OK = 0
    NOT_FOUND = 1
    ERROR = 2
    TIMEOUT = 3


class FinalStatus(IntEnum):
    """How a dispatch ended; numbers of the proto's ResponseStatus."""

    OK = 0
    NOT_FOUND = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as a client made it; two are the same request when all fields are equal.

    Attributes:
        refresh: Coverage of its range is taken back before it is planned.
    """

    request_id: str
    ticker: str
    start_ns: int
    end_ns: int
    period_seconds: int
    limit: int | None = None
    client_id: str | None = None
    refresh: bool = False

    @property
    def series(self) -> Series:
        """Its series."""
        return Series(self.ticker, self.period_seconds)

    @property
    def span(self) -> TimeRange:
        """Its whole range; valid only after ``requests.check``."""
        return TimeRange(self.start_ns, self.end_ns)

    @property
    def topics(self) -> tuple[str, ...]:
        """Where its end is announced; the last one is the topic the client is told."""
        own = f"HISTORY_READY:{self.request_id}"
        return (own, f"RESPONSE:{self.client_id}") if self.client_id else (own,)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is; counts settled periods, so nothing counts twice."""

    expected_periods: int
    settled_periods: int
    candles: int
    expected_pages: int
    settled_pages: int
    jobs: int
    finished_jobs: int
    running_jobs: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one end of a request.

    Attributes:
        end_ns: Where the answered range ends; before the asked end only where ``limit`` was reached.
        snapshot_id: The table's snapshot at which ``row_count`` was counted.
    """

    status: RequestStatus
    error: str
    end_ns: int
    completed_ns: int
    row_count: int = 0
    empty_periods: int = 0
    missing: tuple[TimeRange, ...] = ()
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One request as the relay keeps it; ``outcome`` only in state FINISHED."""

    submission: Submission
    submitted_ns: int
    state: RequestState
    progress: Progress
    outcome: Outcome | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Notification:
    """One entry of a topic's log."""

    cursor: int
    submission: Submission
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A job on its way to an ingestor: the sub-range that is still wanted, under a fresh job_id."""

    dispatch_id: str
    request_id: str
    series: Series
    span: TimeRange
    client_id: str | None


@dataclass(frozen=True, slots=True)
class PageResult:
    """One page as Spark committed or refused it.

    Attributes:
        refused: The reason; None for a good page.
        fetched_ns: When the exchange answered; 0 when that is not known.
        rows: Candles written; 0 for a refused page.
    """

    dispatch_id: str
    series: Series
    span: TimeRange
    empty: tuple[TimeRange, ...] = ()
    refused: str | None = None
    fetched_ns: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class FinalResult:
    """The final record of one dispatch, as Spark read it."""

    dispatch_id: str
    status: FinalStatus
    error: str = ""
