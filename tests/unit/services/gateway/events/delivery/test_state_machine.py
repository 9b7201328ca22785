"""Delivery rules; "check 7" is number 7 of the specification of user events."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dexorder_common.model.user_events import Channel, Priority
from dexorder_gateway.events.delivery.changes import DeliveryChanges
from dexorder_gateway.events.delivery.decision import MAX_EVENTS
from dexorder_gateway.events.model import NO_CONTACTS, Contacts, EventKey, Later, QuietHours, SendRefused, Sent
from tests.fakes.events.contacts import contacts_with
from tests.unit.services.gateway.events.harness import (
    DAY,
    EVERYWHERE,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    World,
    delivery_rules,
    event,
)

NORMAL, CRITICAL = Priority.NORMAL, Priority.CRITICAL
TELEGRAM, EMAIL, PUSH = Channel.TELEGRAM, Channel.EMAIL, Channel.PUSH


def test_normal_event_waits_for_a_session_that_opens_in_time() -> None:
    """Check 4."""
    world = World()
    world.accept(event("e", "WEB", priority=NORMAL))
    world.advance(59)
    assert world.state("e") == "Q"
    assert [show.event.key.event_id for show in world.open_session().session_events] == ["e"]
    world.receive(1)
    assert world.state("e") == "D WEB"


def test_normal_event_without_a_session_expires_once() -> None:
    """Check 5; a later session is shown nothing."""
    world = World()
    world.accept(event("e", "WEB", priority=NORMAL))
    world.advance(59.999)
    assert world.state("e") == "Q"
    world.advance(0.001)
    assert world.state("e") == "E expired"
    assert world.open_session().session_events == []


def test_session_that_opens_too_late_is_not_shown_an_expired_event() -> None:
    world = World()
    world.accept(event("e", "WEB", priority=NORMAL))
    world.now_ns += 60 * SECOND  # `due` has not been called yet
    assert world.open_session().session_events == []
    world.advance(0)
    assert world.state("e") == "E expired"


def test_session_that_acks_in_time_is_the_only_channel() -> None:
    """Check 6."""
    world = World()
    world.open_session()
    world.accept(event("e", "ACTIVE_SESSION TELEGRAM"))
    world.advance(4.9)
    world.receive(1)
    world.advance(600)
    assert (world.state("e"), world.calls) == ("D WEB", [])
    assert world.outcomes("e") == [("WEB", "received")]


def test_session_without_an_ack_escalates_to_the_next_channel() -> None:
    """Check 7."""
    world = World()
    world.open_session()
    world.accept(event("e", "ACTIVE_SESSION TELEGRAM"))
    world.advance(60)
    assert world.calls == [(NOON + 5 * SECOND, TELEGRAM, EventKey("bot", "e"))]
    world.answer(Sent())
    assert world.state("e") == "D TELEGRAM"
    assert world.receive(1) == DeliveryChanges()
    assert world.outcomes("e") == [("WEB", "no ack"), ("TELEGRAM", "sent")]


def test_ack_during_a_call_is_the_delivery_and_the_call_still_ends() -> None:
    world = World()
    world.open_session()
    world.accept(event("e", "ACTIVE_SESSION TELEGRAM"))
    world.advance(6)
    world.receive(1)
    assert world.state("e") == "D WEB"
    world.answer(Later("busy", 3000))
    world.accept(event("f", "TELEGRAM"))  # the pause applies to the next event
    assert [key.event_id for _, _, key in world.calls] == ["e"]
    world.advance(3)
    assert [key.event_id for _, _, key in world.calls] == ["e", "f"]


def test_critical_event_tries_the_next_channel_at_once() -> None:
    """Check 8: the e-mail's second attempt is cancelled."""
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL PUSH"))
    world.answer(SendRefused("blocked by the user"))
    world.answer(Later("server error"))
    world.answer(Sent())
    assert (world.called(), world.now_ns, world.state("e")) == ("TELEGRAM EMAIL PUSH", NOON, "D PUSH")
    world.advance(DAY // SECOND)
    assert world.called() == "TELEGRAM EMAIL PUSH"


def test_normal_event_tries_a_channel_again_before_the_next() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL", priority=NORMAL))
    world.advance_to(NOON + 6 * SECOND, answer=lambda: world.answer_all(Later("server error")))
    assert world.called().startswith("TELEGRAM TELEGRAM TELEGRAM EMAIL")
    first, second, third, mail, *_ = [at_ns for at_ns, _, _ in world.calls]
    assert SECOND <= second - first <= 2 * SECOND <= third - second <= 4 * SECOND
    assert mail == third


def test_channel_where_the_user_is_not_active_is_skipped() -> None:
    """Check 9."""
    world = World()
    world.accept(event("e", "TELEGRAM? EMAIL"))
    world.answer(Sent())
    assert (world.called(), world.state("e")) == ("EMAIL", "D EMAIL")
    assert world.outcomes("e") == [("TELEGRAM", "not active"), ("EMAIL", "sent")]


def test_activity_is_checked_in_each_round() -> None:
    """Check 9: presence changes while the event is queued."""
    world = World()
    world.accept(event("e", "TELEGRAM? EMAIL"))
    world.answer(Later("server error"))
    world.reach(TELEGRAM, 60)
    assert world.called() == "EMAIL TELEGRAM"
    world.answer(Later("server error"))
    world.advance(4)
    world.reach(TELEGRAM, 0)
    world.answer(Later("server error"))
    world.advance(10)
    assert set(world.called().split()[2:]) == {"EMAIL"}


@pytest.mark.parametrize("priority", [NORMAL, CRITICAL])
def test_event_for_an_active_user_waits_for_activity(priority: Priority) -> None:
    """Check 10."""
    world = World()
    world.accept(event("e", "WEB? TELEGRAM?", priority=priority))
    world.advance(59)
    assert world.state("e") == "Q"
    if priority is CRITICAL:
        world.advance(30 * DAY // SECOND)
    elif priority is NORMAL:
        world.advance(1)
        assert world.state("e") == "E expired"
        return
    world.open_session()
    world.receive(1)
    assert (world.state("e"), world.calls) == ("D WEB", [])


def test_event_for_sessions_only_is_not_rewritten_while_it_waits() -> None:
    """Otherwise 100,000 of them would be rewritten repeatedly."""
    world = World()
    world.accept(event("e", "ACTIVE_SESSION"))
    assert world.delivery.next_due_ns() is None
    world.open_session()
    assert world.delivery.next_due_ns() is None
    assert world.restart().updated == []


def test_provider_is_not_called_during_the_pause_it_asked_for() -> None:
    """Check 11."""
    world = World(bob=contacts_with(EVERYWHERE, discord_webhook_url="https://discord.example/2"))
    world.accept(event("first"))
    world.answer(Later("too many requests", 3000))
    world.accept(event("second", user_id="bob"))
    world.accept(event("mail", "EMAIL"))
    world.advance(2.999)
    assert world.called() == "TELEGRAM EMAIL"
    world.advance(0.001)
    assert world.called() == "TELEGRAM EMAIL TELEGRAM TELEGRAM"
    for _ in range(3):
        world.answer(Sent())
    assert (world.state("first"), world.state("second")) == ("D TELEGRAM", "D TELEGRAM")


def test_webhooks_do_not_wait_for_each_other() -> None:
    world = World(bob=contacts_with(EVERYWHERE, discord_webhook_url="https://discord.example/2"))
    world.accept(event("alices", "DISCORD"))
    world.answer(Later("too many requests", 3000))
    world.accept(event("again", "DISCORD"))
    assert len(world.calls) == 1
    world.accept(event("bobs", "DISCORD", user_id="bob"))
    assert len(world.calls) == 2


@pytest.mark.parametrize(("pause_ms", "next_channel"), [(30_000, "TELEGRAM"), (30_001, "EMAIL")])
@pytest.mark.parametrize("priority", [NORMAL, CRITICAL])
def test_event_does_not_wait_for_a_long_pause(priority: Priority, pause_ms: int, next_channel: str) -> None:
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL", priority=priority))
    world.answer(Later("too many requests", pause_ms))
    world.accept(event("f", "TELEGRAM EMAIL", priority=priority))  # nor do later events
    world.advance(30)
    assert world.called() == " ".join(["TELEGRAM", next_channel, next_channel])


def test_provider_that_only_asks_for_pauses_is_skipped_in_the_end() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL"))
    for _ in range(3):
        world.answer(Later("too many requests", 1000))
        world.advance(1)
    assert world.called() == "TELEGRAM TELEGRAM TELEGRAM EMAIL"


@pytest.mark.parametrize("priority", [NORMAL, CRITICAL])
def test_refusal_by_all_channels_is_final_and_names_the_reasons(priority: Priority) -> None:
    """Check 12."""
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL PUSH", priority=priority))
    world.answer(SendRefused("blocked by the user"))
    world.answer(SendRefused("no such address"))
    changes = world.answer(SendRefused("gone", gone=("https://push.example/1",)))
    assert changes.gone == [("alice", PUSH, "https://push.example/1")]
    assert world.state("e") == "E TELEGRAM: blocked by the user; EMAIL: no such address; PUSH: gone"


def test_missing_destination_is_removed_even_if_another_accepted_the_message() -> None:
    world = World()
    world.accept(event("e", "PUSH"))
    assert world.answer(Sent(gone=("https://push.example/0",))).gone == [("alice", PUSH, "https://push.example/0")]
    assert world.state("e") == "D PUSH"


def test_event_without_a_usable_channel_is_final_at_once() -> None:
    """Check 20, and one row: a duplicate is answered the same way."""
    world = World()
    changes = world.accept(event("e", "TELEGRAM EMAIL", user_id="bob"))
    assert len(changes.accepted) == len(changes.finals) == 1
    assert world.state("e") == "E TELEGRAM: no contact; EMAIL: no contact"


def test_event_refused_by_all_providers_waits_for_a_session() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM WEB"))
    world.answer(SendRefused("blocked by the user"))
    world.advance(DAY // SECOND)
    assert world.state("e") == "Q"
    world.open_session()
    world.receive(1)
    assert world.state("e") == "D WEB"


@pytest.mark.parametrize("kill_after", ["accept", "send", "sent"])
def test_restart_continues_from_the_rows_on_disk(kill_after: str) -> None:
    """Checks 13, 17 and 18: a call whose result was lost is repeated, that of a final event is not."""
    world = World()
    names = "ACTIVE_SESSION TELEGRAM"
    if kill_after == "accept":
        world.open_session()
    world.accept(event("e", names))
    if kill_after == "sent":
        world.answer(Sent())
    first = [send.message.reference for send in world.sends.values()]
    world.advance(1)
    world.restart()
    world.advance(60)
    if kill_after != "sent":
        assert [send.message.reference for send in world.sends.values()][: len(first)] == first
        world.answer(Sent())
    assert world.state("e") == "D TELEGRAM"
    assert world.called() == ("TELEGRAM TELEGRAM" if kill_after == "send" else "TELEGRAM")
    if kill_after == "accept":
        assert world.outcomes("e") == [("WEB", "no ack"), ("TELEGRAM", "sent")]


def test_same_id_of_two_containers_is_two_events() -> None:
    """Check 15."""
    world = World()
    world.accept(event("e", container="one"))
    world.accept(event("e", container="two"))
    world.answer(Sent())
    world.answer(Sent())
    assert (world.state("e", "one"), world.state("e", "two")) == ("D TELEGRAM", "D TELEGRAM")


def test_event_without_channels_uses_a_session_then_the_default_or_the_users_order() -> None:
    """Check 20."""
    world = World(bob=contacts_with(email="bob@example.org", telegram_chat_id="2", channel_order=(EMAIL, TELEGRAM)))
    world.open_session()
    assert len(world.accept(event("e", "")).session_events) == 1
    world.advance(5)
    for _ in range(6):
        world.answer(Later("server error"))
    assert world.called() == "TELEGRAM PUSH EMAIL DISCORD SLACK MATRIX"
    world.calls.clear()
    world.accept(event("b", "", user_id="bob"))
    world.answer(Later("server error"))
    assert world.called() == "EMAIL TELEGRAM"


def test_critical_event_is_tried_without_end() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM EMAIL"))
    days = 10
    world.advance_to(NOON + days * DAY, answer=lambda: world.answer_all(Later("server error")))
    assert world.state("e") == "Q"
    times = [at_ns for at_ns, channel, _ in world.calls if channel is TELEGRAM]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(times) >= days * DAY // (300 * SECOND)
    assert max(gaps) <= 300 * SECOND
    assert [SECOND << n for n in range(4)] <= gaps[:4] <= [SECOND << n + 1 for n in range(4)]


def test_normal_event_is_tried_in_rounds_until_it_expires() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM", priority=NORMAL))
    world.advance_to(NOON + HOUR, answer=lambda: world.answer_all(Later("server error")))
    assert world.state("e") == "E expired"
    assert len(world.calls) > 3
    assert world.disk.finals[EventKey("bot", "e")].completed_ns == NOON + MINUTE


def test_result_of_a_call_counts_after_the_event_expired() -> None:
    world = World()
    for name in ("good", "bad"):
        world.accept(event(name, priority=NORMAL))
    world.advance(65)
    assert world.state("good") == "Q"
    world.answer(Sent())
    world.answer(Later("timeout"))
    world.advance(0)
    assert (world.state("good"), world.state("bad")) == ("D TELEGRAM", "E expired")


NIGHT = QuietHours(22 * 60, 7 * 60, "UTC")


def test_quiet_hours_hold_back_events_that_are_not_critical() -> None:
    world = World(alice=replace(EVERYWHERE, quiet_hours=NIGHT))
    world.now_ns = NOON + 10 * HOUR  # 22:00
    world.accept(event("normal", "TELEGRAM WEB", priority=NORMAL))
    world.accept(event("critical", "TELEGRAM"))
    world.answer(Sent())
    assert [key.event_id for _, _, key in world.calls] == ["critical"]
    world.restart()
    world.advance(9 * 3600 - 1)
    assert world.state("normal") == "Q"
    world.advance(1)  # 7:00
    assert [key.event_id for _, _, key in world.calls] == ["critical", "normal"]
    world.answer(Later("server error"))
    world.advance(61)
    world.answer_all(Later("server error"))
    world.advance(61)
    assert world.state("normal") == "E expired"


def test_quiet_hours_do_not_apply_to_sessions() -> None:
    world = World(alice=replace(EVERYWHERE, quiet_hours=NIGHT))
    world.now_ns = NOON + 11 * HOUR
    world.open_session()
    world.accept(event("e", "TELEGRAM WEB", priority=NORMAL))
    world.receive(1)
    assert world.state("e") == "D WEB"


def test_quiet_hours_extend_an_events_time_once() -> None:
    world = World(delivery_rules(normal_ttl_ns=2 * DAY), alice=replace(EVERYWHERE, quiet_hours=NIGHT))
    world.now_ns = NOON + 11 * HOUR
    world.accept(event("e", "TELEGRAM", priority=NORMAL))
    world.advance_to(NOON + 9 * DAY, answer=lambda: world.answer_all(Later("server error")))
    assert world.state("e") == "E expired"


def test_events_above_the_soft_quota_are_sent_in_one_message() -> None:
    """Check 23."""
    world = World(bob=EVERYWHERE)
    for n in range(60):
        world.accept(event(f"a{n}", "TELEGRAM", priority=NORMAL), soft=True)
    world.advance(3)
    world.accept(event("late", "TELEGRAM", priority=NORMAL), soft=True)
    world.accept(event("bobs", "TELEGRAM", priority=NORMAL, user_id="bob"), soft=True)
    world.accept(event("critical", "TELEGRAM"), soft=True)
    assert [key.event_id for _, _, key in world.calls] == ["critical"]
    world.answer(Sent())
    world.advance(7)
    (send,) = world.sends.values()
    assert send.message.title == "61 events"
    assert send.message.body.splitlines()[::49] == ["title a0", "title a49"]
    assert send.message.body.endswith("\nand 11 more")
    world.answer(Later("server error"))
    world.advance(2)
    (again,) = world.sends.values()
    assert again.message == send.message
    world.answer(Sent())
    assert {world.state(f"a{n}") for n in range(60)} | {world.state("late")} == {"D TELEGRAM"}
    world.advance(1)
    (bobs,) = world.sends.values()
    assert bobs.message.title == "title bobs"


def test_digest_that_waits_for_its_provider_stays_whole() -> None:
    world = World(delivery_rules(max_concurrent_sends=1))
    world.accept(event("first", "TELEGRAM"))
    for n in range(5):
        world.accept(event(f"a{n}", "TELEGRAM", priority=NORMAL), soft=True)
    world.advance(10)
    world.answer(Sent())
    assert [send.message.title for send in world.sends.values()] == ["5 events"]


def test_digest_survives_a_restart() -> None:
    world = World()
    for n in range(5):
        world.accept(event(f"a{n}", "TELEGRAM", priority=NORMAL), soft=True)
    world.advance(10)
    world.restart()
    assert [send.message.title for send in world.sends.values()] == ["5 events"]


def test_provider_takes_a_limited_number_of_calls_and_critical_events_first() -> None:
    world = World(delivery_rules(max_concurrent_sends=2))
    for n in range(4):
        world.accept(event(f"n{n}", priority=NORMAL))
    world.accept(event("c"))
    assert len(world.sends) == 2
    while world.sends:
        world.answer(Sent())
    assert [key.event_id for _, _, key in world.calls] == ["n0", "n1", "c", "n2", "n3"]


def webhook(user_id: str) -> Contacts:
    return contacts_with(discord_webhook_url=f"https://discord.example/{user_id}")


def test_webhooks_of_one_channel_share_its_calls_and_alternate() -> None:
    users = ("alice", "bob", "carol")
    world = World(
        delivery_rules(max_concurrent_sends=2), alice=webhook("alice"), bob=webhook("bob"), carol=webhook("carol")
    )
    for n in range(3):
        for user_id in users:
            world.accept(event(f"{user_id[0]}{n}", "DISCORD", user_id=user_id))
    most = 0
    while world.sends:
        most = max(most, len(world.sends))
        world.answer(Sent())
    assert most == 2
    assert [key.event_id for _, _, key in world.calls] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_full_channel_does_not_hold_up_another() -> None:
    world = World(delivery_rules(max_concurrent_sends=1))
    for n in range(3):
        world.accept(event(f"d{n}", "DISCORD"))
    world.accept(event("s", "SLACK"))
    assert [send.channel for send in world.sends.values()] == [Channel.DISCORD, Channel.SLACK]


def test_paused_webhook_gives_its_turn_to_others_and_returns_after_the_pause() -> None:
    world = World(delivery_rules(max_concurrent_sends=1), alice=webhook("alice"), bob=webhook("bob"))
    for name, user_id in (("a0", "alice"), ("a1", "alice"), ("b0", "bob"), ("b1", "bob")):
        world.accept(event(name, "DISCORD", user_id=user_id))
    world.answer(Later("too many requests", 5_000))
    while world.sends:
        world.answer(Sent())
    assert [key.event_id for _, _, key in world.calls] == ["a0", "b0", "b1"]
    world.advance(5)
    while world.sends:
        world.answer(Sent())
    assert {world.state(name) for name in ("a0", "a1", "b0", "b1")} == {"D DISCORD"}
    assert world.delivery.next_due_ns() is None


def test_event_that_was_received_while_it_waited_for_a_provider_is_not_sent() -> None:
    world = World(delivery_rules(max_concurrent_sends=1))
    world.open_session()
    for name in ("first", "second"):
        world.accept(event(name, "WEB TELEGRAM"))
    world.advance(5)
    world.receive(2)
    world.answer(Sent())
    assert (world.called(), world.state("second")) == ("TELEGRAM", "D WEB")


def test_event_that_waits_for_a_provider_too_long_expires() -> None:
    world = World(delivery_rules(max_concurrent_sends=1))
    world.accept(event("first"))
    world.accept(event("second", priority=NORMAL))
    world.advance(60)
    assert world.state("second") == "E expired"


def test_digest_larger_than_one_decision_stays_whole() -> None:
    world = World()
    for n in range(1200):
        world.accept(event(f"a{n}", "TELEGRAM", priority=NORMAL), soft=True)
    world.advance(10)
    assert [send.message.title for send in world.sends.values()] == ["1200 events"]


def test_backoff_differs_by_event_and_not_by_process() -> None:
    world = World()
    for n in range(20):
        world.accept(event(f"e{n}"))
    world.answer_all(Later("server error"))
    world.advance(2)
    pauses = [at_ns - NOON for at_ns, _, _ in world.calls[20:]]
    assert len(set(pauses)) > 15
    assert all(SECOND <= pause <= 2 * SECOND for pause in pauses)


def test_log_of_a_session_is_in_order_after_a_restart() -> None:
    world = World()
    world.accept(event("second", "TELEGRAM WEB"))
    world.accept(event("first", "WEB"))
    world.open_session()
    world.restart()
    assert [show.sequence for show in world.open_session().session_events] == [1, 2]


def test_each_opening_shows_all_pending_events_in_order() -> None:
    world = World()
    world.accept(event("tele", "TELEGRAM WEB"))
    world.accept(event("web", "WEB"))
    world.accept(event("mail", "EMAIL"))
    assert [(show.sequence, show.event.key.event_id) for show in world.open_session().session_events] == [
        (1, "web"),
        (2, "tele"),
    ]
    world.receive(1)
    world.close_session()
    assert [show.sequence for show in world.open_session().session_events] == [2]
    world.restart()
    world.accept(event("new", "WEB"))
    new = world.now_ns // 1_000 + 1
    assert [show.sequence for show in world.open_session().session_events] == [2, new]
    world.receive_up_to(new)
    assert [world.state(name) for name in ("web", "tele", "new", "mail")] == ["D WEB", "D WEB", "D WEB", "Q"]


def test_ack_time_counts_from_the_moment_the_event_was_shown() -> None:
    """A session that opened while another channel was tried: the event does not wait five seconds again."""
    world = World()
    world.accept(event("e", "TELEGRAM WEB EMAIL"))
    world.open_session()
    world.advance(3)
    world.answer(SendRefused("blocked by the user"))
    world.advance(2)
    assert world.called() == "TELEGRAM EMAIL"


def test_seen_implies_received_and_may_be_reported_late_and_again() -> None:
    world = World()
    world.open_session()
    world.accept(event("e", "WEB"))
    assert world.see(1).seen == world.see(1).seen != []
    assert world.state("e") == "D WEB"
    assert world.see(2) == DeliveryChanges()
    assert world.see(0) == DeliveryChanges()
    assert world.see(1, user_id="bob") == DeliveryChanges()


def test_waiting_events_use_new_contacts() -> None:
    world = World(bob=NO_CONTACTS)
    world.accept(event("e", "WEB TELEGRAM", user_id="bob"))
    world.advance(600)
    world.set_contacts(contacts_with(telegram_chat_id="2"), "bob")
    assert world.called() == "TELEGRAM"
    world.answer(SendRefused("blocked by the user"))
    world.advance(600)
    assert world.called() == "TELEGRAM"
    world.set_contacts(contacts_with(telegram_chat_id="3"), "bob")
    assert world.called() == "TELEGRAM TELEGRAM"
    world.answer(Sent())
    assert world.state("e") == "D TELEGRAM"


def test_refusal_of_old_contacts_does_not_apply_to_new_ones() -> None:
    world = World()
    world.accept(event("e", "TELEGRAM"))
    world.set_contacts(contacts_with(EVERYWHERE, telegram_chat_id="200"))
    world.answer(SendRefused("no such chat"))
    world.advance(2)
    assert world.called() == "TELEGRAM TELEGRAM"


@pytest.mark.parametrize("what", ["restart", "due", "answer", "open", "cursor", "contacts", "reach", "provider"])
def test_large_amounts_of_work_are_done_in_portions(what: str) -> None:
    """A transaction, for which all containers wait, is never long."""
    many = 5 * MAX_EVENTS
    world = World(delivery_rules(max_concurrent_sends=1, normal_ttl_ns=DAY))
    if what == "provider":
        world.accept(event("first", "TELEGRAM"))
    names = {"cursor": "WEB", "open": "WEB TELEGRAM", "reach": "TELEGRAM?"}.get(what, "TELEGRAM")
    for n in range(many):
        world.accept(event(f"e{n}", names, priority=NORMAL), soft=what != "cursor")
    if what in ("restart", "answer", "reach", "provider"):
        world.advance(10)
    world.sizes.clear()
    match what:
        case "restart":
            world.restart()
        case "due":
            world.advance(10)
        case "answer" | "provider":
            world.answer(Sent())
        case "open":
            world.open_session()
        case "cursor":
            world.receive_up_to(many)
        case "contacts":
            world.set_contacts(contacts_with(EVERYWHERE, telegram_chat_id="2"))
        case "reach":
            world.reach(TELEGRAM, 60)
    assert len(world.sizes) >= 4
    assert max(world.sizes) <= MAX_EVENTS + 1, world.sizes
