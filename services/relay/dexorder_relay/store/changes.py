"""Changes of the state as SQL statements, in the order of the changes. Pure: statements are data until they are run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, assert_never

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import RequestState
from dexorder_common.model.realtime import StartedSubscription
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state import changes as made
from dexorder_relay.state.job import Job
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob
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
    return [statement for change in changes for statement in _statements(change)]


def _statements(change: made.StateChange) -> Iterator[Statement]:
    match change:
        case made.ValueStored(value):
            table, columns, conflict = _STORED[type(value)]
            yield insert(table, columns.values(value), conflict=conflict)
        case made.RequestAccepted(live):
            yield insert("requests", schema.REQUEST.values(live.request) | schema.LIVE.values(live))
        case made.RequestChanged(live):
            row = schema.LIVE.values(live)
            changed = {name: row[name] for name in ("state", "planned_end_ns")}
            yield update("requests", changed, request_id=live.request.request_id)
        case made.RequestEnded(request, outcome, progress):
            finished = replace(progress, state=RequestState.FINISHED, delay=None)
            ended = schema.PROGRESS.values(change._replace(progress=finished)) | schema.OUTCOME.values(outcome)
            sql, values = update("requests", {"state": finished.state, **ended}, request_id=request.request_id)
            yield f"{sql} AND status IS NULL", values
            for topic in request.topics:
                yield insert("notifications", {"topic": topic, "request_id": request.request_id})
            yield delete("attachments", request_id=request.request_id)
        case made.RequestRevised(request, spans):
            yield insert("notifications", {"topic": f"REVISED:{request.ticker}", "request_id": request.request_id})
            found = json.dumps([schema.TIME_RANGE.values(each) for each in spans])
            yield _ANNOUNCE_REVISED, (found, request.request_id, *schema.SERIES.values(request.series).values())
        case made.RequestAttached(request_id, job_id):
            yield insert("attachments", {"request_id": request_id, "job_id": job_id}, conflict="OR IGNORE")
        case made.JobForgotten(job_id):
            yield delete("jobs", id=job_id)
            yield delete("attachments", job_id=job_id)
            yield update("dispatches", {"job_id": None}, job_id=job_id)
            yield delete("ranges", owner=schema.owner_of(job_id))
        case made.DispatchIssued(dispatch, job_id, issued_ns):
            number = number_of(dispatch.dispatch_id)
            ledger = {"number": number, "job_id": job_id, "issued_ns": issued_ns}
            yield insert("dispatches", ledger | schema.DISPATCH.values(dispatch))
            yield upsert("meta", {"name": schema.LAST_NUMBER, "value": number})
        case made.DispatchEnded(dispatch_id, ended_ns):
            yield _END_DISPATCH, (ended_ns, number_of(dispatch_id))
        case made.RangesChanged(owner, kind, diff):
            key = {"owner": schema.owner_of(owner), "kind": kind}
            for part in diff.removed:
                yield delete("ranges", **key, start_ns=part.start_ns)
            for part in diff.added:
                yield insert("ranges", {**key, "start_ns": part.start_ns, "end_ns": part.end_ns})
        case made.AbsencesChanged(series, absences):
            of_series = schema.SERIES.values(series)
            for each in absences.removed:
                yield delete("provisional", **of_series, start_ns=each.span.start_ns)
            for each in absences.added:
                yield insert("provisional", of_series | schema.ABSENCE.values(each))
        case made.CoverageRead(read_ns):
            yield upsert("meta", {"name": schema.COVERAGE_READ, "value": read_ns})
        case made.InstrumentsReported(listed):
            sql, values = insert("instruments", schema.INSTRUMENTS.values(listed))
            yield f"{sql} {_REPLACE_UNLESS_OLDER}", values
        case made.SubscriptionStopped(subscription_id, stopped_ns):
            yield update("subscriptions", {"stopped_ns": stopped_ns}, subscription_id=subscription_id)
            yield delete("realtime_history", subscription_id=subscription_id, submitted=False)
        case made.RealtimeJobForgotten(job_id):
            yield delete("realtime_jobs", id=job_id)
            yield delete("realtime_positions", job_id=job_id)
            yield delete("realtime_knowledge", job_id=job_id)
        case made.PositionsReplaced(job):
            yield delete("realtime_positions", job_id=job.id)
            for period, position in job.positions.items():
                yield from _statements(made.PositionChanged(job.id, period, position))
        case made.PositionChanged(job_id, period, position):
            of_position = {"job_id": job_id, "period_seconds": period, **schema.POSITION.values(position)}
            yield upsert("realtime_positions", of_position)
        case made.KnowledgeChanged(job_id, knowledge):
            yield upsert("realtime_knowledge", {"job_id": job_id, **schema.KNOWLEDGE.values(knowledge)})
        case made.HistoryPartSubmitted(request_id):
            yield update("realtime_history", {"submitted": True}, request_id=request_id)
        case _:
            assert_never(change)
