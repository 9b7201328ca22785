"""Transactions: acks and their receivers, with a real outbox, the real rules and a manual clock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.user_events import Channel, Priority, Status
from dexorder_gateway.events.delivery.decision import MAX_EVENTS
from dexorder_gateway.events.ingress.containers import LOCAL, STRANGER, Container
from dexorder_gateway.events.model import HELD, Ack, EventKey, Later, SendRefused, Sent, WebPushSubscription
from tests.fakes.events.contacts import contacts_with
from tests.unit.services.gateway.events.dispatcher.stage import SECOND, START, A, Stage, take
from tests.unit.services.gateway.events.samples import body

B = b"connection-b"
ALICES = Container("c", frozenset({"alice"}))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "events.db")
    yield made
    made.outbox.close()


def queued(event_id: str = "e1", reply_to: bytes = A) -> tuple[bytes, Ack]:
    return reply_to, Ack(event_id, Status.QUEUED)


def failed(reason: str, event_id: str = "e1", reply_to: bytes = A) -> tuple[bytes, Ack]:
    return reply_to, Ack(event_id, Status.ERROR, reason)


def delivered(via: Channel, event_id: str = "e1", reply_to: bytes = A) -> tuple[bytes, Ack]:
    return reply_to, Ack(event_id, Status.DELIVERED, via=via)


CRITICAL = body(priority=Priority.CRITICAL)
SESSION_ONLY = [(0, False)]


def test_event_is_queued_shown_acked_and_then_final_once(stage: Stage) -> None:
    assert stage.work(lambda processor: processor.session_opened("alice")).subscribe == [b"USER:alice\x00"]
    effects = stage.work(take((LOCAL, body(), A)))
    assert effects.acks == [queued()]
    assert [(s.user_id, s.sequence, s.event.key) for s in effects.session_events] == [
        ("alice", START + 1, EventKey("local", "e1"))
    ]
    epoch = stage.processor.epoch
    assert stage.work(lambda processor: processor.acked("alice", epoch, START + 1, seen=False)).acks == [
        delivered(Channel.WEB)
    ]
    assert stage.work(lambda processor: processor.acked("alice", epoch, START + 1, seen=True)).acks == []
    assert stage.value("s_finished_total", status="DELIVERED") == 1 and stage.value("s_queued") == 0


def test_check_13_duplicate_changes_nothing_and_gets_the_state(stage: Stage) -> None:
    assert stage.take(CRITICAL) == [queued()]
    assert stage.take(CRITICAL, CRITICAL) == [queued(), queued()]
    stage.again()
    assert stage.take(CRITICAL) == [queued()]
    stage.work(lambda processor: processor.session_opened("alice"))
    assert stage.work(lambda processor: processor.resume("alice", Cursor(processor.epoch, START + 1))).acks == [
        delivered(Channel.WEB)
    ]
    assert stage.take(CRITICAL) == [delivered(Channel.WEB)]
    stage.again()
    effects = stage.work(take((LOCAL, CRITICAL, B)))
    assert effects.acks == [delivered(Channel.WEB, reply_to=B)] and not effects.sends and not effects.session_events
    assert stage.rows() == 1 and stage.value("s_accepted_total", priority="CRITICAL") == 1


def test_duplicates_in_one_transaction_are_one_event_even_if_it_ends_there(stage: Stage) -> None:
    nowhere = body(channels=[(Channel.EMAIL, False)])  # alice has no address: refused permanently at once
    assert stage.take(nowhere, nowhere) == [failed("EMAIL: no contact")] * 2  # one ack per copy
    assert stage.take(nowhere) == [failed("EMAIL: no contact")] and stage.rows() == 1
    assert stage.take(CRITICAL.replace(b"e1", b"e2"), body("e2")) == [queued("e2"), failed("event_id reused", "e2")]


def test_copy_on_the_fast_path_does_not_take_the_final_ack(stage: Stage) -> None:
    assert stage.take(CRITICAL) == [queued()]
    published = (LOCAL, b"USER:alice\x00", CRITICAL)
    effects = stage.work(
        lambda processor: processor.session_opened("alice"),
        lambda processor: processor.receiver.take_published([published]),
        lambda processor: processor.acked("alice", processor.epoch, START + 1, seen=False),
    )
    assert effects.acks == [delivered(Channel.WEB)]


def test_check_14_other_bytes_under_the_same_id_are_refused(stage: Stage) -> None:
    stage.take(CRITICAL)
    other = body(priority=Priority.CRITICAL, payload=b'{"order_id": "o2"}')
    assert stage.take(other) == [failed("event_id reused")]
    stage.work(
        lambda processor: processor.session_opened("alice"),
        lambda processor: processor.acked("alice", processor.epoch, START + 1, seen=False),
    )
    assert stage.take(other) == [failed("event_id reused")] and stage.take(CRITICAL) == [delivered(Channel.WEB)]


def test_check_15_the_same_id_of_another_container_is_another_event(stage: Stage) -> None:
    assert stage.take(CRITICAL) == stage.take(CRITICAL, container=ALICES) == [queued()]
    assert stage.rows() == 2


def test_check_19_final_ack_goes_to_the_sender_of_the_last_copy(stage: Stage) -> None:
    stage.work(lambda processor: processor.session_opened("alice"))
    stage.take(CRITICAL, reply_to=A)
    stage.take(CRITICAL, reply_to=B)
    epoch = stage.processor.epoch
    assert stage.work(lambda processor: processor.acked("alice", epoch, START + 1, seen=False)).acks == [
        delivered(Channel.WEB, reply_to=B)
    ]


def test_copy_that_arrives_as_the_event_ends_gets_one_ack(stage: Stage) -> None:
    stage.work(lambda processor: processor.session_opened("alice"))
    stage.take(CRITICAL)
    effects = stage.work(
        lambda processor: processor.acked("alice", processor.epoch, START + 1, seen=False),
        take((LOCAL, CRITICAL, B)),
    )
    assert effects.acks == [delivered(Channel.WEB, reply_to=B)]


def test_checks_1_and_2_informational_is_shown_or_refused_and_never_stored(stage: Stage) -> None:
    info = body(priority=Priority.INFORMATIONAL)
    assert stage.take(info) == [failed("no active session")]
    stage.work(lambda processor: processor.session_opened("alice"))
    effects = stage.work(take((LOCAL, info, A)))
    assert effects.acks == [delivered(Channel.WEB)]
    assert effects.transient == [("alice", "local", info)]
    stage.work(lambda processor: processor.session_closed("alice"))
    assert stage.take(info) == [failed("no active session")] and stage.rows() == 0


def test_fast_path_shows_without_ack_or_row_but_stores_critical_events(stage: Stage) -> None:
    stage.work(lambda processor: processor.session_opened("alice"))
    sent = [body("i", priority=0), body("n"), CRITICAL, body("b", "bob"), body("x", payload=b"nope"), b"\xff"]
    topic = b"USER:alice\x00"
    effects = stage.work(lambda processor: processor.receiver.take_published([(LOCAL, topic, each) for each in sent]))
    assert [i.body for i in effects.transient] == sent[:2]
    assert effects.acks == []
    assert [s.event.key.event_id for s in effects.session_events] == ["e1"] and stage.rows() == 1
    for reason in ("not_owned", "payload", "undecodable"):
        assert stage.value("_messages_dropped_total", reason=reason) == 1
    stage.work(lambda processor: processor.session_closed("alice"))
    effects = stage.work(lambda processor: processor.receiver.take_published([(LOCAL, topic, sent[0])]))
    assert effects.transient == [] and stage.value("_messages_dropped_total", reason="no_session") == 1


def test_check_24_no_container_sends_for_another_user_on_either_port(stage: Stage) -> None:
    stage.work(lambda processor: processor.session_opened("bob"), lambda processor: processor.session_opened("alice"))
    for priority in Priority:
        forged = body("f", "bob", priority)
        assert stage.take(forged, container=ALICES) == [failed("user not owned", "f")]
        effects = stage.work(
            lambda processor: processor.receiver.take_published(
                [
                    (ALICES, b"USER:bob\x00", forged),  # noqa: B023
                    (ALICES, b"USER:alice\x00", forged),  # noqa: B023
                ]
            )
        )
        assert not effects.transient and not effects.session_events
    assert stage.rows() == 0
    assert stage.take(CRITICAL, container=STRANGER) == [failed("user not owned")]


def test_checks_20_to_22_refused_event_has_no_row(stage: Stage) -> None:
    large = b'"' + b"x" * 65_535 + b'"'
    for sent, reason in (
        (body(payload=b'{"a": NaN}'), "invalid payload"),
        (body(payload=large), "payload too large"),
        (body(channels=[(42, False)]), "no usable channel"),
    ):
        assert stage.take(sent) == [failed(reason)]
    assert stage.take(b"\xff") == stage.work(take((LOCAL, None, A))).acks
    assert stage.rows() == 0 and stage.value("s_refused_total", reason="undecodable") == 2
    assert stage.take(body(event_type=99), body("e2", priority=7)) == [queued(), queued("e2")]
    assert stage.value("s_accepted_total", priority="CRITICAL") == 1


def test_check_23_hard_quota_refuses_normal_and_accepts_critical_and_duplicates(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "e.db", soft_events_per_second=2, hard_events_per_second=3)
    normal = [body(f"n{n}") for n in range(5)]
    assert stage.take(*normal) == [queued(f"n{n}") for n in range(3)] + [
        failed("quota exceeded", "n3"),
        failed("quota exceeded", "n4"),
    ]
    assert stage.take(CRITICAL, normal[0]) == [queued(), queued("n0")]
    assert stage.take(normal[3], container=ALICES) == [queued("n3")]
    assert [each.soft for each in stage.outbox.queued()] == [False, False, True, False, False]
    stage.outbox.close()


def test_critical_events_above_the_limit_get_no_ack_and_are_taken_when_others_have_ended(tmp_path: Path) -> None:
    """A container fills neither memory nor disk for its own users, and another one's events are taken meanwhile."""
    stage = Stage(tmp_path / "events.db", hard_critical_events=2)
    critical = [body(f"c{number}", priority=Priority.CRITICAL) for number in range(4)]
    assert stage.take(*critical) == [queued("c0"), queued("c1")]
    assert stage.take(critical[0], critical[2]) == [queued("c0")], "a copy of a known event is answered"
    assert stage.take(body("n")) == [queued("n")], "NORMAL ones have their own limit"
    assert stage.take(critical[2], container=Container("other", None)) == [queued("c2")]
    assert stage.rows() == 4
    stage.again()
    assert stage.take(critical[2]) == [], "counted after a restart too"
    ((_, told),) = stage.work(take((LOCAL, critical[3], print))).acks
    assert told.error == HELD, "a call is told"
    shown = {each.event.key: each.sequence or 0 for each in stage.outbox.queued()}[EventKey("local", "c0")]
    stage.work(lambda processor: processor.acked("alice", processor.epoch, shown, seen=False))
    assert stage.take(critical[2]) == [queued("c2")]
    stage.outbox.close()


def test_bytes_of_critical_events_are_limited(tmp_path: Path) -> None:
    first, second = (body(each, priority=Priority.CRITICAL) for each in ("c0", "c1"))
    stage = Stage(tmp_path / "events.db", hard_critical_bytes=len(first) + len(second) - 1)
    assert stage.take(first, second) == [queued("c0")]


def test_queued_events_count_against_the_quota_until_they_end_and_after_a_restart(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "e.db", hard_queued_events=2, normal_ttl_seconds=60)
    assert stage.take(body("1"), body("2"), body("3"))[2] == failed("quota exceeded", "3")
    stage.again()
    assert stage.take(body("3")) == [failed("quota exceeded", "3")]
    stage.clock.advance(61 * SECOND)
    stage.work()
    assert stage.take(body("3")) == [queued("3")]
    stage.outbox.close()


def test_check_5_expiry_is_acked_once(stage: Stage) -> None:
    stage.take(body(channels=SESSION_ONLY))
    due_ns = stage.processor.next_due_ns()
    assert due_ns is not None and due_ns - stage.clock.wall_ns() == 60 * SECOND
    stage.clock.advance(60 * SECOND)
    assert stage.work().acks == [failed("expired")]
    assert stage.work().acks == []
    effects = stage.work(lambda processor: processor.session_opened("alice"))
    assert effects.session_events == []


class Busy(ManualClock):
    """Clock that advances while work is done."""

    def monotonic_ns(self) -> int:
        self.advance(1_000_000)
        return super().monotonic_ns()


def test_much_due_work_takes_several_transactions_and_acks_continue_between_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "e.db", soft_events_per_second=1, hard_events_per_second=10_000)
    stage.clock = stage.processor._clock = Busy()
    count = 30 * MAX_EVENTS
    stage.work(lambda processor: processor.set_contacts("alice", contacts_with(telegram_chat_id="7")))
    stage.take(*(body(f"e{n}", channels=[(Channel.TELEGRAM, False)]) for n in range(count)))
    stage.clock.advance(11 * SECOND)
    sends, transactions = list(stage.work().sends), 1
    while not sends:
        new = body(f"new-{transactions}", "bob", Priority.CRITICAL, channels=SESSION_ONLY)
        effects = stage.work(take((LOCAL, new, A)))
        assert effects.acks == [queued(f"new-{transactions}")]
        sends += effects.sends
        transactions += 1
    assert transactions > 4 and [send.message.title for send in sends] == [f"{count - 1} events"]
    stage.outbox.close()


def test_restart_continues_queued_events(stage: Stage) -> None:
    contacts = contacts_with(telegram_chat_id="7")
    stage.work(lambda processor: processor.set_contacts("alice", contacts))
    sent = stage.work(take((LOCAL, CRITICAL, A))).sends
    assert [(s.channel, s.contacts) for s in sent] == [(Channel.TELEGRAM, contacts)]
    again = stage.again().sends
    assert [(s.key, s.channel, s.contacts) for s in again] == [(sent[0].key, Channel.TELEGRAM, contacts)]
    assert again[0].number > sent[0].number
    assert (
        stage.work(lambda processor: processor.finished(sent[0].key, sent[0].number, Sent())).acks == []
    )  # of another life
    assert (
        stage.work(lambda processor: processor.finished(sent[0].key, again[0].number, Sent())).acks == []
    )  # nobody asked again
    assert stage.take(CRITICAL) == [delivered(Channel.TELEGRAM)]


def test_pause_of_a_provider_applies_to_all_users_across_a_restart(stage: Stage) -> None:
    for user in ("alice", "bob"):
        stage.work(lambda processor, user=user: processor.set_contacts(user, contacts_with(telegram_chat_id=user)))  # type: ignore[misc]
    (send,) = stage.work(take((LOCAL, CRITICAL, A))).sends
    stage.work(lambda processor: processor.finished(send.key, send.number, Later("too many requests", 6_000)))
    assert stage.again().sends == []
    assert stage.work(take((LOCAL, body("e2", "bob", Priority.CRITICAL), A))).sends == []
    stage.clock.advance(6 * SECOND - 1)
    assert stage.work().sends == []
    stage.clock.advance(1)
    assert {each.user_id for each in stage.work().sends} == {"alice", "bob"}


def test_missing_destination_is_removed_from_the_contacts(stage: Stage) -> None:
    subscription = WebPushSubscription("https://push/1", "k", "s")
    stage.work(lambda processor: processor.set_contacts("alice", contacts_with(web_push=(subscription,), email="a@b")))
    (send,) = stage.work(take((LOCAL, body(channels=[(Channel.PUSH, False)]), A))).sends
    effects = stage.work(
        lambda processor: processor.finished(send.key, send.number, SendRefused("gone", ("https://push/1",)))
    )
    assert effects.acks == [failed("PUSH: gone")]
    assert stage.processor.contacts("alice") == stage.outbox.contacts()["alice"] == contacts_with(email="a@b")


def test_check_25_cursor_of_this_log_resumes_and_others_are_reset(stage: Stage) -> None:
    for n in range(3):
        stage.take(body(f"e{n}", priority=Priority.CRITICAL))
    stage.work(lambda processor: processor.session_opened("alice"))
    found: list[Any] = []
    for cursor in (
        None,
        Cursor(stage.processor.epoch, START + 2),
        Cursor("another", START + 2),
        Cursor(stage.processor.epoch, START + 4),
        Cursor(stage.processor.epoch, START),
        Cursor(stage.processor.epoch, 2**64),
    ):
        stage.work(lambda processor: found.append(processor.resume("alice", cursor)))  # noqa: B023
    last = START + 3
    assert found == [(last, False), (last, False), (last, True), (last, True), (last, True), (last, True)]
    assert [each.sequence for each in stage.outbox.queued()] == [last]  # the second cursor said that two were received
    stage.clock.advance(8 * 86_400 * SECOND)
    assert stage.processor.forget() and not stage.processor.forget()
    stage.work(lambda processor: found.append(processor.resume("alice", Cursor(processor.epoch, START + 1))))
    stage.work(lambda processor: found.append(processor.resume("alice", Cursor(processor.epoch, START + 2))))
    assert found[6:] == [(last, True), (last, False)]  # what came after 1 is no longer kept


async def test_futures_are_resolved_after_the_write_with_a_value_or_the_error(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    fine, bad = loop.create_future(), loop.create_future()
    effects = stage.work(
        lambda processor: processor.resolve(fine, lambda: processor.set_contacts("alice", contacts_with(email="a@b"))),
        lambda processor: processor.resolve(bad, lambda: processor.acked("alice", "another", 1, seen=True)),
    )
    (_, nothing), (_, error) = effects.resolved
    assert [future for future, _ in effects.resolved] == [fine, bad]
    assert nothing is None and "another log" in str(error)
    stage.outbox.close()
    with pytest.raises(sqlite3.ProgrammingError):
        stage.take(CRITICAL)
