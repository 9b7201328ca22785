"""Spans of the client: one for each history, from its submission to its rows; docs/tracing.md has the whole tree."""

from __future__ import annotations

from dexorder_common import tracing
from dexorder_common.model.history import HistoryRequest
from dexorder_common.tracing import NO_SPAN, Attributes, Kind, Span

HISTORY = "dexorder.history"
READ = "read trading.ohlc"


def history_span(request: HistoryRequest) -> Span:
    """Return the span of a history; it begins a trace unless the application has begun one."""
    if not tracing.is_on():
        return NO_SPAN
    attributes: Attributes = {
        "dexorder.request_id": request.request_id,
        "dexorder.ticker": request.ticker,
        "dexorder.period_seconds": request.period_seconds,
        "dexorder.start_ns": request.start_ns,
        "dexorder.end_ns": request.end_ns,
    }
    return tracing.span(HISTORY, Kind.INTERNAL, attributes, root=True)


def fetch_span(request: HistoryRequest) -> Span:
    """Return the span of a request that is submitted and followed: its own only where nothing is traced yet."""
    return NO_SPAN if tracing.current().context else history_span(request)


def read_span() -> Span:
    """Return the span of reading rows."""
    if not tracing.is_on():
        return NO_SPAN
    return tracing.span(READ, Kind.CLIENT, {"db.system.name": "iceberg", "db.collection.name": "trading.ohlc"})
