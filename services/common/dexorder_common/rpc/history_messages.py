"""Conversion between the values of ``dexorder_common/model`` and the relay's protobuf messages, for both ends.

Decoding does not validate a client's request: ``dexorder_relay/state/request.py`` does, so that a request with an
invalid field is answered like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dexorder_common.model.datasets import TICKERS, TRADES
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import (
    Delay,
    FinalResult,
    FinalStatus,
    HistoryRequest,
    IssuedDispatch,
    Notification,
    Outcome,
    PageResult,
    Progress,
    RequestRecord,
    RequestState,
    RequestStatus,
)
from dexorder_common.model.instrument import (
    CandleOffer,
    Instrument,
    InstrumentKind,
    InstrumentList,
    ListedInstrument,
    Series,
)
from dexorder_common.model.periods import check_span
from dexorder_common.model.proof import proofs_of, provisional_ranges
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc.common_messages import (
    decode_cursor,
    decode_ranges,
    decode_series,
    encode_cursor,
    encode_ranges,
    encode_series,
)
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2, pipeline_service_pb2

MAX_UINT32 = 2**32 - 1
MAX_REASON = 500
"""Characters of a delay's reason that are kept."""
MAX_NAMED_RANGES = 10_000
"""Missing or revised ranges that an answer names: three such lists are less than a megabyte."""
_PROGRESS = set(history_pb.Progress.DESCRIPTOR.fields_by_name) - {"delay"}
_OPTIONAL = ListedInstrument._fields[5:]
_KINDS = {each: history_pb.InstrumentKind.Value(f"INSTRUMENT_KIND_{each.name}") for each in InstrumentKind}
_KINDS_BY_NUMBER = {number: kind for kind, number in _KINDS.items()}
_OFFER = set(history_pb.CandleOffer.DESCRIPTOR.fields_by_name) - {"period_seconds", "volume_tolerance"}


def encode_request(request: HistoryRequest) -> ingest_pb2.SubmitHistoricalRequest:
    """Return the message that submits a request; ``refresh`` is not in it but chooses the RPC."""
    return ingest_pb2.SubmitHistoricalRequest(
        request_id=request.request_id,
        ticker=request.ticker,
        start_time=request.start_ns,
        end_time=request.end_ns,
        period_seconds=request.period_seconds,
        limit=request.limit,
        client_id=request.client_id or None,
        dataset=request.dataset.code or None,
    )


def decode_request(
    message: ingest_pb2.SubmitHistoricalRequest | ingest_pb2.OHLCRequest, *, refresh: bool = False
) -> HistoryRequest:
    """Return a request; only its dataset is checked. The older form of the message names no client and no dataset."""
    client_id, dataset = "", ""
    if isinstance(message, ingest_pb2.SubmitHistoricalRequest):
        client_id, dataset = message.client_id, message.dataset
    return HistoryRequest(
        message.request_id,
        message.ticker,
        message.start_time,
        message.end_time,
        message.period_seconds,
        message.limit if message.HasField("limit") else None,
        client_id,
        refresh,
        dataset=Series.decode(message.ticker, message.period_seconds, dataset).dataset,
    )


def encode_snapshot_request(request: HistoryRequest) -> history_pb.SnapshotTickersRequest:
    """Return the message that submits a request for the tickers of an exchange."""
    venue, client_id = request.series.exchange, request.client_id or None
    return history_pb.SnapshotTickersRequest(request_id=request.request_id, exchange=venue, client_id=client_id)


def decode_snapshot_request(message: history_pb.SnapshotTickersRequest) -> HistoryRequest:
    """Return a request for the tickers of an exchange, unchecked."""
    return HistoryRequest.of_exchange(message.request_id, message.exchange, TICKERS, message.client_id)


def encode_progress(progress: Progress) -> history_pb.Progress:
    """Return the progress without its state, which has its own field beside it."""
    return history_pb.Progress(**fields_of(progress, _PROGRESS), delay=encode_delay(progress.delay))


def decode_progress(state: history_pb.RequestState.ValueType, message: history_pb.Progress) -> Progress:
    """Return the progress in a record or in a message of a stream."""
    delay = decode_delay(message.delay) if message.HasField("delay") else None
    return Progress(RequestState.from_number(state), **fields_of(message, _PROGRESS), delay=delay)


def encode_delay(delay: Delay | None) -> history_pb.Delay | None:
    """Return the reason that holds up a dispatch."""
    if delay is None:
        return None
    return history_pb.Delay(
        reason=delay.reason,
        retries=delay.retries,
        next_attempt_ns=delay.next_attempt_ns or None,
        banned_until_ns=delay.banned_until_ns or None,
    )


def decode_delay(message: history_pb.Delay) -> Delay:
    """Return the reason that holds up a dispatch; InvalidRequest if a time is too large."""
    for field in ("next_attempt_ns", "banned_until_ns"):
        if (time_ns := getattr(message, field)) > MAX_TIME_NS:
            raise InvalidRequest(f"delay.{field} {time_ns} is larger than {MAX_TIME_NS}")
    return Delay(message.reason[:MAX_REASON], message.retries, message.next_attempt_ns, message.banned_until_ns)


def encode_state(state: RequestState) -> history_pb.RequestState.ValueType:
    """Return the number of a state."""
    return history_pb.RequestState.ValueType(state.number)


def encode_record(record: RequestRecord) -> history_pb.RequestRecord:
    """Return the record of a request."""
    end = record.outcome
    given = record.request
    of_exchange = given.dataset.whole_exchange
    message = history_pb.RequestRecord(
        request=None if of_exchange else encode_request(given),
        snapshot=encode_snapshot_request(given) if of_exchange else None,
        state=encode_state(record.state),
        notification_topic=record.topic,
        submitted_ns=record.submitted_ns,
        progress=encode_progress(record.progress),
        refresh=given.refresh,
        recheck=given.again,
        missing=encode_ranges(record.missing[:MAX_NAMED_RANGES]),
        provisional=encode_ranges(record.provisional),
        revised=encode_ranges(end.revised[:MAX_NAMED_RANGES] if end else ()),
    )
    if end is not None:
        message.status = _encode_status(end.status)
        message.row_count = end.row_count
        message.empty_periods = end.empty_periods
        message.completed_ns = end.completed_ns
        message.answered_end_ns = end.end_ns
        if end.error:
            message.error_message = end.error
        if end.snapshot_id is not None:
            message.snapshot_id = end.snapshot_id
    return message


def decode_record(message: history_pb.RequestRecord) -> RequestRecord:
    """Return the record of a request."""
    if message.HasField("snapshot"):
        request = decode_snapshot_request(message.snapshot)
    else:
        request = replace(decode_request(message.request, refresh=message.refresh), again=message.recheck)
    outcome = Outcome(
        status=RequestStatus.from_number(message.status),
        error=message.error_message,
        end_ns=message.answered_end_ns if message.HasField("answered_end_ns") else request.end_ns,
        completed_ns=message.completed_ns,
        row_count=message.row_count,
        empty_periods=message.empty_periods,
        missing=decode_ranges(message.missing),
        snapshot_id=message.snapshot_id if message.HasField("snapshot_id") else None,
        provisional=decode_ranges(message.provisional),
        revised=decode_ranges(message.revised),
    )
    return RequestRecord(
        request,
        message.submitted_ns,
        decode_progress(message.state, message.progress),
        outcome if message.HasField("status") else None,
    )


def encode_notification(notification: Notification) -> history_pb.Notification:
    """Return one entry of a topic; its ``end_time`` is the end of the answer."""
    request, end = notification.request, notification.outcome
    namespace, _, table = notification.table.partition(".")
    return history_pb.Notification(
        cursor=encode_cursor(notification.cursor),
        ready=ingest_pb2.HistoryReadyNotification(
            request_id=request.request_id,
            ticker=request.ticker,
            period_seconds=request.period_seconds,
            start_time=request.start_ns,
            end_time=end.end_ns,
            status=_encode_status(end.status),
            error_message=end.error or None,
            iceberg_namespace=namespace,
            iceberg_table=table,
            row_count=min(end.row_count, MAX_UINT32),
            completed_at=end.completed_ns,
            dataset=request.dataset.code or None,
        ),
        provisional=encode_ranges(end.provisional),
        revised=encode_ranges(end.revised[:MAX_NAMED_RANGES]),
    )


def decode_notification(topic: str, message: history_pb.Notification) -> Notification:
    """Return one entry of a topic."""
    note = message.ready
    status = RequestStatus.from_number(note.status)
    dataset = Series.decode(note.ticker, note.period_seconds, note.dataset).dataset
    times = note.start_time, note.end_time
    return Notification(
        topic,
        decode_cursor(message.cursor),
        HistoryRequest(note.request_id, note.ticker, *times, note.period_seconds, dataset=dataset),
        Outcome(
            status,
            note.error_message,
            note.end_time,
            note.completed_at,
            note.row_count,
            provisional=decode_ranges(message.provisional),
            revised=decode_ranges(message.revised),
        ),
        f"{note.iceberg_namespace}.{note.iceberg_table}",
    )


def encode_instrument(listed: ListedInstrument) -> history_pb.Instrument:
    """Return one instrument of a venue."""
    return history_pb.Instrument(**{**listed._asdict(), "kind": _KINDS[listed.kind] if listed.kind else None})


def decode_instrument(message: history_pb.Instrument) -> ListedInstrument:
    """Return one instrument of a venue, unchecked; a kind that only newer servers know is None."""
    kind = _KINDS_BY_NUMBER.get(message.kind)
    given = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}  # type: ignore[arg-type]
    return ListedInstrument(message.ticker, message.active, kind, message.base or None, message.quote or None, **given)


def encode_candle_offer(offer: CandleOffer) -> history_pb.CandleOffer:
    """Return the candles that an exchange offers."""
    return history_pb.CandleOffer(**offer._asdict())


def decode_instruments(
    venue: str, message: ingestor_service_pb2.ReportInstrumentsRequest | history_pb.ListInstrumentsResponse
) -> InstrumentList:
    """Return the instruments of a venue, or of a page of them, unchecked."""
    offer = _decode_candle_offer(message.candles) if message.HasField("candles") else None
    return InstrumentList(venue, tuple(map(decode_instrument, message.instruments)), message.fetched_ns, offer)


def _decode_candle_offer(message: history_pb.CandleOffer) -> CandleOffer:
    tolerance = message.volume_tolerance if message.HasField("volume_tolerance") else None
    return CandleOffer(tuple(message.period_seconds), **fields_of(message, _OFFER), volume_tolerance=tolerance)


def encode_page_result(page: PageResult) -> pipeline_service_pb2.PageResult:
    """Return one page of a report."""
    return pipeline_service_pb2.PageResult(
        job_id=page.dispatch_id,
        series=encode_series(page.series),
        start_ns=page.span.start_ns,
        end_ns=page.span.end_ns,
        rows=page.rows,
        refused=page.refused,
        fetched_ns=page.fetched_ns or None,
        empty=encode_ranges(page.empty),
        provisional=encode_ranges(provisional_ranges(proofs_of(page.evidence), page.empty)),
    )


def decode_page_result(message: pipeline_service_pb2.PageResult) -> PageResult:
    """Return one page of a report; InvalidRequest if its id, ticker, period or range is invalid."""
    number_of(message.job_id)
    series = decode_series(message.series)
    Instrument.parse(series.ticker)
    start_ns, end_ns = message.start_ns, message.end_ns
    return PageResult(
        message.job_id,
        series,
        check_span(start_ns, end_ns, series.period_seconds)
        if series.dataset.has_periods
        else TimeRange(start_ns, end_ns),
        decode_ranges(message.empty),
        (message.refused or "no reason given") if message.HasField("refused") else None,
        message.fetched_ns,
        message.rows,
        provisional=decode_ranges(message.provisional),
    )


def encode_issued_dispatch(dispatch: IssuedDispatch) -> pipeline_service_pb2.IssuedDispatch:
    """Return one dispatch of an answer."""
    message = pipeline_service_pb2.IssuedDispatch(
        job_id=dispatch.dispatch_id, start_ns=dispatch.span.start_ns, end_ns=dispatch.span.end_ns
    )
    if dispatch.is_realtime:
        message.realtime_ticker = dispatch.series.ticker
    else:
        message.series.CopyFrom(encode_series(dispatch.series))
    return message


def decode_issued_dispatch(message: pipeline_service_pb2.IssuedDispatch) -> IssuedDispatch:
    """Return one dispatch of an answer."""
    is_realtime = message.HasField("realtime_ticker")
    series = Series(message.realtime_ticker, 0, TRADES) if is_realtime else decode_series(message.series)
    return IssuedDispatch(message.job_id, series, TimeRange(message.start_ns, message.end_ns), is_realtime)


def decode_final_result(message: pipeline_service_pb2.FinalResult) -> FinalResult:
    """Return one final record of a report; InvalidRequest if the job_id is missing or the status is unknown."""
    if not message.job_id or int(message.status) not in set(FinalStatus):
        raise InvalidRequest(f"final of job_id {message.job_id!r} has status {message.status}")
    total = min(message.total_records, MAX_TIME_NS)
    return FinalResult(message.job_id, FinalStatus(message.status), message.error_message, total)


def _encode_status(status: RequestStatus) -> ingest_pb2.HistoryReadyNotification.NotificationStatus.ValueType:
    return ingest_pb2.HistoryReadyNotification.NotificationStatus.ValueType(status.number)


def fields_of(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Return fields that have the same names in a value and in its message."""
    return {name: getattr(source, name) for name in names}
