"""Breaks of user events that some of the fixed seeds must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dexorder.events.retransmit import RetransmitQueue
from dexorder_common.model.cursor import StreamStart
from dexorder_gateway.events.delivery.delivery import EventDelivery
from dexorder_gateway.events.delivery.state_machine import StateMachine
from dexorder_gateway.events.store.outbox import EventOutbox
from tests.simulation import events
from tests.simulation.run import Broken
from tests.unit.simulation.test_events import SEEDS

pytestmark = pytest.mark.nightly  # they show that the gate's seeds notice, and a changed seed moves them

Patch = Callable[[pytest.MonkeyPatch], None]


def answers_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction's effects leave while its rows wait for the next transaction."""
    write = EventOutbox.write

    def late(self: EventOutbox, *transaction: Any) -> None:
        if waiting := vars(self).get("waiting"):
            write(self, *waiting)
        vars(self)["waiting"] = transaction

    monkeypatch.setattr(EventOutbox, "write", late)


def container_forgets_at_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is QUEUED is settled for the container."""

    def queued(self: RetransmitQueue, event_id: str, *, now_ns: int) -> bool:
        self.settled(event_id)
        return True

    monkeypatch.setattr(RetransmitQueue, "queued", queued)


def container_does_not_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection does not send again what was not answered, and time does not either."""

    def never(self: RetransmitQueue, event_id: str, entry: Any, now_ns: int, wait_ns: int) -> None:
        entry.waiting = False

    monkeypatch.setattr(RetransmitQueue, "reconnected", lambda self: None)
    monkeypatch.setattr(RetransmitQueue, "_schedule", never)


def cursor_of_a_newer_file_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session continues after any cursor, though the file may be an older copy."""
    monkeypatch.setattr(EventOutbox, "start_of", lambda self, user_id, after: StreamStart(after))


def sequences_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions continue after those that the file knows, which an older copy has forgotten."""
    restore = EventDelivery.restore

    def without(self: EventDelivery, *given: Any, now_ns: int) -> Any:
        changes = restore(self, *given, now_ns=now_ns)
        self._events.start = 0
        return changes

    monkeypatch.setattr(EventDelivery, "restore", without)


def critical_events_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRITICAL events end like NORMAL ones."""
    accept = StateMachine.accept

    def expiring(self: StateMachine, event: Any, soft: bool, decision: Any) -> None:
        accept(self, event, soft, decision)
        for pending in self._events.of_user(event.user_id):
            if pending.expires_ns is None:
                pending.expires_ns = decision.now_ns + self._settings.normal_ttl_ns

    monkeypatch.setattr(StateMachine, "accept", expiring)


MUTANTS: tuple[Patch, ...] = (
    answers_before_the_commit,
    container_forgets_at_queued,
    container_does_not_ask_again,
    cursor_of_a_newer_file_is_taken,
    sequences_restart,
    critical_events_expire,
)


@pytest.mark.parametrize("break_it", MUTANTS, ids=lambda patch: patch.__name__)
def test_a_break_is_noticed(break_it: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    for seed in SEEDS:
        try:
            events.simulate(seed)
        except Broken:
            return
    pytest.fail(f"no seed notices: {break_it.__doc__}")
