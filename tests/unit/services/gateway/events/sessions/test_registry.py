"""The registry between a dispatcher in memory and sessions that read or do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import Exhausted, NotAllowed, Unauthenticated, Unavailable
from dexorder_common.model.user_events import Priority, Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SessionEvent
from dexorder_gateway.events.model import Event, EventKey, TransientEvent
from dexorder_gateway.events.sessions import session as session_module
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.session import UserSession
from dexorder_gateway.events.sessions.session_frames import OpenedFrame
from dexorder_gateway.events.sessions.user_tokens import TokenUser
from dexorder_gateway.events.store.event_log import Replay, ReplayBatch
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as user_events
from tests.fakes.events.dispatcher import FakeDispatcher
from tests.fakes.events.sessions_gateway import render

LONG_NS = 3_600_000_000_000
CLOCK = ManualClock()
ALICE = TokenUser("alice", CLOCK.wall_ns() + LONG_NS)


def registry_of(dispatcher: Any, **settings: Any) -> SessionRegistry:
    made = SessionRegistry(
        dispatcher, render, EventsSettings(**settings), SessionMetrics(CollectorRegistry()), ManualClock()
    )
    dispatcher.sessions = made
    return made


@pytest.fixture
async def dispatcher() -> AsyncIterator[FakeDispatcher]:
    yield FakeDispatcher()


async def received(session: UserSession, count: int) -> list[int]:
    """Return the sequences of the next events, without the opening."""
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [pending.sequence for pending in await session.next() if not isinstance(pending, OpenedFrame)]
    assert len(found) == count
    return found


# ---- replay and live events


class Scripted:
    """Dispatcher with a given replay and events shown before and after it; shown events are in its log."""

    def __init__(
        self, replay: Replay, before: list[SessionEvent], after: list[SessionEvent], at_once: int = 100
    ) -> None:
        self.sessions: SessionRegistry | None = None
        self._replay = replay
        self._before = before
        self._after = after
        self._at_once = at_once
        self.log = {show.sequence: show for show in replay.events}

    def session_opened(self, user_id: str) -> None:
        pass

    def session_closed(self, user_id: str) -> None:
        pass

    def show(self, *shows: SessionEvent) -> None:
        assert self.sessions
        self.log.update({show.sequence: show for show in shows})
        self.sessions.show(shows)

    async def replay(self, user_id: str, cursor: object) -> Replay:
        for show in self._before:
            self.show(show)
        events, more = self._replay.events[: self._at_once], len(self._replay.events) > self._at_once
        asyncio.get_running_loop().call_soon(self.show, *self._after)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return replace(self._replay, events=events, more=more)

    async def replay_more(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        found = [show for place, show in sorted(self.log.items()) if place > after]
        await asyncio.sleep(0)
        return ReplayBatch(tuple(found[: self._at_once]), len(found) > self._at_once)


def show_of(sequence: int) -> SessionEvent:
    event = Event(EventKey("c", f"e{sequence}"), "alice", 0, 1, b"", Priority.CRITICAL, (), b"")
    return SessionEvent("alice", sequence, event)


@settings(max_examples=50)
@given(st.data())
async def test_events_shown_around_the_replay_arrive_once_and_in_order(data: st.DataObject) -> None:
    """The log has events 1 to n; the cursor is c; the replay was read when the log had r events, and its place is c.

    Events up to r were shown before the replay, the rest after it. Older ones may be shown again, as they are when a
    user's first session opens.
    """
    newest = data.draw(st.integers(0, 12))
    cursor = data.draw(st.integers(0, newest))
    read = data.draw(st.integers(cursor, newest))
    shown_from = data.draw(st.integers(cursor, read))
    again = data.draw(st.lists(st.integers(1, read), unique=True)) if read else []
    at_once = data.draw(st.integers(1, 6))
    replay = Replay("e", cursor, False, tuple(map(show_of, range(cursor + 1, read + 1))))
    before = [show_of(s) for s in sorted({*again, *range(shown_from + 1, read + 1)})]
    dispatcher = Scripted(replay, before, [show_of(s) for s in range(read + 1, newest + 1)], at_once)
    sessions = registry_of(dispatcher)
    session = await sessions.open(ALICE, Cursor("e", cursor), "grpc")
    dispatcher.show(show_of(newest + 2), show_of(newest + 1))
    dispatcher.show(show_of(newest + 1))
    try:
        assert await received(session, newest + 2 - cursor) == list(range(cursor + 1, newest + 3))
        dispatcher.show(show_of(newest + 3))
        assert await received(session, 1) == [newest + 3]
    finally:
        session.close()


async def test_an_event_settled_meanwhile_is_not_waited_for(dispatcher: FakeDispatcher) -> None:
    """A user's first session is shown all waiting events; some may be received before the log is read."""
    sessions = registry_of(dispatcher)
    for number in range(3):
        dispatcher.keep("alice", f"e{number}")

    def receive() -> None:
        sessions.show([dispatcher.users["alice"][2].show])
        dispatcher.users["alice"][2].record = replace(dispatcher.users["alice"][2].record, status=Status.DELIVERED)

    dispatcher.before_replay = receive
    session = await sessions.open(ALICE, None, "grpc")
    assert await received(session, 2) == [1, 2]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.next(), 0.05)
    dispatcher.keep("alice", "e3")
    assert await received(session, 1) == [4]
    session.close()


async def test_a_session_that_does_not_read_holds_one_batch_of_the_log(dispatcher: FakeDispatcher) -> None:
    """The rest of the backlog stays on disk."""
    dispatcher.at_once = 100
    sessions = registry_of(dispatcher, session_queue=10)
    for number in range(1_000):
        dispatcher.keep("alice", f"old-{number}")
    session = await sessions.open(ALICE, None, "grpc")
    for number in range(50):
        dispatcher.keep("alice", f"new-{number}")
        await asyncio.sleep(0)
    assert len(session._stored) + len(session._live) <= dispatcher.at_once + 1
    assert await received(session, 1_050) == list(range(1, 1_051))  # the backlog does not count as waiting
    session.close()


async def test_the_bytes_that_wait_for_a_session_are_limited(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_WAITING_BYTES", 10_000)
    sessions = registry_of(dispatcher)
    session = await sessions.open(ALICE, None, "grpc")
    await session.next()
    large = user_events.UserEvent(event_id="e", payload=bytes(4_000)).SerializeToString()
    for _ in range(5):  # events that were read do not count
        sessions.show_transient([TransientEvent("alice", "c", large)] * 2)
        assert len(await session.next()) == 2
    sessions.show_transient([TransientEvent("alice", "c", bytes(20_000))])
    assert len(await session.next()) == 1
    sessions.show_transient([TransientEvent("alice", "c", large)] * 3)
    with pytest.raises(Exhausted, match="too slow"):
        await session.next()
    session.close()


# ---- ends ----------------------------------------------------------------------------------------------------------


async def test_only_a_users_first_and_last_session_are_reported(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher, sessions_per_user=2)
    one, two = await sessions.open(ALICE, None, "grpc"), await sessions.open(ALICE, None, "websocket")
    bob = await sessions.open(TokenUser("bob", ALICE.expires_ns), None, "grpc")
    with pytest.raises(Exhausted, match="2 sessions of this user"):
        await sessions.open(ALICE, None, "grpc")
    one.close()
    one.close()
    assert dispatcher.calls == [("opened", "alice"), ("opened", "bob")]
    two.close()
    bob.close()
    assert dispatcher.calls[2:] == [("closed", "alice"), ("closed", "bob")]
    again = await sessions.open(ALICE, None, "grpc")
    assert dispatcher.calls[4:] == [("opened", "alice")]
    again.close()


async def test_an_event_reaches_only_its_users_sessions(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher)
    opened = {
        name: await sessions.open(TokenUser(name, ALICE.expires_ns), None, "grpc") for name in ("a", "alice", "bob")
    }
    for name in ("alice", "bob", "alice"):
        dispatcher.keep(name, "e")
    assert await received(opened["alice"], 2) == [1, 2]
    assert await received(opened["bob"], 1) == [1]
    assert [type(pending) for pending in await opened["a"].next()] == [OpenedFrame]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(opened["a"].next(), 0.01)
    for session in opened.values():
        session.close()


async def test_a_session_that_does_not_read_is_ended_and_resumes(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher, session_queue=3)
    for number in range(10):
        dispatcher.keep("alice", f"old-{number}")
    slow, quick = await sessions.open(ALICE, None, "grpc"), await sessions.open(ALICE, None, "grpc")
    assert await received(quick, 10) == list(range(1, 11))
    for number in range(4):  # the replay does not count: it waits on disk
        dispatcher.keep("alice", f"new-{number}")
        assert await received(quick, 1) == [11 + number]
    with pytest.raises(Exhausted, match="too slow"):
        await slow.next()
    resumed = await sessions.open(ALICE, Cursor(dispatcher.epoch, 0), "grpc")
    assert await received(resumed, 14) == list(range(1, 15))
    for session in (slow, quick, resumed):
        session.close()
    assert dispatcher.calls == [("opened", "alice"), ("closed", "alice")]


async def test_a_batch_reaches_each_user_in_order_and_counts_event_by_event(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher, session_queue=3)
    alice, bob = [await sessions.open(TokenUser(name, ALICE.expires_ns), None, "grpc") for name in ("alice", "bob")]
    bodies = [user_events.UserEvent(event_id=f"e{number}").SerializeToString() for number in range(4)]
    sessions.show_transient(
        [TransientEvent(name, "c", body) for body in bodies[:3] for name in ("alice", "nobody", "bob")]
    )
    for session in (alice, bob):
        _, *events = await session.next()
        assert [body in event.part for event, body in zip(events, bodies, strict=False)] == [True] * 3
    sessions.show_transient([TransientEvent("alice", "c", body) for body in bodies])
    with pytest.raises(Exhausted, match="too slow"):
        await alice.next()
    sessions.show_transient([TransientEvent("bob", "c", bodies[3])])
    assert len(await bob.next()) == 1
    alice.close()
    bob.close()


async def test_a_task_that_hangs_after_its_session_ended_is_cancelled(
    dispatcher: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CLOSE_SECONDS", 0.05)
    sessions = registry_of(dispatcher)

    async def serve() -> None:
        session = await sessions.open(ALICE, None, "grpc")
        try:
            await asyncio.Event().wait()  # a write to a client that does not read
        finally:
            session.close()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0.01)
    sessions.stop()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert dispatcher.calls == [("opened", "alice"), ("closed", "alice")]


async def test_a_session_ends_with_its_token_unless_it_is_extended(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher)
    now = ManualClock().wall_ns()
    short = TokenUser("alice", now + 50_000_000)
    one, two = await sessions.open(short, None, "grpc"), await sessions.open(short, None, "grpc")
    dispatcher.keep("alice", "e")
    assert await received(two, 1) == [1]
    with pytest.raises(NotAllowed, match="another user"):
        two.extend(TokenUser("bob", now + LONG_NS))
    dispatcher.keep("alice", "e2")
    await asyncio.sleep(0)
    two.extend(TokenUser("alice", now + LONG_NS))
    shown, opening = await two.next()
    assert (shown.sequence, getattr(opening, "place", None)) == (
        2,
        (dispatcher.epoch, 2),
    )  # after the events before its place
    sessions._clock.advance(50_000_000)  # type: ignore[attr-defined]  # its timer checks again
    await one.next()
    with pytest.raises(Unauthenticated, match="has expired"):
        await asyncio.wait_for(one.next(), 1)
    dispatcher.keep("alice", "f")
    assert await received(two, 1) == [3]
    one.close()
    two.close()


async def test_a_stop_ends_all_sessions_and_refuses_new_ones(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher)
    session = await sessions.open(ALICE, None, "grpc")
    sessions.stop()
    with pytest.raises(Unavailable, match="is stopping"):
        await session.next()
    with pytest.raises(Unavailable, match="is stopping"):
        await sessions.open(ALICE, None, "grpc")
    session.close()


async def test_a_session_whose_replay_fails_is_closed(dispatcher: FakeDispatcher) -> None:
    def fail() -> None:
        raise Unavailable("the disk is full")

    dispatcher.before_replay = fail
    sessions = registry_of(dispatcher)
    with pytest.raises(Unavailable, match="disk is full"):
        await sessions.open(ALICE, None, "grpc")
    assert dispatcher.calls == [("opened", "alice"), ("closed", "alice")]


async def test_a_backlog_is_returned_in_batches(dispatcher: FakeDispatcher) -> None:
    sessions = registry_of(dispatcher)
    for number in range(600):
        dispatcher.keep("alice", f"e{number}")
    session = await sessions.open(ALICE, None, "grpc")
    parts: list[int] = []
    while sum(parts) < 601:
        parts.append(len(await session.next()))
    assert sum(parts) == 601 and max(parts) == 256
    session.close()
