"""Spans of a batch of the pipeline, one in the trace of each request with records in it.

A batch has records of many requests. Each of their traces gets the batch's times, and the records and rows that belong
to the request. Workers that read and decode record no spans: the driver's spans include their time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.trace import SpanKind

from dexorder_common import tracing
from dexorder_common.model.dispatch_id import TraceContext, trace_of
from dexorder_common.model.history import PageResult
from dexorder_common.tracing import Attributes
from dexorder_spark.records.reporter import FinalReport

MAX_TRACES = 32
"""Traces that get spans of one batch; the batch's span in each of them says how many it has."""


@dataclass(frozen=True)
class BatchTimes:
    """Wall clock times of the steps of a batch, in nanoseconds."""

    began_ns: int
    decoded_ns: int
    committed_ns: int
    reported_ns: int


@dataclass
class _Share:
    records: int = 0
    rows: int = 0


def record_batch(
    topic: str,
    table: str,
    pages: Iterable[PageResult],
    finals: Iterable[FinalReport],
    times: BatchTimes,
    *,
    operation: str,
    snapshot_id: int | None,
) -> None:
    """Record a batch that is committed and reported.

    Args:
        pages: Those that count.
        operation: How the rows were written.
    """
    if not tracing.is_on():
        return
    shares = _shares(pages, finals)
    for request, share in list(shares.items())[:MAX_TRACES]:
        attributes: Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.batch.message_count": share.records,
            "dexorder.rows": share.rows,
            "dexorder.traces_in_batch": len(shares),
        }
        whole = (times.began_ns, times.reported_ns)
        batch = tracing.record(f"process {topic}", SpanKind.CONSUMER, request, whole, attributes)
        if batch is None:
            continue
        tracing.record("decode", SpanKind.INTERNAL, batch, (times.began_ns, times.decoded_ns))
        tracing.record(
            f"commit {table}",
            SpanKind.CLIENT,
            batch,
            (times.decoded_ns, times.committed_ns),
            _database(table, operation, snapshot_id),
        )
        tracing.record("report to the relay", SpanKind.INTERNAL, batch, (times.committed_ns, times.reported_ns))


def _database(table: str, operation: str, snapshot_id: int | None) -> Attributes:
    snapshot = {} if snapshot_id is None else {"dexorder.snapshot_id": str(snapshot_id)}
    return {"db.system.name": "iceberg", "db.collection.name": table, "db.operation.name": operation} | snapshot


def _shares(pages: Iterable[PageResult], finals: Iterable[FinalReport]) -> dict[TraceContext, _Share]:
    shares: dict[TraceContext, _Share] = {}
    for dispatch_id, rows in [
        *((page.dispatch_id, page.rows) for page in pages),
        *((f.dispatch_id, 0) for f in finals),
    ]:
        if request := trace_of(dispatch_id):
            share = shares.setdefault(request, _Share())
            share.records += 1
            share.rows += rows
    return shares
