"""Protobuf to plain values and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from services.common.lake.catalog import NAMESPACE, OHLC_TABLE
from services.common.lake.coverage import CoverageRow
from services.common.model.errors import InvalidRequest
from services.common.model.history import (
    FinalResult,
    FinalStatus,
    InstrumentList,
    ListedInstrument,
    Notification,
    PageResult,
    Progress,
    Record,
    Submission,
)
from services.common.model.instrument import Instrument, Series
from services.common.model.periods import check_span, total_periods
from services.common.model.time_range import TimeRange
from services.gen.dexorder.ingest.v1 import ingest_pb2
from services.gen.dexorder.relay.v1 import ingestor_service_pb2, pipeline_service_pb2, relay_service_pb2
from services.relay.history.coverage_queries import Known
from services.relay.history.fetch_ohlc import AnswerPage
from services.relay.history.verification import Repair, Step

MOST_UINT32 = 2**32 - 1


def submission(message: ingest_pb2.SubmitHistoricalRequest, *, refresh: bool = False) -> Submission:
    """A request, unchecked; an empty client_id is none."""
    return Submission(
        message.request_id,
        message.ticker,
        message.start_time,
        message.end_time,
        message.period_seconds,
        message.limit if message.HasField("limit") else None,
        message.client_id or None,
        refresh,
    )


def older_submission(message: ingest_pb2.OHLCRequest) -> Submission:
    """The same of the older form, which names no client."""
    return Submission(
        message.request_id,
        message.ticker,
        message.start_time,
        message.end_time,
        message.period_seconds,
        message.limit if message.HasField("limit") else None,
    )


def answer_page(request_id: str, value: AnswerPage) -> ingest_pb2.Response:
    """One page of the older form's answer."""
    return ingest_pb2.Response(
        request_id=request_id,
        status=value.status.value,  # type: ignore[arg-type]
        error_message=value.error or None,
        data=value.candles,
        total_records=None if value.total is None else min(value.total, MOST_UINT32),
        is_final=value.last,
    )


def page_result(message: pipeline_service_pb2.PageResult) -> PageResult:
    """One page of a report.

    Raises:
        InvalidRequest: No ticker, period or range; such a page can't be coverage.
    """
    Instrument.parse(message.ticker)
    span = check_span(message.start_time, message.end_time, message.period_seconds)
    return PageResult(
        message.job_id,
        Series(message.ticker, message.period_seconds),
        span,
        tuple(time_range(part) for part in message.empty),
        (message.refused or "no reason given") if message.HasField("refused") else None,
        message.fetched_at,
    )


def final_result(message: pipeline_service_pb2.FinalResult) -> FinalResult:
    """One final record of a report.

    Raises:
        InvalidRequest: No job_id, or a status this version does not know.
    """
    if not message.job_id or int(message.status) not in set(FinalStatus):
        raise InvalidRequest(f"final of job_id {message.job_id!r} has status {message.status}")
    return FinalResult(message.job_id, FinalStatus(message.status), message.error_message)


def time_range(message: relay_service_pb2.TimeRange | ingestor_service_pb2.ReportPageRequest) -> TimeRange:
    """A half-open range, nanoseconds."""
    return TimeRange(message.start_time, message.end_time)


def listed(message: ingestor_service_pb2.ReportMarketsRequest) -> InstrumentList:
    """An exchange's markets, unchecked."""
    markets = tuple(ListedInstrument(m.ticker, m.active, m.type, m.base, m.quote) for m in message.markets)
    return InstrumentList(markets, message.fetched_at)


def markets(value: InstrumentList) -> relay_service_pb2.ListMarketsResponse:
    """An exchange's markets."""
    return relay_service_pb2.ListMarketsResponse(
        markets=[relay_service_pb2.Market(**each._asdict()) for each in value.markets], fetched_at=value.fetched_ns
    )


def ranges(value: Iterable[TimeRange]) -> list[relay_service_pb2.TimeRange]:
    """Half-open ranges."""
    return [relay_service_pb2.TimeRange(start_time=each.start_ns, end_time=each.end_ns) for each in value]


def coverage_range(value: Known) -> relay_service_pb2.CoverageRange:
    """A range of one kind."""
    return relay_service_pb2.CoverageRange(
        start_time=value.span.start_ns,
        end_time=value.span.end_ns,
        kind=value.kind.value,  # type: ignore[arg-type]
    )


def coverage_page(value: CoverageRow, retracted: Iterable[TimeRange]) -> relay_service_pb2.CoveragePage:
    """A row of the table of coverage, and the parts of it that no longer count."""
    return relay_service_pb2.CoveragePage(
        start_time=value.span.start_ns,
        end_time=value.span.end_ns,
        rows=value.rows,
        empty=ranges(value.empty),
        evidence=value.evidence,
        fetched_at=value.fetched_ns,
        committed_at=value.committed_ns,
        retracted=ranges(retracted),
    )


def verify_progress(value: Step, series: Series) -> relay_service_pb2.VerifyProgress:
    """How far a check is."""
    finding = value.finding
    return relay_service_pb2.VerifyProgress(
        windows=value.windows,
        checked_windows=value.checked,
        rows=finding.rows,
        lost_periods=total_periods(finding.lost, series.period_seconds),
    )


def verify_result(value: Step, series: Series, repair: Repair, most: int) -> relay_service_pb2.VerifyResult:
    """What a check found, at most so many ranges of each kind, and what was done about it."""
    finding, period = value.finding, series.period_seconds
    return relay_service_pb2.VerifyResult(
        checked=ranges([value.span])[0] if value.span else None,
        rows=finding.rows,
        row_periods=finding.row_periods,
        empty_periods=finding.empty_periods,
        lost=ranges(finding.lost[:most]),
        lost_periods=total_periods(finding.lost, period),
        unexpected=ranges(finding.unexpected[:most]),
        unexpected_periods=total_periods(finding.unexpected, period),
        duplicates=ranges(finding.duplicates[:most]),
        surplus_rows=finding.surplus_rows,
        off_grid_rows=finding.off_grid_rows,
        unclaimed_periods=finding.unclaimed_periods,
        repair_request_ids=repair.request_ids,
        repaired_periods=total_periods(repair.spans, period),
    )


def progress(value: Progress) -> relay_service_pb2.Progress:
    """How far a request is."""
    return relay_service_pb2.Progress(
        expected_periods=value.expected_periods,
        settled_periods=value.settled_periods,
        candles=value.candles,
        expected_pages=value.expected_pages,
        settled_pages=value.settled_pages,
        jobs=value.jobs,
        finished_jobs=value.finished_jobs,
        running_jobs=value.running_jobs,
    )


def record(value: Record) -> relay_service_pb2.RequestRecord:
    """One request's record."""
    request = value.submission
    message = relay_service_pb2.RequestRecord(
        request=ingest_pb2.SubmitHistoricalRequest(
            request_id=request.request_id,
            ticker=request.ticker,
            start_time=request.start_ns,
            end_time=request.end_ns,
            period_seconds=request.period_seconds,
            limit=request.limit,
            client_id=request.client_id,
        ),
        state=value.state.value,  # type: ignore[arg-type]
        notification_topic=request.topics[-1],
        submitted_at=value.submitted_ns,
        progress=progress(value.progress),
        refresh=request.refresh,
    )
    if (end := value.outcome) is not None:
        message.status = end.status.value  # type: ignore[assignment]
        message.error_message = end.error
        message.row_count = end.row_count
        message.empty_periods = end.empty_periods
        message.completed_at = end.completed_ns
        message.answered_end_time = end.end_ns
        message.missing.extend(ranges(end.missing))
        if not end.error:
            message.ClearField("error_message")
        if end.snapshot_id is not None:
            message.snapshot_id = end.snapshot_id
    return message


def notification(value: Notification) -> relay_service_pb2.SubscribeNotificationsResponse:
    """One entry of a topic; its end_time is where the answered range ends."""
    request, end = value.submission, value.outcome
    return relay_service_pb2.SubscribeNotificationsResponse(
        cursor=value.cursor,
        notification=ingest_pb2.HistoryReadyNotification(
            request_id=request.request_id,
            ticker=request.ticker,
            period_seconds=request.period_seconds,
            start_time=request.start_ns,
            end_time=end.end_ns,
            status=end.status.value,  # type: ignore[arg-type]
            error_message=end.error or None,
            iceberg_namespace=NAMESPACE,
            iceberg_table=OHLC_TABLE.removeprefix(f"{NAMESPACE}."),
            row_count=min(end.row_count, MOST_UINT32),
            completed_at=end.completed_ns,
        ),
    )
