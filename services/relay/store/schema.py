"""The relay's tables, and every change to them as a statement. Pure: a batch of statements is data until it is run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from services.common.lake.coverage import Retraction
from services.common.model.history import (
    InstrumentList,
    ListedInstrument,
    Outcome,
    Progress,
    Record,
    RequestState,
    RequestStatus,
    Submission,
)
from services.common.model.instrument import Series
from services.common.model.time_range import Diff, TimeRange
from services.relay.history.job import Job, LiveRequest

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
)
"""How a file comes from each version to the next; a new one takes them all. What was released is never edited."""
FORGET = (
    "DELETE FROM notifications WHERE request_id IN"
    " (SELECT request_id FROM requests WHERE completed_ns < ? ORDER BY completed_ns, sequence LIMIT ?)",
    "DELETE FROM requests WHERE sequence IN"
    " (SELECT sequence FROM requests WHERE completed_ns < ? ORDER BY completed_ns, sequence LIMIT ?)",
)
"""Requests that ended before a time, at most so many, oldest first; with their notifications, which go first."""
REQUEST_COLUMNS = (
    "sequence, request_id, ticker, start_ns, end_ns, period_seconds, most, client_id, submitted_ns, planned_end_ns, "
    "state, progress, status, error, answered_end_ns, completed_ns, row_count, empty_periods, missing, snapshot_id, "
    "refresh"
)


def series_owner(series: Series) -> str:
    """Key of a market's ranges."""
    return f"market:{series.period_seconds}:{series.ticker}"


def parse_series_owner(owner: str) -> Series:
    """The market of ``market_owner``'s key."""
    _, period, ticker = owner.split(":", 2)
    return Series(ticker, int(period))


def job_owner(job: int) -> str:
    """Key of a job's ranges."""
    return f"job:{job}"


class Batch:
    """Statements that become durable together, in order."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, tuple[Any, ...]]] = []

    def _add(self, sql: str, *values: Any) -> None:
        self.statements.append((sql, values))

    def accept(self, request: LiveRequest) -> None:
        """A new request."""
        s = request.submission
        self._add(
            "INSERT INTO requests (request_id, ticker, start_ns, end_ns, period_seconds, most, client_id,"
            " refresh, submitted_ns, planned_end_ns, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            s.request_id,
            s.ticker,
            s.start_ns,
            s.end_ns,
            s.period_seconds,
            s.limit,
            s.client_id,
            s.refresh,
            request.submitted_ns,
            request.planned_end_ns,
            request.state,
        )

    def request(self, request: LiveRequest) -> None:
        """A live request's state and planned end."""
        self._add(
            "UPDATE requests SET state = ?, planned_end_ns = ? WHERE request_id = ?",
            request.state,
            request.planned_end_ns,
            request.submission.request_id,
        )

    def finish(self, submission: Submission, outcome: Outcome, progress: Progress) -> None:
        """A request's end, and its notifications."""
        self._add(
            "UPDATE requests SET state = ?, progress = ?, status = ?, error = ?, answered_end_ns = ?,"
            " completed_ns = ?, row_count = ?, empty_periods = ?, missing = ?, snapshot_id = ?"
            " WHERE request_id = ? AND status IS NULL",
            RequestState.FINISHED,
            json.dumps(astuple(progress)),
            outcome.status,
            outcome.error,
            outcome.end_ns,
            outcome.completed_ns,
            outcome.row_count,
            outcome.empty_periods,
            _dump(outcome.missing),
            outcome.snapshot_id,
            submission.request_id,
        )
        for topic in submission.topics:
            self._add("INSERT INTO notifications (topic, request_id) VALUES (?, ?)", topic, submission.request_id)
        self._add("DELETE FROM attachments WHERE request_id = ?", submission.request_id)

    def job(self, job: Job) -> None:
        """A job as it is now; new or changed."""
        sent = job.sent
        self._add(
            "INSERT OR REPLACE INTO jobs (job, request_id, client_id, ticker, period_seconds, start_ns, end_ns, phase,"
            " error, fruitless, job_id, produced, sent_start_ns, sent_end_ns)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            job.id,
            job.request_id,
            job.client_id,
            *job.series,
            job.span.start_ns,
            job.span.end_ns,
            job.phase,
            job.error,
            job.failures_in_a_row,
            job.dispatch_id,
            job.produced,
            sent and sent.start_ns,
            sent and sent.end_ns,
        )

    def dispatch(self, job: Job) -> None:
        """A job's current dispatch."""
        assert job.dispatch_id is not None
        self._add(
            "INSERT INTO dispatches (job_id, job, retracted_ns) VALUES (?, ?, ?)",
            job.dispatch_id,
            job.id,
            job.dispatch_ids[job.dispatch_id],
        )
        self.job(job)

    def attach(self, request_id: str, job: int) -> None:
        """A request that waits for a job."""
        self._add("INSERT OR IGNORE INTO attachments (request_id, job) VALUES (?, ?)", request_id, job)

    def forget(self, job: int) -> None:
        """A job that nobody waits for."""
        for table in ("jobs", "dispatches", "attachments"):
            self._add(f"DELETE FROM {table} WHERE job = ?", job)  # noqa: S608 - a name from the line above
        self._add("DELETE FROM ranges WHERE owner = ?", job_owner(job))

    def ranges(self, owner: str, kind: str, diff: Diff) -> None:
        """A change of a range set."""
        for part in diff.removed:
            self._add("DELETE FROM ranges WHERE owner = ? AND kind = ? AND start_ns = ?", owner, kind, part.start_ns)
        for part in diff.added:
            self._add(
                "INSERT INTO ranges (owner, kind, start_ns, end_ns) VALUES (?, ?, ?, ?)",
                owner,
                kind,
                part.start_ns,
                part.end_ns,
            )

    def retraction(self, made: Retraction) -> None:
        """A retraction that coverage, and jobs, have followed."""
        self._add(
            "INSERT OR IGNORE INTO retractions (ticker, period_seconds, start_ns, end_ns, retracted_ns)"
            " VALUES (?, ?, ?, ?, ?)",
            *made.series,
            made.span.start_ns,
            made.span.end_ns,
            made.retracted_ns,
        )

    def snapshot(self, snapshot_id: int) -> None:
        """The newest snapshot the pipeline reported."""
        self._add("INSERT OR REPLACE INTO meta (name, value) VALUES ('snapshot_id', ?)", snapshot_id)

    def markets(self, exchange: str, listed: InstrumentList) -> None:
        """An exchange's markets, unless newer ones are kept."""
        self._add(
            "INSERT INTO markets (exchange, fetched_ns, markets) VALUES (?, ?, ?) ON CONFLICT (exchange) DO UPDATE"
            " SET fetched_ns = excluded.fetched_ns, markets = excluded.markets"
            " WHERE excluded.fetched_ns >= fetched_ns",
            exchange,
            listed.fetched_ns,
            json.dumps(listed.markets, separators=(",", ":")),
        )


def _dump(ranges: Iterable[TimeRange]) -> str:
    return json.dumps([[part.start_ns, part.end_ns] for part in ranges], separators=(",", ":"))


def read_listed(fetched_ns: int, markets: str) -> InstrumentList:
    """What ``Batch.markets`` wrote."""
    return InstrumentList(tuple(ListedInstrument(*each) for each in json.loads(markets)), fetched_ns)


def read_submission(row: tuple[Any, ...]) -> Submission:
    """The request in a row of ``REQUEST_COLUMNS``."""
    _, request_id, ticker, start_ns, end_ns, period_seconds, most, client_id = row[:8]
    return Submission(request_id, ticker, start_ns, end_ns, period_seconds, most, client_id, bool(row[20]))


def read_outcome(row: tuple[Any, ...]) -> Outcome:
    """The end in a row of ``REQUEST_COLUMNS`` whose state is FINISHED."""
    status, error, end_ns, completed_ns, row_count, empty_periods, missing, snapshot_id = row[12:20]
    ranges = tuple(TimeRange(start, end) for start, end in json.loads(missing))
    return Outcome(RequestStatus(status), error, end_ns, completed_ns, row_count, empty_periods, ranges, snapshot_id)


def read_record(row: tuple[Any, ...]) -> Record:
    """A row of ``REQUEST_COLUMNS`` whose state is FINISHED."""
    progress = Progress(*json.loads(row[11]))
    return Record(read_submission(row), row[8], RequestState.FINISHED, progress, read_outcome(row), row[0])
