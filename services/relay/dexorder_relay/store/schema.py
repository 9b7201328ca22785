"""Schema of the relay's database, and the values that its columns hold."""

from __future__ import annotations

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.datasets import dataset_named
from dexorder_common.model.history import HistoryRequest, IssuedDispatch, Outcome, RequestRecord
from dexorder_common.model.instrument import InstrumentList, Series
from dexorder_common.model.realtime import Knowledge, StartedSubscription
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state.changes import RequestEnded
from dexorder_relay.state.job import Job
from dexorder_relay.state.provisional import Absence
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, SeriesPosition
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.store.rows import Columns

_VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (epoch TEXT NOT NULL);
INSERT INTO logs VALUES (lower(hex(randomblob(8))));

CREATE TABLE requests (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE, ticker TEXT NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, period_seconds INTEGER NOT NULL, dataset TEXT NOT NULL,
    "limit" INTEGER, client_id TEXT NOT NULL, refresh INTEGER NOT NULL, again INTEGER NOT NULL,
    submitted_ns INTEGER NOT NULL, planned_end_ns INTEGER NOT NULL, state TEXT NOT NULL, trace TEXT NOT NULL,
    progress TEXT, status TEXT, error TEXT, answered_end_ns INTEGER, completed_ns INTEGER, row_count INTEGER,
    empty_periods INTEGER, missing TEXT, snapshot_id INTEGER, provisional TEXT, revised TEXT);
CREATE INDEX requests_by_client ON requests (client_id, sequence);
CREATE INDEX requests_by_state ON requests (state, sequence);
CREATE INDEX requests_by_end ON requests (completed_ns) WHERE completed_ns IS NOT NULL;
CREATE INDEX requests_by_series ON requests (ticker, period_seconds, dataset) WHERE client_id != '';
CREATE TABLE notifications (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, request_id TEXT NOT NULL);
CREATE INDEX notifications_by_topic ON notifications (topic, sequence);
CREATE INDEX notifications_by_request ON notifications (request_id);

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, client_id TEXT NOT NULL, ticker TEXT NOT NULL,
    period_seconds INTEGER NOT NULL, dataset TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    phase INTEGER NOT NULL, error TEXT NOT NULL, failures_in_a_row INTEGER NOT NULL, dispatch_id TEXT,
    produced INTEGER NOT NULL, sent_start_ns INTEGER, sent_end_ns INTEGER, row_count INTEGER NOT NULL,
    taken_ns INTEGER NOT NULL, again INTEGER NOT NULL, trace TEXT NOT NULL);
CREATE TABLE attachments (request_id TEXT, job_id INTEGER, PRIMARY KEY (request_id, job_id)) WITHOUT ROWID;
CREATE INDEX attachments_by_job ON attachments (job_id);
CREATE TABLE dispatches (
    number INTEGER PRIMARY KEY, dispatch_id TEXT NOT NULL, job_id INTEGER, ticker TEXT NOT NULL,
    period_seconds INTEGER NOT NULL, dataset TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    is_realtime INTEGER NOT NULL, issued_ns INTEGER NOT NULL);
CREATE INDEX dispatches_by_job ON dispatches (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX dispatches_by_age ON dispatches (issued_ns) WHERE job_id IS NULL;

CREATE TABLE ranges (
    owner TEXT, kind TEXT, start_ns INTEGER, end_ns INTEGER NOT NULL, PRIMARY KEY (owner, kind, start_ns)
) WITHOUT ROWID;
CREATE TABLE provisional (
    ticker TEXT, period_seconds INTEGER, dataset TEXT, start_ns INTEGER, end_ns INTEGER NOT NULL,
    since_ns INTEGER NOT NULL, queries INTEGER NOT NULL, due_ns INTEGER NOT NULL,
    PRIMARY KEY (ticker, period_seconds, dataset, start_ns)) WITHOUT ROWID;
CREATE TABLE retractions (
    ticker TEXT, period_seconds INTEGER, dataset TEXT, start_ns INTEGER, end_ns INTEGER, dispatch INTEGER,
    time_ns INTEGER, PRIMARY KEY (ticker, period_seconds, dataset, start_ns, end_ns, dispatch, time_ns)) WITHOUT ROWID;
CREATE TABLE instruments (venue TEXT PRIMARY KEY, markets TEXT NOT NULL, fetched_ns INTEGER NOT NULL, candles TEXT);

CREATE TABLE subscriptions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, subscription_id TEXT NOT NULL UNIQUE, ticker TEXT NOT NULL,
    params TEXT NOT NULL, since_ns INTEGER, client_id TEXT NOT NULL, started_ns INTEGER NOT NULL, stopped_ns INTEGER);
CREATE INDEX subscriptions_by_end ON subscriptions (stopped_ns) WHERE stopped_ns IS NOT NULL;
CREATE TABLE realtime_jobs (
    id INTEGER PRIMARY KEY, ticker TEXT NOT NULL UNIQUE, dispatch_id TEXT, sent TEXT, dispatched_ns INTEGER NOT NULL,
    dispatches INTEGER NOT NULL, failures_in_a_row INTEGER NOT NULL, error TEXT NOT NULL);
CREATE TABLE realtime_positions (
    job_id INTEGER, period_seconds INTEGER, from_ns INTEGER NOT NULL, next_ns INTEGER NOT NULL,
    last_trade_id TEXT NOT NULL, PRIMARY KEY (job_id, period_seconds)) WITHOUT ROWID;
CREATE TABLE realtime_history (
    request_id TEXT PRIMARY KEY, subscription_id TEXT NOT NULL, ticker TEXT NOT NULL, period_seconds INTEGER NOT NULL,
    start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, client_id TEXT NOT NULL, submitted INTEGER NOT NULL DEFAULT 0);
CREATE INDEX realtime_history_by_subscription ON realtime_history (subscription_id);

CREATE TABLE triggers (
    registration INTEGER PRIMARY KEY AUTOINCREMENT, trigger_id TEXT NOT NULL, sql TEXT NOT NULL, tickers TEXT NOT NULL,
    callback_id TEXT NOT NULL, parameters TEXT NOT NULL, client_id TEXT NOT NULL, alert TEXT,
    registered_ns INTEGER NOT NULL, state INTEGER NOT NULL, period_seconds INTEGER NOT NULL, reason TEXT NOT NULL,
    firings INTEGER NOT NULL, last_fired_ns INTEGER NOT NULL, change INTEGER NOT NULL UNIQUE, deleted_ns INTEGER);
CREATE UNIQUE INDEX triggers_by_id ON triggers (trigger_id) WHERE deleted_ns IS NULL;
CREATE INDEX triggers_by_client ON triggers (client_id) WHERE deleted_ns IS NULL;
CREATE INDEX triggers_by_end ON triggers (deleted_ns) WHERE deleted_ns IS NOT NULL;
CREATE TABLE trigger_changes (sequence INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE trigger_events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, registration INTEGER NOT NULL,
    trigger_id TEXT NOT NULL, callback_id TEXT NOT NULL, client_id TEXT NOT NULL, kind INTEGER NOT NULL,
    ticker TEXT NOT NULL, time_ns INTEGER NOT NULL, reported_ns INTEGER NOT NULL, message BLOB NOT NULL,
    alert INTEGER NOT NULL);
CREATE INDEX trigger_events_by_trigger ON trigger_events (trigger_id, sequence);
CREATE INDEX trigger_events_by_callback ON trigger_events (callback_id, sequence) WHERE callback_id != '';
CREATE INDEX trigger_events_by_registration ON trigger_events (registration);
CREATE INDEX trigger_events_with_alert ON trigger_events (sequence) WHERE alert = 1;

CREATE TABLE udfs (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL, stopped INTEGER NOT NULL, since_generation INTEGER NOT NULL,
    definition TEXT, client_id TEXT NOT NULL);

INSERT INTO sqlite_sequence (name, seq)
    VALUES ('requests', 0), ('notifications', 0), ('subscriptions', 0), ('triggers', 0), ('trigger_changes', 0),
        ('trigger_events', 0);
"""
_VERSION_2 = """
CREATE TABLE realtime_knowledge (job_id INTEGER PRIMARY KEY, provisional TEXT NOT NULL, unchecked TEXT NOT NULL);
"""
_VERSION_3 = """
INSERT INTO meta VALUES ('generation', 0);
"""
_VERSION_4 = """
ALTER TABLE triggers ADD COLUMN changed_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE triggers ADD COLUMN registered_sequence INTEGER NOT NULL DEFAULT 0;
UPDATE triggers SET registered_sequence = change;
"""
_VERSION_5 = """
ALTER TABLE triggers ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
"""
_VERSION_6 = """
ALTER TABLE realtime_positions ADD COLUMN compared_ns INTEGER NOT NULL DEFAULT 0;
"""
_VERSION_7 = """
ALTER TABLE triggers ADD COLUMN pauses TEXT NOT NULL DEFAULT '[]';
"""
STEPS = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7)
"""Steps that bring a file from each version to the next. A released step is never edited."""
LAST_NUMBER, COVERAGE_READ, GENERATION = "dispatch", "coverage_read_ns", "generation"
"""Names in ``meta``: the last number of a dispatch, the time at which coverage was last read from its table, and the
number of commits."""

REQUEST = Columns(HistoryRequest)
LIVE = Columns(LiveRequest, "submitted_ns", "planned_end_ns", "state", "trace")
PROGRESS = Columns(RequestEnded, "progress")
RECORD = Columns(RequestRecord, "submitted_ns", "progress", "sequence")
OUTCOME = Columns(Outcome, renamed={"end_ns": "answered_end_ns"})
JOB = Columns(
    Job,
    *("id", "request_id", "client_id", "series", "span", "phase", "error", "failures_in_a_row", "dispatch_id"),
    *("produced", "sent", "row_count", "taken_ns", "again", "trace"),
)
DISPATCH = Columns(IssuedDispatch)
SERIES = Columns(Series)
TIME_RANGE = Columns(TimeRange)
ABSENCE = Columns(Absence)
RETRACTION = Columns(Retraction)
INSTRUMENTS = Columns(InstrumentList)
SUBSCRIPTION = Columns(StartedSubscription, "subscription", "started_ns", "sequence")
REALTIME_JOB = Columns(
    RealtimeJob,
    *("id", "ticker", "dispatch_id", "sent", "dispatched_ns", "dispatches", "failures_in_a_row", "error"),
)
POSITION = Columns(SeriesPosition, "from_ns", "next_ns", "last_trade_id", "compared_ns")
KNOWLEDGE = Columns(Knowledge, "provisional", "unchecked")
HISTORY_PART = Columns(HistoryPart)
UDF = Columns(UdfRegistration)


_JOB = "job:"


def owner_of(owner: Series | int) -> str:
    """Return the key of the ranges of a series, or of the job with an id."""
    return f"{_JOB}{owner}" if isinstance(owner, int) else f"{owner.dataset}:{owner.period_seconds}:{owner.ticker}"


def series_of(owner: str) -> Series | None:
    """Return the series of a key of ``owner_of``; None for the key of a job."""
    if owner.startswith(_JOB):
        return None
    dataset, period, ticker = owner.split(":", 2)
    return Series(ticker, int(period), dataset_named(dataset))
