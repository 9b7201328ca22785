"""Spans of history requests at the relay; docs/tracing.md has the whole tree.

A request may outlive many processes of the relay. So its span is recorded at its end, from its rows in the database,
under an id that every process computes (`LiveRequest.span`); the work for it goes below that id from the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, get_current_span

from dexorder_common import tracing
from dexorder_common.model.dispatch_id import number_of, read_context, trace_of
from dexorder_common.model.history import Outcome, RequestStatus
from dexorder_common.tracing import Attributes
from dexorder_relay.state.request import LiveRequest

REQUEST, SEND, DECIDE = "history request", "send job", "decide outcome"
MAX_LINKS = 32
ROOTS = [
    f"dexorder.relay.v1.{name}"
    for name in (
        "HistoryService/SubmitHistorical",
        "HistoryService/SubmitHistoricalBatch",
        "HistoryService/SnapshotTickers",
        "HistoryService/StreamOhlc",
        "OperatorService/RefreshHistorical",
    )
]
"""Calls that start a trace if their caller does not trace them."""


def submitted_in() -> str:
    """Return as text the context of the span in which a request is submitted now; empty if it is not traced.

    It is the caller's context, if present: the span of the call itself is lost if the relay is killed soon.
    """
    span = get_current_span()
    context = tracing.caller_of(span) or tracing.context_of(span)
    return context.text if context else ""


def record_dispatch(dispatch_id: str, exchange: str, times_ns: tuple[int, int]) -> None:
    """Record that a dispatch was sent to an ingestor."""
    if tracing.is_on() and (request := trace_of(dispatch_id)):
        attributes: Attributes = {
            "messaging.system": "zeromq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": exchange,
            "dexorder.dispatch": number_of(dispatch_id),
        }
        tracing.record(SEND, SpanKind.PRODUCER, request, times_ns, attributes)


def deciding(live: LiveRequest) -> AbstractContextManager[Span]:
    """Return the span of one attempt to work out the outcome of a request."""
    return tracing.span(DECIDE, parent=live.span) if live.span else nullcontext(INVALID_SPAN)


def record_request(live: LiveRequest, outcome: Outcome, job_traces: Iterable[str], *, end_ns: int) -> None:
    """Record a request after its outcome is on disk.

    Args:
        job_traces: Traces of its jobs. Another request may have created a job that it waited for: it has a link there.
    """
    own, parent = live.span, read_context(live.trace)
    if not tracing.is_on() or own is None or parent is None:
        return
    request = live.request
    others = [context for text in dict.fromkeys(job_traces) if (context := read_context(text)) and context != own]
    tracing.record(
        REQUEST,
        SpanKind.INTERNAL,
        parent,
        (live.submitted_ns, end_ns),
        {
            "dexorder.request_id": request.request_id,
            "dexorder.ticker": request.ticker,
            "dexorder.period_seconds": request.period_seconds,
            "dexorder.start_ns": request.start_ns,
            "dexorder.end_ns": outcome.end_ns,
            "dexorder.status": outcome.status.name,
            "dexorder.rows": outcome.row_count,
            "dexorder.jobs": len(live.jobs),
        },
        span_id=own.span_id,
        links=others[:MAX_LINKS],
        error_type="" if outcome.status in (RequestStatus.OK, RequestStatus.NOT_FOUND) else outcome.status.name,
    )
