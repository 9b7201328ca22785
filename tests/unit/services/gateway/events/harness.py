"""Delivery rules with a fake disk, a manual clock and providers whose results the test chooses.

Each `DeliveryChanges` is checked against the invariants, whatever the test does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dexorder_common.model.user_events import SESSION_CHANNELS, Channel, Preference, Priority, Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import AttemptRow, DeliveryChanges, Final, QueuedRow, SendRequest
from dexorder_gateway.events.delivery.channel_policy import ContactsCache, DeliverySettings
from dexorder_gateway.events.delivery.decision import MAX_EVENTS
from dexorder_gateway.events.delivery.delivery import EventDelivery
from dexorder_gateway.events.dispatcher.start import delivery_settings
from dexorder_gateway.events.model import (
    NO_CONTACTS,
    Contacts,
    Event,
    EventKey,
    EventMessage,
    Later,
    QuietHours,
    Result,
    SendRefused,
    Sent,
    WebPushSubscription,
    no_contact,
)
from tests.fakes.events.contacts import contacts_with

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
NOON = 20_000 * DAY + 12 * HOUR
EVERYWHERE = contacts_with(
    telegram_chat_id="100",
    email="alice@example.org",
    web_push=(WebPushSubscription("https://push.example/1", "p", "a"),),
    discord_webhook_url="https://discord.example/1",
    slack_webhook_url="https://slack.example/1",
    matrix_webhook_url="https://matrix.example/1",
)
NAMES = Channel.__members__
REFUSED = {Channel.TELEGRAM: "blocked by the user", Channel.EMAIL: "no such address", Channel.PUSH: "gone"}


def delivery_rules(**changed: Any) -> DeliverySettings:
    return replace(delivery_settings(EventsSettings()), **changed)


def preferences(names: str) -> tuple[Preference, ...]:
    """Return the channels of ``"WEB TELEGRAM?"``; a question mark means only_if_active."""
    return tuple(Preference(NAMES[name.rstrip("?")], name.endswith("?")) for name in names.split())


def event(
    event_id: str,
    names: str = "TELEGRAM",
    *,
    priority: Priority = Priority.CRITICAL,
    user_id: str = "alice",
    container: str = "bot",
    event_type: int = 1,
) -> Event:
    key = EventKey(container, event_id)
    return Event(key, user_id, 1_700_000_000_000, event_type, b"{}", priority, preferences(names), event_id.encode())


def render(event: Event) -> EventMessage:
    return EventMessage(f"{hash(event.key) & 0xFFFF:x}", f"title {event.key.event_id}", "body", event.priority, 0)


@dataclass
class Disk:
    """State that survives a restart: the rows, as the outbox would store them."""

    queued: dict[EventKey, QueuedRow] = field(default_factory=dict)
    events: dict[EventKey, Event] = field(default_factory=dict)
    finals: dict[EventKey, Final] = field(default_factory=dict)
    attempts: dict[tuple[EventKey, int], AttemptRow] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    contacts: dict[str, Contacts] = field(default_factory=dict)


class World:
    """Environment of a `EventDelivery`; checks the invariants after each input."""

    def __init__(
        self, rules: DeliverySettings | None = None, *, max_events: int = MAX_EVENTS, **contacts: Contacts
    ) -> None:
        self.rules = rules or delivery_rules()
        self.max_events = max_events
        self.now_ns = NOON
        self.position = 0
        self.positions: dict[str, list[int]] = defaultdict(list)
        self.disk = Disk(contacts={"alice": EVERYWHERE, **contacts})
        self.presence: dict[tuple[str, Channel], int] = {}
        self.open: set[str] = set()
        self.calls: list[tuple[int, Channel, EventKey]] = []
        self.shown: list[tuple[str, int, str]] = []
        self.shown_since_opening: dict[str, set[int]] = defaultdict(set)
        self.refused: set[tuple[EventKey, Channel]] = set()
        self.blocked: dict[tuple[Channel, str], int] = {}
        self.acked: set[EventKey] = set()
        self.sizes: list[int] = []
        self.start()

    def start(self) -> None:
        self.people = ContactsCache(self.disk.contacts, ((*who, until) for who, until in self.presence.items()))
        self.delivery = EventDelivery(self.rules, self.people, render=render, max_events=self.max_events)
        self.sends: dict[tuple[EventKey, int], SendRequest] = {}
        self.members: dict[tuple[EventKey, int], list[EventKey]] = {}
        self.under_way: dict[EventKey, int] = {}

    # ---- inputs

    def accept(self, event: Event, *, soft: bool = False) -> DeliveryChanges:
        changes = self.delivery.accept([(event, soft)], now_ns=self.now_ns)
        assert [row.event for row in changes.accepted] == [event]
        return self.take(changes)

    def answer(self, result: Result, send: SendRequest | None = None) -> DeliveryChanges:
        """Give the result of a call, by default of the first one under way."""
        if send is None:
            send = next(iter(self.sends.values()))
        del self.sends[send.key, send.number]
        members = self.members.pop((send.key, send.number))
        alive = [key for key in members if key not in self.disk.finals]
        for key in members:
            del self.under_way[key]
            if isinstance(result, SendRefused) and self.contacts(send.user_id) == send.contacts:
                self.refused.add((key, send.channel))
        if isinstance(result, Later) and result.retry_after_ms is not None:
            provider = _provider(send.channel, send.contacts)
            until_ns = self.now_ns + result.retry_after_ms * 1_000_000
            self.blocked[provider] = max(self.blocked.get(provider, 0), until_ns)
        changes = self.whole(self.delivery.finished(send.key, send.number, result, now_ns=self.now_ns))
        ended = [row for row in changes.attempts if row.ended_ns is not None and row.channel is send.channel]
        assert {row.key for row in ended} >= set(members)
        self.take(changes, sent=alive if isinstance(result, Sent) else (), via=send.channel)
        assert self.delivery.finished(send.key, send.number, Sent(), now_ns=self.now_ns) == DeliveryChanges()
        return changes

    def answer_all(self, result: Result) -> None:
        """Give the same result to all calls under way, and to those that begin then."""
        while self.sends:
            self.answer(result)

    def open_session(self, user_id: str = "alice") -> DeliveryChanges:
        already = user_id in self.open
        self.open.add(user_id)
        if not already:
            self.shown_since_opening[user_id].clear()
        due = {
            key
            for key, row in self.disk.queued.items()
            if row.event.user_id == user_id
            and (
                not row.event.channels
                or any(preference.channel in SESSION_CHANNELS for preference in row.event.channels)
            )
            and (row.expires_ns is None or row.expires_ns > self.now_ns)
        }
        changes = self.take(self.whole(self.delivery.session_opened(user_id, now_ns=self.now_ns)))
        if not already:
            assert {show.event.key for show in changes.session_events} == due
        places = [show.sequence for show in changes.session_events]
        assert places == sorted(places)
        return changes

    def close_session(self, user_id: str = "alice") -> None:
        self.open.discard(user_id)
        self.delivery.session_closed(user_id)

    def receive(self, sequence: int, user_id: str = "alice") -> DeliveryChanges:
        due = self.placed(user_id, lambda place: place == sequence)
        return self.take(self.delivery.received(user_id, sequence, now_ns=self.now_ns), sent=due, via=Channel.WEB)

    def receive_up_to(self, sequence: int, user_id: str = "alice") -> DeliveryChanges:
        due = self.placed(user_id, lambda place: place <= sequence)
        changes = self.whole(self.delivery.received_up_to(user_id, sequence, now_ns=self.now_ns))
        return self.take(changes, sent=due, via=Channel.WEB)

    def see(self, sequence: int, user_id: str = "alice") -> DeliveryChanges:
        due = self.placed(user_id, lambda place: place == sequence)
        return self.take(self.delivery.seen(user_id, sequence, now_ns=self.now_ns), sent=due, via=Channel.WEB)

    def reach(self, channel: Channel, seconds: float, user_id: str = "alice") -> DeliveryChanges:
        until_ns = self.now_ns + int(seconds * SECOND)
        self.presence[user_id, channel] = until_ns
        self.people.set_active(user_id, channel, until_ns)
        return self.take(self.whole(self.delivery.user_active(user_id, channel, until_ns, now_ns=self.now_ns)))

    def set_contacts(self, contacts: Contacts, user_id: str = "alice") -> DeliveryChanges:
        self.disk.contacts[user_id] = contacts
        self.people.set_contacts(user_id, contacts)
        self.refused = {
            (key, preference) for key, preference in self.refused if self.disk.events[key].user_id != user_id
        }
        return self.take(self.whole(self.delivery.contacts_changed(user_id, now_ns=self.now_ns)))

    def restart(self) -> DeliveryChanges:
        """Lose everything in memory, including results of providers, but not the pauses that they asked for."""
        self.open.clear()
        self.start()
        self.position = self.now_ns // 1_000  # all positions are after it from now on
        rows = list(self.disk.queued.values())
        pauses = [
            (self.disk.events[row.key].user_id, row.channel, row.retry_at_ns)
            for row in self.disk.attempts.values()
            if row.retry_at_ns is not None and row.retry_at_ns > self.now_ns
        ]
        return self.take(self.whole(self.delivery.restore(rows, self.disk.sequences, pauses, now_ns=self.now_ns)))

    def advance(self, seconds: float) -> None:
        """Advance the clock; work is done when it is due, and there is none in between."""
        self.advance_to(self.now_ns + int(seconds * SECOND))

    def advance_to(self, end_ns: int, answer: Callable[[], None] = lambda: None) -> None:
        answer()
        while (due_ns := self.delivery.next_due_ns()) is not None and due_ns <= end_ns:
            if due_ns > self.now_ns:
                assert self.delivery.due(now_ns=due_ns - 1) == DeliveryChanges()
                self.now_ns = due_ns
            changes = self.take(self.whole(self.delivery.due(now_ns=self.now_ns)))
            next_ns = self.delivery.next_due_ns()
            assert changes != DeliveryChanges() or next_ns is None or next_ns > self.now_ns, "nothing came of it"
            answer()
        self.now_ns = max(self.now_ns, end_ns)

    # ---- queries

    def contacts(self, user_id: str) -> Contacts:
        return self.disk.contacts.get(user_id, NO_CONTACTS)

    def placed(self, user_id: str, wanted: Callable[[int], bool]) -> list[EventKey]:
        rows = self.disk.queued.values()
        return [
            row.event.key
            for row in rows
            if row.event.user_id == user_id and row.sequence is not None and wanted(row.sequence)
        ]

    def state(self, event_id: str, container: str = "bot") -> str:
        """Return the state in short form: Q, "D TELEGRAM", "E expired"."""
        key = EventKey(container, event_id)
        if key in self.disk.queued:
            return "Q"
        final = self.disk.finals[key]
        return f"D {final.via.name}" if final.via is not None else f"E {final.error}"

    def called(self) -> str:
        return " ".join(channel.name for _, channel, _ in self.calls)

    def outcomes(self, event_id: str) -> list[tuple[str, str]]:
        rows = sorted(((n, row) for (key, n), row in self.disk.attempts.items() if key.event_id == event_id))
        return [(row.channel.name, row.outcome) for _, row in rows]

    def whole(self, changes: DeliveryChanges) -> DeliveryChanges:
        """Return the changes with all portions that belong to them."""
        self.sizes.append(_size(changes))
        while self.delivery.unfinished:
            further = self.delivery.due(now_ns=self.now_ns)
            self.sizes.append(_size(further))
            changes.add(further)
        return changes

    # ---- invariants

    def take(
        self, changes: DeliveryChanges, sent: Iterable[EventKey] = (), via: Channel | None = None
    ) -> DeliveryChanges:
        """Write the rows, then carry out the effects, as the dispatcher does.

        Args:
            sent: Events that are delivered by ``via`` now, and no others.
        """
        self._write_rows(changes)
        self._write_attempts(changes)
        delivered = {final.key: final.via for final in changes.finals if final.status is Status.DELIVERED}
        assert delivered == dict.fromkeys(sent, via)
        for show in changes.session_events:
            row = self.disk.queued[show.event.key]
            assert (row.sequence, row.event.user_id) == (show.sequence, show.user_id)
            assert show.user_id in self.open
            assert show.sequence not in self.shown_since_opening[show.user_id]
            self.shown_since_opening[show.user_id].add(show.sequence)
            self.shown.append((show.user_id, show.sequence, show.event.key.event_id))
        self._send(changes)
        self._nothing_too_late()
        return changes

    def _write_rows(self, changes: DeliveryChanges) -> None:
        new: dict[str, list[int]] = defaultdict(list)
        for row in (*changes.accepted, *changes.updated):
            key, user_id = row.event.key, row.event.user_id
            assert key not in self.disk.finals
            before = self.disk.queued.get(key)
            assert (before is None) == (row in changes.accepted)
            if before and before.sequence is not None:
                assert row.sequence == before.sequence
            elif row.sequence is not None:
                new[user_id].append(row.sequence)
            self.disk.queued[key], self.disk.events[key] = row, row.event
        for user_id, places in new.items():
            last = max(self.disk.sequences.get(user_id, 0), self.position)
            self.positions[user_id] += sorted(places)
            assert sorted(places) == list(range(last + 1, last + 1 + len(places)))
            self.disk.sequences[user_id] = last + len(places)
        for final in changes.finals:
            row = self.disk.queued.pop(final.key)
            assert final.key not in self.disk.finals
            failed = final.status is Status.ERROR
            assert (final.via is None, final.error != "") == (failed, failed)
            self.disk.finals[final.key] = final
            if final.status is Status.ERROR:
                self._may_fail(row, final)

    def _may_fail(self, row: QueuedRow, final: Final) -> None:
        if final.error == "expired":
            assert row.expires_ns is not None
            assert self.now_ns >= row.expires_ns >= row.accepted_ns + self.rules.normal_ttl_ns
            return
        contacts = self.contacts(row.event.user_id)
        assert row.event.channels
        for preference in row.event.channels:
            assert preference.channel not in SESSION_CHANNELS
            assert (final.key, preference.channel) in self.refused or no_contact(preference.channel, contacts)
            assert preference.channel.name in final.error

    def _write_attempts(self, changes: DeliveryChanges) -> None:
        for row in changes.attempts:
            before = self.disk.attempts.get((row.key, row.number))
            if before is None:
                assert row.number == 1 or (row.key, row.number - 1) in self.disk.attempts
            else:
                assert before.ended_ns is None
                assert (before.channel, before.started_ns) == (row.channel, row.started_ns)
                assert row.ended_ns is not None
            self.disk.attempts[row.key, row.number] = row

    def _send(self, changes: DeliveryChanges) -> None:
        begun = [row for row in changes.attempts if row.ended_ns is None and row.channel not in SESSION_CHANNELS]
        ended = {(row.key, row.number) for row in changes.attempts if row.ended_ns is not None}
        begun = [row for row in begun if (row.key, row.number) not in ended]
        where = Counter((self.disk.events[row.key].user_id, row.channel) for row in begun)
        assert set(where) == {(send.user_id, send.channel) for send in changes.sends}
        for row in begun:
            self._may_call(row)
            self.calls.append((self.now_ns, row.channel, row.key))
            self.under_way[row.key] = row.number
        for send in changes.sends:
            self.sends[send.key, send.number] = send
            assert send.contacts == self.contacts(send.user_id)
            soft = self.disk.queued[send.key].soft
            if soft and send.message.title.endswith(" events"):
                same = [
                    row.key
                    for row in begun
                    if (self.disk.events[row.key].user_id, row.channel) == (send.user_id, send.channel)
                    and self.disk.queued[row.key].soft
                ]
                assert send.message.title == f"{len(same)} events"
            else:
                same = [send.key]
            self.members[send.key, send.number] = same
        named = [key for send in changes.sends for key in self.members[send.key, send.number]]
        assert sorted(named, key=repr) == sorted((row.key for row in begun), key=repr)

    def _may_call(self, attempt: AttemptRow) -> None:
        row = self.disk.queued[attempt.key]
        user_id, contacts = row.event.user_id, self.contacts(row.event.user_id)
        assert attempt.key not in self.under_way
        assert (attempt.key, attempt.channel) not in self.refused
        assert not no_contact(attempt.channel, contacts)
        assert self.blocked.get(_provider(attempt.channel, contacts), 0) <= self.now_ns
        assert row.event.priority is Priority.CRITICAL or not quiet(contacts.quiet_hours, self.now_ns)
        named = [preference for preference in row.event.channels if preference.channel is attempt.channel]
        assert named or not row.event.channels
        if named and all(preference.only_if_active for preference in named):
            assert self.presence.get((user_id, attempt.channel), 0) > self.now_ns

    def _nothing_too_late(self) -> None:
        next_ns = self.delivery.next_due_ns()
        if next_ns is not None and next_ns <= self.now_ns:
            return  # it reported unfinished work
        for key, row in self.disk.queued.items():
            if row.event.priority is Priority.CRITICAL or key in self.under_way:
                continue
            latest_ns = row.accepted_ns + self.rules.normal_ttl_ns
            if row.expires_ns != latest_ns:
                assert self.contacts(row.event.user_id).quiet_hours or self.was_quiet(row.event.user_id)
                latest_ns += DAY + self.rules.normal_ttl_ns
            assert self.now_ns < latest_ns

    def was_quiet(self, user_id: str) -> bool:
        """Return whether the user ever had quiet hours; overridden by tests that remove them."""
        return False


def quiet(hours: QuietHours | None, now_ns: int) -> bool:
    """Return whether a time is in quiet hours in UTC, by counting minutes."""
    if hours is None:
        return False
    assert hours.time_zone == "UTC"
    minute, length = now_ns // MINUTE % 1440, (hours.end_minute - hours.start_minute) % 1440
    return (minute - hours.start_minute) % 1440 < length


def _size(changes: DeliveryChanges) -> int:
    """Return the number of events that it concerns."""
    events = (each.event.key for rows in (changes.updated, changes.session_events) for each in rows)
    ended = (each.key for rows in (changes.finals, changes.attempts) for each in rows)
    return len({*events, *ended})


def _provider(channel: Channel, contacts: Contacts) -> tuple[Channel, str]:
    return channel, contacts.address(channel) if channel in (Channel.DISCORD, Channel.SLACK, Channel.MATRIX) else ""
