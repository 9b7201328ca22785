"""Changes of the state as SQL statements, in the order of the changes. Pure: statements are data until they are run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import singledispatch
from typing import Any

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import RequestState
from dexorder_common.model.realtime import StartedSubscription
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state import changes as made
from dexorder_relay.state.job import Job
from dexorder_relay.state.realtime_job import RealtimeJob
from dexorder_relay.state.realtime_registry import HistoryPart
from dexorder_relay.store import schema
from dexorder_relay.store.rows import Columns, Statement, delete, insert, update, upsert

_ANNOUNCE_REVISED = (
    "WITH found (start_ns, end_ns) AS MATERIALIZED"
    " (SELECT json_extract(value, '$.start_ns'), json_extract(value, '$.end_ns') FROM json_each(?))"
    " INSERT INTO notifications (topic, request_id) SELECT DISTINCT 'RESPONSE:' || client_id, ?"
    " FROM requests JOIN json_each(requests.provisional) AS named JOIN found"
    " ON json_extract(named.value, '$.start_ns') < found.end_ns"
    " AND json_extract(named.value, '$.end_ns') > found.start_ns"
    " WHERE ticker = ? AND period_seconds = ? AND dataset = ? AND client_id != ''"
)
_REPLACE_UNLESS_OLDER = (
    "ON CONFLICT (venue) DO UPDATE SET markets = excluded.markets, fetched_ns = excluded.fetched_ns,"
    " candles = excluded.candles WHERE excluded.fetched_ns >= fetched_ns"
)
_END_DISPATCH = "UPDATE dispatches SET job_id = NULL, issued_ns = max(issued_ns, ?) WHERE number = ?"


_STORED: dict[type, tuple[str, Columns[Any], str]] = {
    Job: ("jobs", schema.JOB, "OR REPLACE"),
    RealtimeJob: ("realtime_jobs", schema.REALTIME_JOB, "OR REPLACE"),
    StartedSubscription: ("subscriptions", schema.SUBSCRIPTION, ""),
    HistoryPart: ("realtime_history", schema.HISTORY_PART, "OR REPLACE"),
    Retraction: ("retractions", schema.RETRACTION, "OR IGNORE"),
    UdfRegistration: ("udfs", schema.UDF, "OR REPLACE"),
}
"""Table and columns of each type, and what happens to a row with the same key."""


def statements(changes: Iterable[made.StateChange]) -> list[Statement]:
    """Return the statements that make changes durable."""
    return [statement for change in changes for statement in _write(change)]


@singledispatch
def _write(change: object) -> Iterable[Statement]:
    raise TypeError(f"{type(change).__name__} has no statement")


@_write.register
def _(change: made.ValueStored) -> Iterator[Statement]:
    table, columns, conflict = _STORED[type(change.value)]
    yield insert(table, columns.values(change.value), conflict=conflict)


@_write.register
def _(change: made.RequestAccepted) -> Iterator[Statement]:
    yield insert("requests", schema.REQUEST.values(change.live.request) | schema.LIVE.values(change.live))


@_write.register
def _(change: made.RequestChanged) -> Iterator[Statement]:
    live = schema.LIVE.values(change.live)
    changed = {name: live[name] for name in ("state", "planned_end_ns")}
    yield update("requests", changed, request_id=change.live.request.request_id)


@_write.register
def _(change: made.RequestEnded) -> Iterator[Statement]:
    request, finished = change.request, RequestState.FINISHED
    progress = schema.PROGRESS.values(replace(change, progress=replace(change.progress, state=finished, delay=None)))
    ended = {"state": finished, **progress, **schema.OUTCOME.values(change.outcome)}
    sql, values = update("requests", ended, request_id=request.request_id)
    yield f"{sql} AND status IS NULL", values
    for topic in request.topics:
        yield insert("notifications", {"topic": topic, "request_id": request.request_id})
    yield delete("attachments", request_id=request.request_id)


@_write.register
def _(change: made.RequestRevised) -> Iterator[Statement]:
    request = change.request
    yield insert("notifications", {"topic": f"REVISED:{request.ticker}", "request_id": request.request_id})
    spans = json.dumps([schema.TIME_RANGE.values(each) for each in change.spans])
    yield _ANNOUNCE_REVISED, (spans, request.request_id, *schema.SERIES.values(request.series).values())


@_write.register
def _(change: made.RequestAttached) -> Iterator[Statement]:
    row = {"request_id": change.request_id, "job_id": change.job_id}
    yield insert("attachments", row, conflict="OR IGNORE")


@_write.register
def _(change: made.JobForgotten) -> Iterator[Statement]:
    yield delete("jobs", id=change.job_id)
    yield delete("attachments", job_id=change.job_id)
    yield update("dispatches", {"job_id": None}, job_id=change.job_id)
    yield delete("ranges", owner=schema.owner_of(change.job_id))


@_write.register
def _(change: made.DispatchIssued) -> Iterator[Statement]:
    number = number_of(change.dispatch.dispatch_id)
    ledger = {"number": number, "job_id": change.job_id, "issued_ns": change.issued_ns}
    yield insert("dispatches", ledger | schema.DISPATCH.values(change.dispatch))
    yield upsert("meta", {"name": schema.LAST_NUMBER, "value": number})


@_write.register
def _(change: made.DispatchEnded) -> Iterator[Statement]:
    yield _END_DISPATCH, (change.ended_ns, number_of(change.dispatch_id))


@_write.register
def _(change: made.RangesChanged) -> Iterator[Statement]:
    key = {"owner": schema.owner_of(change.owner), "kind": change.kind}
    for part in change.diff.removed:
        yield delete("ranges", **key, start_ns=part.start_ns)
    for part in change.diff.added:
        yield insert("ranges", {**key, "start_ns": part.start_ns, "end_ns": part.end_ns})


@_write.register
def _(change: made.AbsencesChanged) -> Iterator[Statement]:
    series = schema.SERIES.values(change.series)
    for each in change.change.removed:
        yield delete("provisional", **series, start_ns=each.span.start_ns)
    for each in change.change.added:
        yield insert("provisional", series | schema.ABSENCE.values(each))


@_write.register
def _(change: made.CoverageRead) -> Iterator[Statement]:
    yield upsert("meta", {"name": schema.COVERAGE_READ, "value": change.read_ns})


@_write.register
def _(change: made.InstrumentsReported) -> Iterator[Statement]:
    sql, values = insert("instruments", schema.INSTRUMENTS.values(change.listed))
    yield f"{sql} {_REPLACE_UNLESS_OLDER}", values


@_write.register
def _(change: made.SubscriptionStopped) -> Iterator[Statement]:
    key = {"subscription_id": change.subscription_id}
    yield update("subscriptions", {"stopped_ns": change.stopped_ns}, **key)
    yield delete("realtime_history", **key, submitted=False)


@_write.register
def _(change: made.RealtimeJobForgotten) -> Iterator[Statement]:
    yield delete("realtime_jobs", id=change.job_id)
    yield delete("realtime_positions", job_id=change.job_id)


@_write.register
def _(change: made.PositionsReplaced) -> Iterator[Statement]:
    yield delete("realtime_positions", job_id=change.job.id)
    for period, position in change.job.positions.items():
        yield from _write(made.PositionChanged(change.job.id, period, position))


@_write.register
def _(change: made.PositionChanged) -> Iterator[Statement]:
    key = {"job_id": change.job_id, "period_seconds": change.period_seconds}
    yield upsert("realtime_positions", key | schema.POSITION.values(change.position))


@_write.register
def _(change: made.HistoryPartSubmitted) -> Iterator[Statement]:
    yield update("realtime_history", {"submitted": True}, request_id=change.request_id)
