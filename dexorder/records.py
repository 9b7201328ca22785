"""What the relay tells clients, as plain values; protobuf stops here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from services.common.model.time_range import TimeRange
from services.common.model.times import iso
from services.gen.dexorder.ingest.v1 import ingest_pb2
from services.gen.dexorder.relay.v1 import relay_service_pb2 as pb


class State(StrEnum):
    """Where a request is in its life."""

    UNSPECIFIED = "UNSPECIFIED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


class Status(StrEnum):
    """How a request has ended."""

    OK = "OK"
    NOT_FOUND = "NOT_FOUND"
    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is; periods are settled by a candle or by the proof that there is none."""

    state: State
    expected_periods: int
    settled_periods: int
    candles: int
    expected_pages: int
    settled_pages: int
    jobs: int
    finished_jobs: int
    running_jobs: int


@dataclass(frozen=True, slots=True)
class Notification:
    """The announcement that a request has ended.

    Attributes:
        topic: The topic it came on.
        cursor: Its position there; 0 when it was made from the record because none came.
        table: The Iceberg table, ``namespace.name``.
    """

    topic: str
    cursor: int
    request_id: str
    status: Status
    error_message: str
    row_count: int
    table: str
    completed_ns: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as the relay keeps it.

    Attributes:
        span: The requested range, half open, nanoseconds.
        status: None until the request has ended.
        empty_periods: Periods of the range verified to have no candle.
        missing: Ranges neither committed nor verified empty at the end.
        snapshot_id: The table's snapshot at which ``row_count`` was counted; None when it has none.
        answered_end_ns: Where the answer ends, exclusive: ``span``'s end, or with a limit the end of the last candle it
            counts; None until the request has ended.
        refresh: Whether its range was to be fetched anew.
    """

    request_id: str
    client_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    limit: int | None
    state: State
    status: Status | None
    error_message: str
    row_count: int
    empty_periods: int
    missing: tuple[TimeRange, ...]
    snapshot_id: int | None
    topic: str
    submitted_ns: int
    completed_ns: int | None
    progress: Progress
    answered_end_ns: int | None = None
    refresh: bool = False

    def missing_text(self, most: int = 5) -> str:
        """The missing ranges for a message; the first ``most`` of them, then how many more."""
        shown = ", ".join(map(str, self.missing[:most]))
        more = len(self.missing) - most
        return f"{shown} and {more} more" if more > 0 else shown

    def reason(self) -> str:
        """Why it did not end OK, with what is missing."""
        text = self.error_message
        if self.status is Status.NOT_FOUND:
            text = text or f"no candle of {self.ticker} exists in {self.span}"
        if self.missing and "missing" not in text:
            text = f"{text}{'; ' if text else ''}missing {self.missing_text()}"
        return text

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; times as UTC text."""
        return {
            "request_id": self.request_id,
            "client_id": self.client_id,
            "ticker": self.ticker,
            "period_seconds": self.period_seconds,
            "since": iso(self.span.start_ns),
            "until": iso(self.span.end_ns),
            "limit": self.limit,
            "refresh": self.refresh,
            "state": self.state.value,
            "status": self.status.value if self.status else None,
            "error_message": self.error_message or None,
            "row_count": self.row_count,
            "empty_periods": self.empty_periods,
            "missing": [ranges_json(r) for r in self.missing],
            "snapshot_id": self.snapshot_id,
            "topic": self.topic,
            "submitted_at": iso(self.submitted_ns),
            "completed_at": iso(self.completed_ns) if self.completed_ns else None,
            "answered_until": iso(self.answered_end_ns) if self.answered_end_ns else None,
            "settled_periods": self.progress.settled_periods,
            "expected_periods": self.progress.expected_periods,
        }


@dataclass(frozen=True, slots=True)
class Market:
    """One market of a venue.

    Attributes:
        ticker: As requests take it.
        active: Whether it is traded now; history may be there either way.
        type: spot, swap, future or option.
    """

    ticker: str
    active: bool
    type: str
    base: str
    quote: str


@dataclass(frozen=True, slots=True)
class MarketList:
    """A venue's markets by ticker, and when an ingestor had them from the exchange (nanoseconds)."""

    venue: str
    markets: tuple[Market, ...]
    fetched_ns: int


def ranges_json(span: TimeRange) -> dict[str, Any]:
    """A range with both forms of its ends."""
    return {"start_ns": span.start_ns, "end_ns": span.end_ns, "since": iso(span.start_ns), "until": iso(span.end_ns)}


def progress_from(state: pb.RequestState.ValueType, message: pb.Progress) -> Progress:
    """The progress in a record or a stream's message."""
    return Progress(
        _state(state),
        message.expected_periods,
        message.settled_periods,
        message.candles,
        message.expected_pages,
        message.settled_pages,
        message.jobs,
        message.finished_jobs,
        message.running_jobs,
    )


def record_from(message: pb.RequestRecord) -> RequestRecord:
    """The record in an answer."""
    request = message.request
    return RequestRecord(
        request_id=request.request_id,
        client_id=request.client_id,
        ticker=request.ticker,
        period_seconds=request.period_seconds,
        span=TimeRange(request.start_time, request.end_time),
        limit=request.limit if request.HasField("limit") else None,
        state=_state(message.state),
        status=_status(message.status) if message.HasField("status") else None,
        error_message=message.error_message,
        row_count=message.row_count,
        empty_periods=message.empty_periods,
        missing=tuple(TimeRange(r.start_time, r.end_time) for r in message.missing),
        snapshot_id=message.snapshot_id if message.HasField("snapshot_id") else None,
        topic=message.notification_topic,
        submitted_ns=message.submitted_at,
        completed_ns=message.completed_at if message.HasField("completed_at") else None,
        progress=progress_from(message.state, message.progress),
        answered_end_ns=message.answered_end_time if message.HasField("answered_end_time") else None,
        refresh=message.refresh,
    )


def notification_from(topic: str, message: pb.SubscribeNotificationsResponse) -> Notification:
    """The notification in a stream's message."""
    note = message.notification
    return Notification(
        topic,
        message.cursor,
        note.request_id,
        _status(note.status),
        note.error_message,
        note.row_count,
        f"{note.iceberg_namespace}.{note.iceberg_table}",
        note.completed_at,
    )


def markets_from(venue: str, message: pb.ListMarketsResponse) -> MarketList:
    """The markets in an answer."""
    markets = (Market(m.ticker, m.active, m.type, m.base, m.quote) for m in message.markets)
    return MarketList(venue, tuple(markets), message.fetched_at)


def _state(value: pb.RequestState.ValueType) -> State:
    return State(pb.RequestState.Name(value).removeprefix("REQUEST_STATE_"))


def _status(value: ingest_pb2.HistoryReadyNotification.NotificationStatus.ValueType) -> Status:
    return Status(ingest_pb2.HistoryReadyNotification.NotificationStatus.Name(value))
