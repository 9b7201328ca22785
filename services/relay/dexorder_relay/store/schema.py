"""Tables of the relay's database, and every change to them as a statement. Pure: a batch is data until it is run.

Column names are those of the first release: ``most`` is a request's limit, ``fruitless`` a job's failures in a row,
``job`` a job's id and ``job_id`` a dispatch's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import (
    Dispatch,
    HistoryRequest,
    Outcome,
    Progress,
    RequestRecord,
    RequestState,
    RequestStatus,
)
from dexorder_common.model.instrument import CandleOffer, InstrumentList, ListedInstrument, Series
from dexorder_common.model.time_range import Diff, TimeRange
from dexorder_relay.state.job import Job
from dexorder_relay.state.provisional import AbsenceChange
from dexorder_relay.state.request import LiveRequest

STEPS = (
    # 1
    """
CREATE TABLE requests (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE, ticker TEXT NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, period_seconds INTEGER NOT NULL, most INTEGER, client_id TEXT,
    submitted_ns INTEGER NOT NULL, planned_end_ns INTEGER NOT NULL, state INTEGER NOT NULL, progress TEXT,
    status INTEGER, error TEXT, answered_end_ns INTEGER, completed_ns INTEGER, row_count INTEGER,
    empty_periods INTEGER, missing TEXT, snapshot_id INTEGER);
CREATE INDEX requests_by_client ON requests (client_id, sequence);
CREATE INDEX requests_by_state ON requests (state, sequence);
CREATE TABLE jobs (
    job INTEGER PRIMARY KEY, request_id TEXT NOT NULL, client_id TEXT, ticker TEXT NOT NULL,
    period_seconds INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, phase INTEGER NOT NULL,
    error TEXT NOT NULL, fruitless INTEGER NOT NULL, job_id TEXT, produced INTEGER NOT NULL,
    sent_start_ns INTEGER, sent_end_ns INTEGER);
CREATE TABLE dispatches (job_id TEXT PRIMARY KEY, job INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX dispatches_by_job ON dispatches (job);
CREATE TABLE attachments (request_id TEXT, job INTEGER, PRIMARY KEY (request_id, job)) WITHOUT ROWID;
CREATE INDEX attachments_by_job ON attachments (job);
CREATE TABLE ranges (
    owner TEXT, kind TEXT, start_ns INTEGER, end_ns INTEGER NOT NULL, PRIMARY KEY (owner, kind, start_ns)
) WITHOUT ROWID;
CREATE TABLE notifications (cursor INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, request_id TEXT NOT NULL);
CREATE INDEX notifications_by_topic ON notifications (topic, cursor);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
""",
    # 2: markets; and indices for forgetting, which walked through everything kept
    """
CREATE TABLE markets (exchange TEXT PRIMARY KEY, fetched_ns INTEGER NOT NULL, markets TEXT NOT NULL);
CREATE INDEX requests_by_end ON requests (completed_ns) WHERE completed_ns IS NOT NULL;
CREATE INDEX notifications_by_request ON notifications (request_id);
""",
    # 3: coverage can be taken back; and ranges that overlap, which earlier versions left behind, are merged
    """
ALTER TABLE requests ADD COLUMN refresh INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dispatches ADD COLUMN retracted_ns INTEGER NOT NULL DEFAULT 0;
CREATE TABLE retractions (
    ticker TEXT, period_seconds INTEGER, start_ns INTEGER, end_ns INTEGER, retracted_ns INTEGER,
    PRIMARY KEY (ticker, period_seconds, start_ns, end_ns, retracted_ns)) WITHOUT ROWID;
CREATE TEMP TABLE merged AS
    SELECT owner, kind, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM (
        SELECT *, sum(apart) OVER (PARTITION BY owner, kind ORDER BY start_ns) AS island FROM (
            SELECT *, start_ns > coalesce(max(end_ns) OVER (PARTITION BY owner, kind ORDER BY start_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS apart FROM ranges))
    GROUP BY owner, kind, island;
DELETE FROM ranges;
INSERT INTO ranges (owner, kind, start_ns, end_ns) SELECT owner, kind, start_ns, end_ns FROM merged;
DROP TABLE merged;
""",
    # 4: dispatches are numbered and outlive their job; jobs start again, as dispatches without a number no longer count
    """
DROP TABLE dispatches;
CREATE TABLE dispatches (
    number INTEGER PRIMARY KEY, job_id TEXT NOT NULL, job INTEGER, ticker TEXT NOT NULL,
    period_seconds INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, issued_ns INTEGER NOT NULL);
CREATE INDEX dispatches_by_job ON dispatches (job) WHERE job IS NOT NULL;
CREATE INDEX dispatches_by_age ON dispatches (issued_ns) WHERE job IS NULL;
UPDATE jobs SET phase = 1, error = '', fruitless = 0, job_id = NULL, produced = 0, sent_start_ns = NULL,
    sent_end_ns = NULL;
DELETE FROM ranges WHERE owner LIKE 'job:%';
CREATE TABLE numbered (
    ticker TEXT, period_seconds INTEGER, start_ns INTEGER, end_ns INTEGER, number INTEGER, retracted_ns INTEGER,
    PRIMARY KEY (ticker, period_seconds, start_ns, end_ns, number, retracted_ns)) WITHOUT ROWID;
INSERT INTO numbered SELECT ticker, period_seconds, start_ns, end_ns, 0, retracted_ns FROM retractions;
DROP TABLE retractions;
ALTER TABLE numbered RENAME TO retractions;
""",
    # 5: realtime subscriptions, their jobs, and how far these are settled; snapshots of all tickers
    """
CREATE TABLE subscriptions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, subscription_id TEXT NOT NULL UNIQUE, ticker TEXT NOT NULL,
    params TEXT NOT NULL, since_ns INTEGER, client_id TEXT NOT NULL, started_ns INTEGER NOT NULL, stopped_ns INTEGER);
CREATE INDEX subscriptions_by_end ON subscriptions (stopped_ns) WHERE stopped_ns IS NOT NULL;
CREATE TABLE realtime_jobs (
    job INTEGER PRIMARY KEY, ticker TEXT NOT NULL UNIQUE, job_id TEXT, params TEXT, dispatched_ns INTEGER NOT NULL,
    dispatches INTEGER NOT NULL, failures INTEGER NOT NULL, error TEXT NOT NULL);
CREATE TABLE realtime_positions (
    job INTEGER, period_seconds INTEGER, from_ns INTEGER NOT NULL, next_ns INTEGER NOT NULL,
    last_trade_id TEXT NOT NULL, PRIMARY KEY (job, period_seconds)) WITHOUT ROWID;
CREATE TABLE realtime_history (
    request_id TEXT PRIMARY KEY, subscription_id TEXT NOT NULL, ticker TEXT NOT NULL, period_seconds INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, client_id TEXT NOT NULL, submitted INTEGER NOT NULL);
CREATE INDEX realtime_history_by_subscription ON realtime_history (subscription_id);
ALTER TABLE dispatches ADD COLUMN realtime INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN row_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN taken_ns INTEGER NOT NULL DEFAULT 0;
""",
    # 6: absences that are not final, and requests that query a covered range again
    """
CREATE TABLE provisional (
    ticker TEXT, period_seconds INTEGER, start_ns INTEGER, end_ns INTEGER NOT NULL, since_ns INTEGER NOT NULL,
    queries INTEGER NOT NULL, due_ns INTEGER NOT NULL, PRIMARY KEY (ticker, period_seconds, start_ns)) WITHOUT ROWID;
ALTER TABLE requests ADD COLUMN again INTEGER NOT NULL DEFAULT 0;
ALTER TABLE requests ADD COLUMN provisional TEXT NOT NULL DEFAULT '[]';
ALTER TABLE requests ADD COLUMN revised TEXT NOT NULL DEFAULT '[]';
ALTER TABLE jobs ADD COLUMN again INTEGER NOT NULL DEFAULT 0;
CREATE INDEX requests_by_series ON requests (ticker, period_seconds) WHERE client_id IS NOT NULL;
""",
    # 7: triggers and their events
    """
CREATE TABLE triggers (
    registration INTEGER PRIMARY KEY AUTOINCREMENT, trigger_id TEXT NOT NULL, sql TEXT NOT NULL, tickers TEXT NOT NULL,
    callback_id TEXT NOT NULL, parameters TEXT NOT NULL, client_id TEXT NOT NULL, alert TEXT,
    period_seconds INTEGER NOT NULL, registered_ns INTEGER NOT NULL, deleted_ns INTEGER,
    state INTEGER NOT NULL DEFAULT 2, reason TEXT NOT NULL DEFAULT '', firings INTEGER NOT NULL DEFAULT 0,
    last_fired_ns INTEGER NOT NULL DEFAULT 0, change INTEGER NOT NULL UNIQUE);
CREATE UNIQUE INDEX triggers_by_id ON triggers (trigger_id) WHERE deleted_ns IS NULL;
CREATE INDEX triggers_by_client ON triggers (client_id) WHERE deleted_ns IS NULL;
CREATE INDEX triggers_by_end ON triggers (deleted_ns) WHERE deleted_ns IS NOT NULL;
CREATE TABLE trigger_events (
    cursor INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, registration INTEGER NOT NULL,
    trigger_id TEXT NOT NULL, callback_id TEXT NOT NULL, client_id TEXT NOT NULL, kind INTEGER NOT NULL,
    ticker TEXT NOT NULL, time_ns INTEGER NOT NULL, reported_ns INTEGER NOT NULL, message BLOB NOT NULL,
    alert INTEGER NOT NULL);
CREATE INDEX trigger_events_by_trigger ON trigger_events (trigger_id, cursor);
CREATE INDEX trigger_events_by_callback ON trigger_events (callback_id, cursor) WHERE callback_id != '';
CREATE INDEX trigger_events_by_registration ON trigger_events (registration);
CREATE INDEX trigger_events_with_alert ON trigger_events (cursor) WHERE alert = 1;
""",
    # 8: users' functions (UDFs), each as its message UdfRegistration
    """
CREATE TABLE udfs (name TEXT PRIMARY KEY, registration BLOB NOT NULL) WITHOUT ROWID;
""",
    # 9: traces of requests and jobs
    """
ALTER TABLE requests ADD COLUMN trace TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN trace TEXT NOT NULL DEFAULT '';
""",
    # 10: datasets that ticker and period do not tell
    """
ALTER TABLE requests ADD COLUMN dataset TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN dataset TEXT NOT NULL DEFAULT '';
ALTER TABLE dispatches ADD COLUMN dataset TEXT NOT NULL DEFAULT '';
ALTER TABLE retractions ADD COLUMN dataset TEXT NOT NULL DEFAULT '';
""",
)
"""Steps that bring a file from each version to the next; a new file takes them all. A released step is never edited."""
FORGET = (
    "DELETE FROM notifications WHERE request_id IN"
    " (SELECT request_id FROM requests WHERE completed_ns < ? ORDER BY completed_ns, sequence LIMIT ?)",
    "DELETE FROM requests WHERE sequence IN"
    " (SELECT sequence FROM requests WHERE completed_ns < ? ORDER BY completed_ns, sequence LIMIT ?)",
)
"""Delete the oldest requests that ended before a time, at most a number of them; first their notifications."""
FORGET_DISPATCHES = (
    "DELETE FROM dispatches WHERE number IN"
    " (SELECT number FROM dispatches WHERE job IS NULL AND issued_ns < ? ORDER BY issued_ns LIMIT ?)"
)
"""Delete the oldest dispatches that were issued before a time and whose job is gone, at most a number of them."""
LAST_NUMBER = "dispatch"
"""Name in ``meta`` of the last number of a dispatch."""
FORGET_SUBSCRIPTIONS = (
    "DELETE FROM realtime_history WHERE subscription_id IN"
    " (SELECT subscription_id FROM subscriptions WHERE stopped_ns < ? ORDER BY stopped_ns, sequence LIMIT ?)",
    "DELETE FROM subscriptions WHERE sequence IN"
    " (SELECT sequence FROM subscriptions WHERE stopped_ns < ? ORDER BY stopped_ns, sequence LIMIT ?)",
)
"""Delete the oldest subscriptions that were stopped before a time, at most a number of them."""
COVERAGE_READ = "coverage_read_ns"
"""Name in ``meta`` of the time at which coverage was last read from its table."""
REQUEST_COLUMNS = (
    "sequence, request_id, ticker, start_ns, end_ns, period_seconds, most, client_id, submitted_ns, planned_end_ns, "
    "state, progress, status, error, answered_end_ns, completed_ns, row_count, empty_periods, missing, snapshot_id, "
    "refresh, again, provisional, revised, trace, dataset"
)


_JOB = "job:"


def series_owner(series: Series) -> str:
    """Return the key of a series' ranges."""
    return f"{series.dataset.code or 'market'}:{series.period_seconds}:{series.ticker}"


def parse_series_owner(owner: str) -> Series | None:
    """Return the series of a key of ``series_owner``; None for another key."""
    if owner.startswith(_JOB):
        return None
    kind, period, ticker = owner.split(":", 2)
    return Series.decode(ticker, int(period), "" if kind == "market" else kind)


def job_owner(job_id: int) -> str:
    """Return the key of a job's ranges."""
    return f"{_JOB}{job_id}"


class Batch:
    """Statements that become durable together, in order."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, sql: str, *values: Any) -> None:
        """Add a statement."""
        self.statements.append((sql, values))

    def insert(self, into: str, **values: Any) -> None:
        """Add an INSERT of values by column; ``into`` is what follows INSERT, up to the table's name."""
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        self.add(f"INSERT {into} ({columns}) VALUES ({marks})", *values.values())  # noqa: S608 - names from below

    def accept(self, live: LiveRequest) -> None:
        """Add a new request."""
        request = live.request
        self.insert(
            "INTO requests",
            request_id=request.request_id,
            ticker=request.ticker,
            start_ns=request.start_ns,
            end_ns=request.end_ns,
            period_seconds=request.period_seconds,
            dataset=request.dataset.code,
            most=request.limit,
            client_id=request.client_id or None,
            refresh=request.refresh,
            again=request.again,
            submitted_ns=live.submitted_ns,
            planned_end_ns=live.planned_end_ns,
            state=live.state.number,
            trace=live.trace,
        )

    def request(self, live: LiveRequest) -> None:
        """Store the state and planned end of a live request."""
        self.add(
            "UPDATE requests SET state = ?, planned_end_ns = ? WHERE request_id = ?",
            live.state.number,
            live.planned_end_ns,
            live.request.request_id,
        )

    def finish(self, request: HistoryRequest, outcome: Outcome, progress: Progress) -> None:
        """Store the outcome of a request, and its notifications."""
        _, *counts, _ = astuple(progress)
        self.add(
            "UPDATE requests SET state = ?, progress = ?, status = ?, error = ?, answered_end_ns = ?,"
            " completed_ns = ?, row_count = ?, empty_periods = ?, missing = ?, snapshot_id = ?, provisional = ?,"
            " revised = ?"
            " WHERE request_id = ? AND status IS NULL",
            RequestState.FINISHED.number,
            json.dumps(counts),
            outcome.status.number,
            outcome.error,
            outcome.end_ns,
            outcome.completed_ns,
            outcome.row_count,
            outcome.empty_periods,
            _dump(outcome.missing),
            outcome.snapshot_id,
            _dump(outcome.provisional),
            _dump(outcome.revised),
            request.request_id,
        )
        for topic in request.topics:
            self.insert("INTO notifications", topic=topic, request_id=request.request_id)
        self.add("DELETE FROM attachments WHERE request_id = ?", request.request_id)

    def job(self, job: Job) -> None:
        """Store a new or changed job."""
        sent = job.sent
        self.insert(
            "OR REPLACE INTO jobs",
            job=job.id,
            request_id=job.request_id,
            client_id=job.client_id or None,
            **job.series.encode(),
            start_ns=job.span.start_ns,
            end_ns=job.span.end_ns,
            phase=job.phase,
            error=job.error,
            fruitless=job.failures_in_a_row,
            job_id=job.dispatch_id,
            produced=job.produced,
            sent_start_ns=sent and sent.start_ns,
            sent_end_ns=sent and sent.end_ns,
            row_count=job.row_count,
            taken_ns=job.taken_ns,
            again=job.again,
            trace=job.trace,
        )

    def dispatch(self, job: Job, dispatch: Dispatch, *, issued_ns: int) -> None:
        """Store a job and its new dispatch."""
        number = number_of(dispatch.dispatch_id)
        self.insert(
            "INTO dispatches",
            number=number,
            job_id=dispatch.dispatch_id,
            job=job.id,
            **dispatch.series.encode(),
            start_ns=dispatch.span.start_ns,
            end_ns=dispatch.span.end_ns,
            issued_ns=issued_ns,
        )
        self.insert("OR REPLACE INTO meta", name=LAST_NUMBER, value=number)
        self.job(job)

    def coverage_read(self, read_ns: int) -> None:
        """Store that the ranges reflect the coverage table as it was at this time."""
        self.insert("OR REPLACE INTO meta", name=COVERAGE_READ, value=read_ns)

    def attach(self, request_id: str, job_id: int) -> None:
        """Store that a request waits for a job."""
        self.insert("OR IGNORE INTO attachments", request_id=request_id, job=job_id)

    def forget(self, job_id: int) -> None:
        """Delete a job that no request waits for; its dispatches stay known, as their pages may still arrive."""
        for table in ("jobs", "attachments"):
            self.add(f"DELETE FROM {table} WHERE job = ?", job_id)  # noqa: S608 - a name from the line above
        self.add("UPDATE dispatches SET job = NULL WHERE job = ?", job_id)
        self.add("DELETE FROM ranges WHERE owner = ?", job_owner(job_id))

    def ranges(self, owner: str, kind: str, diff: Diff) -> None:
        """Store a change of a range set."""
        for part in diff.removed:
            self.add("DELETE FROM ranges WHERE owner = ? AND kind = ? AND start_ns = ?", owner, kind, part.start_ns)
        for part in diff.added:
            self.insert("INTO ranges", owner=owner, kind=kind, start_ns=part.start_ns, end_ns=part.end_ns)

    def provisional(self, series: Series, change: AbsenceChange) -> None:
        """Store a change of the provisional ranges of a series."""
        for each in change.removed:
            self.add(
                "DELETE FROM provisional WHERE ticker = ? AND period_seconds = ? AND start_ns = ?",
                *series[:2],
                each.span.start_ns,
            )
        for each in change.added:
            self.insert(
                "INTO provisional",
                **series.encode(),
                start_ns=each.span.start_ns,
                end_ns=each.span.end_ns,
                since_ns=each.since_ns,
                queries=each.queries,
                due_ns=each.due_ns,
            )

    def revision(self, request: HistoryRequest, revised: Sequence[TimeRange]) -> None:
        """Announce that candles turned up: to whoever follows the ticker, and to clients that were told otherwise."""
        self.insert("INTO notifications", topic=f"REVISED:{request.ticker}", request_id=request.request_id)
        self.add(
            "WITH found (start_ns, end_ns) AS MATERIALIZED"
            " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"
            " INSERT INTO notifications (topic, request_id) SELECT DISTINCT 'RESPONSE:' || client_id, ?"
            " FROM requests JOIN json_each(requests.provisional) AS named JOIN found"
            " ON json_extract(named.value, '$[0]') < found.end_ns"
            " AND json_extract(named.value, '$[1]') > found.start_ns"
            " WHERE ticker = ? AND period_seconds = ? AND client_id IS NOT NULL",
            _dump(revised),
            request.request_id,
            *request.series[:2],
        )

    def retraction(self, made: Retraction) -> None:
        """Store a retraction that coverage and jobs reflect."""
        self.insert(
            "OR IGNORE INTO retractions",
            **made.series.encode(),
            start_ns=made.span.start_ns,
            end_ns=made.span.end_ns,
            number=made.order.dispatch,
            retracted_ns=made.order.time_ns,
        )

    def instruments(self, listed: InstrumentList) -> None:
        """Store the instruments of a venue, unless the stored ones are newer."""
        self.add(
            "INSERT INTO markets (exchange, fetched_ns, markets) VALUES (?, ?, ?) ON CONFLICT (exchange) DO UPDATE"
            " SET fetched_ns = excluded.fetched_ns, markets = excluded.markets"
            " WHERE excluded.fetched_ns >= fetched_ns",
            listed.venue,
            listed.fetched_ns,
            json.dumps({"markets": listed.markets, "candles": listed.candles}, separators=(",", ":")),
        )


def _dump(ranges: Iterable[TimeRange]) -> str:
    return json.dumps([[part.start_ns, part.end_ns] for part in ranges], separators=(",", ":"))


def _load(text: str) -> tuple[TimeRange, ...]:
    return tuple(TimeRange(start, end) for start, end in json.loads(text))


def read_instruments(venue: str, fetched_ns: int, markets: str) -> InstrumentList:
    """Return what ``Batch.instruments`` stored; earlier versions stored only the list of markets."""
    stored = json.loads(markets)
    stored = stored if isinstance(stored, dict) else {"markets": stored, "candles": None}
    periods, *answers = stored["candles"] or [()]
    offer = CandleOffer(tuple(periods), *answers) if answers else None
    return InstrumentList(venue, tuple(ListedInstrument(*each) for each in stored["markets"]), fetched_ns, offer)


def read_request(row: tuple[Any, ...]) -> HistoryRequest:
    """Return the request in a row of ``REQUEST_COLUMNS``."""
    _, request_id, ticker, start_ns, end_ns, period_seconds, limit, client_id = row[:8]
    refresh, again = map(bool, row[20:22])
    dataset = Series.decode(ticker, period_seconds, row[25]).dataset
    given = request_id, ticker, start_ns, end_ns, period_seconds, limit, client_id or "", refresh, again
    return HistoryRequest(*given, dataset=dataset)


def read_outcome(row: tuple[Any, ...]) -> Outcome:
    """Return the outcome in a row of ``REQUEST_COLUMNS`` whose state is FINISHED."""
    status, error, end_ns, completed_ns, row_count, empty_periods, missing, snapshot_id = row[12:20]
    missing, provisional, revised = map(_load, (missing, *row[22:24]))
    status = RequestStatus.from_number(status)
    return Outcome(
        status, error, end_ns, completed_ns, row_count, empty_periods, missing, snapshot_id, provisional, revised
    )


def read_record(row: tuple[Any, ...]) -> RequestRecord:
    """Return a row of ``REQUEST_COLUMNS`` whose state is FINISHED."""
    progress = Progress(RequestState.FINISHED, *json.loads(row[11]))
    return RequestRecord(read_request(row), row[8], progress, read_outcome(row), row[0])
