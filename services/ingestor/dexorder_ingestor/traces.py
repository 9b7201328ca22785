"""Spans of dispatches at the ingestor; docs/tracing.md has the whole tree.

The id of a dispatch carries its trace. Realtime jobs do not end, and are not traced: each of their records would need a
separate trace, and no caller waits for it.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlsplit

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind

from dexorder_common import tracing
from dexorder_common.model.dispatch_id import number_of, trace_of
from dexorder_common.tracing import Attributes

JOB, CALL = "process job", "exchange call"
MAX_SPANS = 200
"""Spans inside a dispatch's span; the others are counted in its attribute ``dexorder.spans_left_out``."""


def trace_id_of(dispatch_id: str) -> str:
    """Return the id for log lines and the header ``dx-trace``: the trace's, or a new one without a trace."""
    context = trace_of(dispatch_id)
    return context.trace_id if context else uuid.uuid4().hex


def job_span(dispatch_id: str, venue: str) -> AbstractContextManager[Span]:
    """Return the span of a dispatch of history or of a snapshot of tickers."""
    request = trace_of(dispatch_id)
    if request is None:  # the id may be another relay's, without a number
        return nullcontext(INVALID_SPAN)
    attributes: Attributes = {
        "messaging.system": "zeromq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": venue,
        "dexorder.dispatch": number_of(dispatch_id),
    }
    return tracing.span(JOB, SpanKind.CONSUMER, attributes, parent=request, limit=MAX_SPANS)


def call_span(venue: str, address: str) -> AbstractContextManager[Span]:
    """Return the span of one call of an exchange at ``host:port``.

    The URL is not recorded because it may hold secrets.
    """
    place = urlsplit(f"//{address}")
    attributes: dict[str, str | int] = {"dexorder.exchange": venue, "server.address": place.hostname or ""}
    if place.port:
        attributes["server.port"] = place.port
    return tracing.span(CALL, SpanKind.CLIENT, attributes)


def send_span(topic: str, cluster: str) -> AbstractContextManager[Span]:
    """Return the span of a record on its way to Kafka."""
    attributes: Attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "dexorder.cluster": cluster,
    }
    return tracing.span(f"send {topic}", SpanKind.PRODUCER, attributes)
