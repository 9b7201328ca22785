"""Random histories of the delivery rules, in `harness.World`, which checks the invariants after each step.

Checked here are properties of a whole history: the order of an event's calls, and that nothing remains at the end.
"""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dexorder_common.model.user_events import SESSION_CHANNELS, Channel, Priority
from dexorder_gateway.events.delivery.changes import DeliveryChanges
from dexorder_gateway.events.delivery.channel_policy import DeliverySettings
from dexorder_gateway.events.model import Contacts, EventKey, Later, QuietHours, Result, SendRefused, Sent
from tests.fakes.events.contacts import contacts_with
from tests.unit.services.gateway.events.harness import DAY, EVERYWHERE, SECOND, World, delivery_rules, event

LUNCH = QuietHours(12 * 60 + 1, 12 * 60 + 4, "UTC")
CONTACTS = {
    "alice": EVERYWHERE,
    "bob": contacts_with(EVERYWHERE, quiet_hours=LUNCH, discord_webhook_url="https://discord.example/2"),
    "carol": contacts_with(email="carol@example.org", channel_order=(Channel.EMAIL, Channel.TELEGRAM)),
}
OUTSIDE = [channel for channel in Channel if channel not in SESSION_CHANNELS]
users = st.sampled_from(sorted(CONTACTS))
priorities = st.sampled_from([Priority.NORMAL, Priority.CRITICAL])
names = st.lists(
    st.builds(str.__add__, st.sampled_from(list(Channel.__members__)), st.sampled_from(["", "", "?"])),
    max_size=4,
    unique_by=lambda name: name.rstrip("?"),
).map(" ".join)
results: st.SearchStrategy[Result] = st.one_of(
    st.just(Sent()),
    st.just(Sent(gone=("https://push.example/0",))),
    st.just(SendRefused("blocked")),
    st.just(Later("server error")),
    st.builds(Later, st.just("too many requests"), st.sampled_from([0, 500, 3000, 30_000, 90_000])),
)
RULES = delivery_rules(max_concurrent_sends=1, channel_attempts=2)


class HistoryWorld(World):
    """World that remembers which users ever had quiet hours."""

    def __init__(self, rules: DeliverySettings, *, max_events: int, **contacts: Contacts) -> None:
        self.ever_quiet = {user_id for user_id, known in contacts.items() if known.quiet_hours}
        super().__init__(rules, max_events=max_events, **contacts)

    def was_quiet(self, user_id: str) -> bool:
        return user_id in self.ever_quiet


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count()
        self.changed: dict[str, int] = {}  # number of calls before the last change of a user's contacts or presence

    @initialize(max_events=st.sampled_from([1, 2, 100]))
    def begin(self, max_events: int) -> None:
        self.world = HistoryWorld(RULES, max_events=max_events, **CONTACTS)

    @rule(names=names, user_id=users, priority=priorities, soft=st.booleans())
    def accept(self, names: str, user_id: str, priority: Priority, soft: bool) -> None:
        sent = event(f"e{next(self.ids)}", names, priority=priority, user_id=user_id)
        self.world.accept(sent, soft=soft)

    @precondition(lambda self: self.world.sends)
    @rule(data=st.data(), result=results)
    def answer(self, data: st.DataObject, result: Result) -> None:
        sends = list(self.world.sends.values())
        self.world.answer(result, sends[data.draw(st.integers(0, len(sends) - 1))])

    @rule(number=st.integers(0, 9), name=st.integers(0, 20), result=results)
    def answer_nobody_waits_for(self, number: int, name: int, result: Result) -> None:
        key = EventKey("bot", f"e{name}")
        if (key, number) not in self.world.sends:
            assert self.world.delivery.finished(key, number, result, now_ns=self.world.now_ns) == DeliveryChanges()

    @rule(user_id=users)
    def open_session(self, user_id: str) -> None:
        self.world.open_session(user_id)

    @rule(user_id=users)
    def close_session(self, user_id: str) -> None:
        self.world.close_session(user_id)

    @rule(user_id=users, number=st.integers(0, 12), how=st.sampled_from(["receive", "receive", "receive_up_to", "see"]))
    def ack(self, user_id: str, number: int, how: str) -> None:
        given = self.world.positions[user_id]
        getattr(self.world, how)(given[number] if number < len(given) else number, user_id)

    @rule(user_id=users, channel=st.sampled_from(OUTSIDE), seconds=st.sampled_from([0, 1, 30, 600]))
    def reach(self, user_id: str, channel: Channel, seconds: int) -> None:
        self.changed[user_id] = len(self.world.calls)
        self.world.reach(channel, seconds, user_id)

    @rule(user_id=users, like=users)
    def change_contacts(self, user_id: str, like: str) -> None:
        self.changed[user_id] = len(self.world.calls)
        if CONTACTS[like].quiet_hours:
            self.world.ever_quiet.add(user_id)
        self.world.set_contacts(CONTACTS[like], user_id)

    @rule(seconds=st.sampled_from([0.001, 1, 2, 5, 10, 30, 61, 600, 86_400]))
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.changed = dict.fromkeys(CONTACTS, len(self.world.calls))

    @invariant()
    def calls_are_in_the_order_of_the_channels(self) -> None:
        """Each call goes to the same channel or a later one, or begins a round after its pause."""
        last: dict[EventKey, tuple[int, int, int]] = {}
        for n, (at_ns, channel, key) in enumerate(self.world.calls):
            sent = self.world.disk.events[key]
            index = next((n for n, way in enumerate(sent.channels) if way.channel is channel), None)
            if index is None:
                continue  # the event names none: the user's own order may have changed
            before_n, before, before_ns = last.get(key, (-1, 0, 0))
            if before_n >= self.changed.get(sent.user_id, 0):
                assert index >= before or at_ns >= before_ns + RULES.retry_base_ns // 2
            last[key] = (n, index, at_ns)

    @invariant()
    def memory_equals_disk(self) -> None:
        for key, row in self.world.disk.queued.items():
            live = self.world.delivery.queued(key)
            assert live is not None
            assert live._replace(due_ns=0) == row._replace(due_ns=0)
        assert all(self.world.delivery.queued(key) is None for key in self.world.disk.finals)

    def teardown(self) -> None:
        """With all users present and all providers working, no event remains."""
        world = self.world
        for user_id, contacts in CONTACTS.items():
            world.set_contacts(contacts, user_id)
            for channel in OUTSIDE:
                world.reach(channel, 3 * DAY // SECOND, user_id)
            world.open_session(user_id)
        world.advance_to(world.now_ns + 2 * DAY, answer=lambda: world.answer_all(Sent()))
        for user_id, sequence in world.disk.sequences.items():
            world.receive_up_to(sequence, user_id)
        assert not world.disk.queued
        assert world.delivery.next_due_ns() is None
        assert set(world.disk.finals) == set(world.disk.events)
