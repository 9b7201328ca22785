"""Dispatcher in memory, with a log of events for each user."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import InvalidRequest, SuiteError
from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import SessionEvent
from dexorder_gateway.events.event_codec import read_event
from dexorder_gateway.events.ingress.containers import LOCAL, Container
from dexorder_gateway.events.model import (
    NO_CONTACTS,
    Ack,
    AckCallback,
    Contacts,
    Event,
    EventKey,
    TransientEvent,
)
from dexorder_gateway.events.sessions.registry import SessionRegistry
from dexorder_gateway.events.store.event_log import EventPage, EventQuery, EventRecord, Replay, ReplayBatch
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb


@dataclass
class Kept:
    """An event in the log."""

    show: SessionEvent
    record: EventRecord
    answer: AckCallback


class FakeDispatcher:
    """Implementation of `DispatcherPort` that answers in a later iteration of the loop, as a thread would.

    Attributes:
        sessions: Registry that receives the events for sessions.
        calls: Reports of opened and closed users, in order.
        before_replay: Called between the opening of a session and its replay; events it publishes are in both.
        at_once: Limit of events in one answer about the log.
        released: While cleared, events of containers are not answered.
        unanswered: Number of outstanding first answers; ``most_unanswered`` is its maximum.
    """

    def __init__(self, epoch: str = "e1") -> None:
        self.sessions: SessionRegistry | None = None
        self.on_full: list[Callable[[SuiteError], object]] = []
        self.epoch = epoch
        self.users: dict[str, list[Kept]] = {}
        self.open: set[str] = set()
        self.calls: list[tuple[str, ...]] = []
        self.kept_contacts: dict[str, Contacts] = {}
        self.presence: list[tuple[str, Channel, int]] = []
        self.before_replay: Callable[[], None] | None = None
        self.at_once = 500
        self.released = asyncio.Event()
        self.released.set()
        self.unanswered = self.most_unanswered = 0
        self.acks: Counter[tuple[str, int]] = Counter()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- events

    def publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        task = self._loop.create_task(self._publish(container, body, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        await self.released.wait()
        self.unanswered -= 1
        given = pb.UserEvent.FromString(body)
        if not given.event_id or not container.speaks_for(given.user_id):
            answer(Ack(given.event_id, Status.ERROR, "user not owned" if given.event_id else "event_id is missing"))
        elif given.delivery.priority == pb.INFORMATIONAL:
            self.inform(given.user_id, body, container.name)
            answer(Ack(given.event_id, Status.DELIVERED, via=Channel.WEB))
        else:
            answer(Ack(given.event_id, Status.QUEUED))
            self.keep(given.user_id, given.event_id, body=body, container=container.name, answer=answer)

    def keep(
        self,
        user_id: str,
        event_id: str,
        *,
        event_type: int = pb.ORDER_FILLED,
        payload: bytes = b"{}",
        body: bytes = b"",
        container: str = LOCAL.name,
        answer: AckCallback = lambda ack: None,
    ) -> SessionEvent:
        """Add an event to a user's log and show it to their sessions."""
        body = (
            body
            or pb.UserEvent(
                user_id=user_id,
                event_id=event_id,
                event_type=event_type,  # type: ignore[arg-type]
                payload=payload,
                timestamp=1_700_000_000_000,
                delivery=pb.DeliverySpec(priority=pb.CRITICAL, channels=[pb.ChannelPreference(channel=pb.WEB)]),
            ).SerializeToString()
        )
        kept = self.users.setdefault(user_id, [])
        event = read_event(container, body)
        assert isinstance(event, Event), event
        show = SessionEvent(user_id, len(kept) + 1, event)
        record = EventRecord(show.event.key, body, time.time_ns(), Status.QUEUED, None, "", None, None, ())
        kept.append(Kept(show, record, answer))
        self.show([show])
        return show

    def show(self, shows: Sequence[SessionEvent]) -> None:
        self._loop.call_soon(self._sessions().show, [show for show in shows if show.user_id in self.open])

    def inform(self, user_id: str, body: bytes, container: str = LOCAL.name) -> None:
        if user_id in self.open:
            self._loop.call_soon(self._sessions().show_transient, [TransientEvent(user_id, container, body)])

    def delivered(self, user_id: str) -> list[int]:
        """Return the sequences that were received."""
        return [k.show.sequence for k in self.users.get(user_id, ()) if k.record.status is Status.DELIVERED]

    # ---- sessions

    def session_opened(self, user_id: str) -> None:
        self.calls.append(("opened", user_id))
        self.open.add(user_id)
        self.show([kept.show for kept in self.users.get(user_id, ()) if kept.record.status is Status.QUEUED])

    def session_closed(self, user_id: str) -> None:
        self.calls.append(("closed", user_id))
        self.open.remove(user_id)

    async def replay(self, user_id: str, cursor: Cursor | None) -> Replay:
        await asyncio.sleep(0)
        if self.before_replay:
            self.before_replay()
        kept = self.users.get(user_id, [])
        reset = cursor is not None and (cursor[0] != self.epoch or cursor[1] > len(kept))
        after = 0 if cursor is None or reset else cursor[1]
        for each in kept[:after]:
            self._received(each)
        waiting_to = len(kept) if cursor is None else 0
        events, more = self._batch(user_id, after, waiting_to)
        place = after
        if cursor is None or reset:
            place = events[0].sequence - 1 if events else len(kept)
        await asyncio.sleep(0)
        return Replay(self.epoch, place, reset, events, more, waiting_to)

    async def replay_more(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        await asyncio.sleep(0)
        batch = self._batch(user_id, after, waiting_to)
        await asyncio.sleep(0)
        return batch

    def _batch(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        kept = self.users.get(user_id, [])[after:]
        events = [
            _settled(each) for each in kept if each.record.status is Status.QUEUED or each.show.sequence > waiting_to
        ]
        return ReplayBatch(tuple(events[: self.at_once]), len(events) > self.at_once)

    async def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> None:
        await asyncio.sleep(0)
        if epoch != self.epoch:
            raise InvalidRequest(f"place.epoch {epoch!r} is not this log's")
        kept = self.users.get(user_id, [])
        if 0 < sequence <= len(kept):
            self.acks[user_id, sequence] += 1
            self._received(kept[sequence - 1], seen=seen)

    def _received(self, kept: Kept, *, seen: bool = False) -> None:
        first, now = kept.record.status is Status.QUEUED, time.time_ns()
        kept.record = replace(
            kept.record,
            status=Status.DELIVERED,
            via=Channel.WEB,
            completed_ns=kept.record.completed_ns or now,
            seen_ns=kept.record.seen_ns or (now if seen else None),
        )
        if first:
            kept.answer(Ack(kept.record.key.event_id, Status.DELIVERED, via=Channel.WEB))

    # ---- people

    async def contacts(self, user_id: str) -> Contacts:
        return self.kept_contacts.get(user_id, NO_CONTACTS)

    async def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        self.kept_contacts[user_id] = contacts

    def user_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        self.presence.append((user_id, channel, until_ns))

    # ---- log

    async def record(self, key: EventKey) -> EventRecord | None:
        return next((r for _, r in self._all() if r.key == key), None)

    async def records(self, query: EventQuery) -> EventPage:
        found = [
            (number, record)
            for number, (user_id, record) in enumerate(self._all())
            if (not query.user_id or user_id == query.user_id)
            and (not query.container or record.key.container == query.container)
            and (query.status is None or record.status is query.status)
            and (query.before is None or number < query.before)
        ]
        page = list(reversed(found))[: query.size]
        return EventPage(tuple(record for _, record in page), page[-1][0] if len(found) > len(page) else None)

    def _all(self) -> list[tuple[str, EventRecord]]:
        return [(user_id, kept.record) for user_id, events in self.users.items() for kept in events]

    def _sessions(self) -> SessionRegistry:
        assert self.sessions
        return self.sessions


def _settled(kept: Kept) -> SessionEvent:
    return replace(kept.show, settled=kept.record.status is Status.DELIVERED)
