"""Outbox and its log: rows after a restart, and queries."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import NEVER, AttemptRow, DeliveryChanges, Final, QueuedRow, Seen
from dexorder_gateway.events.model import (
    NO_CONTACTS,
    Event,
    EventKey,
    QuietHours,
    WebPushSubscription,
)
from dexorder_gateway.events.store.event_log import MAX_BYTES, MAX_EVENTS, EventLog, EventQuery, ReplayBatch
from dexorder_gateway.events.store.outbox import MAX_FORGOTTEN, EventOutbox, Written, open_outbox
from tests.fakes.events.contacts import contacts_with
from tests.unit.services.gateway.events.samples import event

NOW = 1_700_000_000_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "events.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[EventOutbox]:
    opened = open_outbox(path)
    yield opened
    opened.close()


def changes(**rows: list[Any]) -> DeliveryChanges:
    made = DeliveryChanges()
    for name, value in rows.items():
        setattr(made, name, value)
    return made


def live(given: Event, sequence: int | None = None) -> QueuedRow:
    return QueuedRow(given, NOW, NOW + 60, sequence=sequence)


def final(given: Event, at_ns: int = NOW + 5) -> Final:
    return Final(given.key, Status.DELIVERED, Channel.WEB, "", at_ns)


def test_queued_events_are_read_back_with_all_their_state(path: Path, outbox: EventOutbox) -> None:
    first = QueuedRow(
        event("e1"),
        NOW,
        None,
        channel_index=2,
        rounds=3,
        attempts=4,
        failures=1,
        due_ns=NEVER,
        waits_for_ack=True,
        refused=((Channel.EMAIL, "no such address"), (Channel.PUSH, "gone")),
        sequence=7,
        soft=True,
    )
    second, ended = live(event("e2")), live(event("e3"), 8)
    outbox.write(changes(accepted=[first, second, ended]))
    changed = second._replace(channel_index=1, attempts=1, sequence=9)
    outbox.write(changes(updated=[second._replace(channel_index=5), changed], finals=[final(ended.event)]))
    assert list(outbox.queued()) == [first, changed]
    again = open_outbox(path)
    assert list(again.queued()) == [first, changed]
    assert again.epoch == outbox.epoch and len(again.epoch) == 32
    assert again.sequences() == {"alice": 9}
    again.close()


def test_earlier_event_is_known_by_its_key_only(outbox: EventOutbox) -> None:
    queued, ended = event("queued"), event('it\'s "ended" \\ ü')
    outbox.write(changes(accepted=[live(queued), live(ended)]))
    outbox.write(changes(finals=[final(ended)]))
    asked = [queued.key, ended.key, EventKey("c", "new"), EventKey("other", "queued")]
    known = outbox.known(asked)
    assert known.keys() == {queued.key, ended.key}
    assert (known[queued.key].body, known[queued.key].final) == (queued.body, None)
    assert known[ended.key].final == final(ended)


def test_write_is_atomic(outbox: EventOutbox) -> None:
    outbox.write(changes(accepted=[live(event("e1"))]))
    with pytest.raises(sqlite3.IntegrityError):
        outbox.write(changes(accepted=[live(event("e2")), live(event("e1"))]), {"alice": NO_CONTACTS})
    assert [each.event.key.event_id for each in outbox.queued()] == ["e1"]
    assert outbox.contacts() == {}


def test_meanwhile_callback_ends_before_the_write(outbox: EventOutbox, path: Path) -> None:
    told: list[int] = []

    def meanwhile(written: Written) -> None:
        deadline_s = time.monotonic() + 30
        while not written() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        told.append(len(EventLog(path).page(EventQuery()).records))

    outbox.write(changes(accepted=[live(event("e1"))]), meanwhile=meanwhile)
    assert told == [1]


def test_write_fails_when_its_commit_thread_fails(outbox: EventOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: object) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(sqlite3.OperationalError("database or disk is full"))
        return failed

    monkeypatch.setattr("dexorder_gateway.events.store.outbox.ThreadPoolExecutor.submit", submit)
    with pytest.raises(sqlite3.OperationalError):
        outbox.write(changes(accepted=[live(event("e1"))]), meanwhile=lambda written: None)
    assert list(outbox.queued()) == []
    outbox.write(changes(accepted=[live(event("e2"))]))
    assert [each.event.key.event_id for each in outbox.queued()] == ["e2"]


def test_contacts_and_presence_are_read_back(outbox: EventOutbox) -> None:
    contacts = contacts_with(
        telegram_chat_id="7",
        email="a@b",
        web_push=(WebPushSubscription("https://p", "k", "s"),),
        mobile_tokens=("t",),
        discord_webhook_url="https://d",
        slack_webhook_url="https://s",
        channel_order=(Channel.EMAIL, Channel.TELEGRAM),
        quiet_hours=QuietHours(60, 30, "Europe/Berlin"),
    )
    outbox.write(changes(), {"alice": NO_CONTACTS, "bob": NO_CONTACTS}, [("alice", Channel.TELEGRAM, NOW + 9)])
    outbox.write(changes(), {"alice": contacts}, [("alice", Channel.SLACK, NOW - 1)])
    assert outbox.contacts() == {"alice": contacts, "bob": NO_CONTACTS}
    assert outbox.presence(NOW) == [("alice", Channel.TELEGRAM, NOW + 9)]


def test_file_is_readable_by_its_owner_only_and_a_newer_schema_is_refused(path: Path, outbox: EventOutbox) -> None:
    outbox.write(changes(accepted=[live(event())]))
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ValueError, match="schema version 99"):
        open_outbox(path)


def test_old_events_are_deleted_in_portions_and_their_sequences_remembered(path: Path, outbox: EventOutbox) -> None:
    count = MAX_FORGOTTEN + 10
    events = [event(f"e{n}", "alice" if n % 2 else "bob") for n in range(count)]
    outbox.write(
        changes(
            accepted=[live(each, n + 1) for n, each in enumerate(events)],
            attempts=[AttemptRow(each.key, 1, Channel.WEB, NOW) for each in events],
            finals=[final(each, NOW + n) for n, each in enumerate(events[:-2])],
        )
    )
    assert outbox.forget(NOW) == 0
    assert outbox.forget(NOW + count) == MAX_FORGOTTEN
    assert outbox.forget(NOW + count - 3) == 7, "the time is exclusive"
    assert outbox.forget(NOW + count) == 1
    assert outbox.forget(NOW + count) == 0
    assert [each.event for each in outbox.queued()] == events[-2:]  # queued events are never deleted
    with sqlite3.connect(path) as db:
        assert dict(db.execute("SELECT * FROM forgotten")) == {"alice": count - 2, "bob": count - 3}
    db.close()
    assert outbox.sequences() == {"alice": count, "bob": count - 1}
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM attempts").fetchone() == (2,)
    db.close()


def test_sequences_outlive_their_events(outbox: EventOutbox) -> None:
    given = event()
    outbox.write(changes(accepted=[live(given, 41)]))
    outbox.write(changes(finals=[final(given)]))
    outbox.forget(NOW + 10)
    assert outbox.sequences() == {"alice": 41}


# ---- log


def filled(outbox: EventOutbox) -> list[Event]:
    """Return six events: e0-e3 of alice, of which e1 is delivered; e4, e5 of bob, of which e5 failed."""
    events = [event(f"e{n}", "alice" if n < 4 else "bob") for n in range(6)]
    outbox.write(changes(accepted=[live(each, n + 1 if n < 3 else None) for n, each in enumerate(events)]))
    outbox.write(
        changes(
            finals=[final(events[1]), Final(events[5].key, Status.ERROR, None, "expired", NOW + 6)],
            attempts=[
                AttemptRow(events[1].key, 1, Channel.TELEGRAM, NOW, NOW + 1, "too busy", NOW + 3),
                AttemptRow(events[1].key, 2, Channel.WEB, NOW + 3),
            ],
            seen=[Seen("alice", 2, NOW + 7)],
        )
    )
    outbox.write(
        changes(
            attempts=[AttemptRow(events[1].key, 2, Channel.WEB, NOW + 3, NOW + 5, "received")],
            seen=[Seen("alice", 2, NOW + 8)],
        )
    )
    return events


def test_record_has_all_attempts_and_times(path: Path, outbox: EventOutbox) -> None:
    events, log = filled(outbox), EventLog(path)
    record = log.record(events[1].key)
    assert record is not None
    assert (record.body, record.accepted_ns, record.status, record.via) == (
        events[1].body,
        NOW,
        Status.DELIVERED,
        Channel.WEB,
    )
    assert (record.completed_ns, record.seen_ns, record.error) == (
        NOW + 5,
        NOW + 7,
        "",
    )  # first seen
    assert [(a.number, a.channel, a.ended_ns, a.outcome, a.retry_at_ns) for a in record.attempts] == [
        (1, Channel.TELEGRAM, NOW + 1, "too busy", NOW + 3),
        (2, Channel.WEB, NOW + 5, "received", None),
    ]
    failed = log.record(events[5].key)
    assert failed is not None and (failed.status, failed.via, failed.error) == (Status.ERROR, None, "expired")
    assert log.record(EventKey("other", "e1")) is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (EventQuery(), [5, 4, 3, 2, 1, 0]),
        (EventQuery(user_id="alice"), [3, 2, 1, 0]),
        (EventQuery(user_id="alice", status=Status.QUEUED), [3, 2, 0]),
        (EventQuery(status=Status.DELIVERED), [1]),
        (EventQuery(container="c", status=Status.ERROR), [5]),
        (EventQuery(container="other"), []),
        (EventQuery(user_id="carol"), []),
    ],
)
def test_pages_are_newest_first_and_filtered(
    path: Path, outbox: EventOutbox, query: EventQuery, found: list[int]
) -> None:
    filled(outbox)
    log = EventLog(path)
    page = log.page(query)
    assert [record.key.event_id for record in page.records] == [f"e{n}" for n in found]
    assert page.before is None
    pages, before = [], None
    while True:
        part = log.page(replace(query, size=2, before=before))
        pages += [record.key.event_id for record in part.records]
        if (before := part.before) is None:
            break
    assert pages == [f"e{n}" for n in found]


def test_pages_of_large_events_fit_and_lose_none(path: Path, outbox: EventOutbox) -> None:
    """Events of the largest payload: 100 of them, a page by default, would be more than a message of gRPC may have."""
    events = [event(f"e{n}", payload=bytes(65_536)) for n in range(40)]
    outbox.write(changes(accepted=[live(each) for each in events]))
    pages, before = list[list[str]](), None
    while True:
        found = EventLog(path).page(EventQuery(before=before))
        assert sum(len(record.body) for record in found.records) <= MAX_BYTES
        pages.append([record.key.event_id for record in found.records])
        if (before := found.before) is None:
            break
    assert [len(each) for each in pages] == [15, 15, 10]
    assert [each for page in pages for each in page] == [each.key.event_id for each in reversed(events)]


def test_sessions_get_queued_events_or_all_after_a_position(path: Path, outbox: EventOutbox) -> None:
    filled(outbox)
    log = EventLog(path)
    assert [(s.sequence, s.event.key.event_id, s.settled) for s in log.replay_batch("alice", 0, 3).events] == [
        (1, "e0", False),
        (3, "e2", False),
    ]
    assert [(s.sequence, s.settled) for s in log.replay_batch("alice", 1, 0).events] == [(2, True), (3, False)]
    assert [s.sequence for s in log.replay_batch("alice", 0, 0).events] == [1, 2, 3]
    # after the position up to which only queued events are requested, events received by another session follow
    assert [s.sequence for s in log.replay_batch("alice", 0, 1).events] == [1, 2, 3]
    assert log.replay_batch("bob", 0, 5) == log.replay_batch("bob", 0, 0) == ReplayBatch(())


@pytest.mark.parametrize(("payload", "at_once"), [(b"{}", MAX_EVENTS), (bytes(MAX_BYTES // 8), 8)])
def test_log_is_read_in_batches(path: Path, outbox: EventOutbox, payload: bytes, at_once: int) -> None:
    """A session that does not read holds at most one batch, of many events or of large ones."""
    count = 2 * at_once + at_once // 2
    events = [event(f"e{n}", payload=payload) for n in range(count)]
    outbox.write(changes(accepted=[live(each, n + 1) for n, each in enumerate(events)]))
    log, found, sizes, more = EventLog(path), [0], list[int](), True
    while more:
        session_events, more = log.replay_batch("alice", found[-1], 0)
        found += [show.sequence for show in session_events]
        sizes.append(len(session_events))
    assert found == list(range(count + 1))
    assert sizes == [at_once, at_once, at_once // 2]
