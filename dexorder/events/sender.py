"""Rules by which the publisher's thread writes, sends and settles events. They use its links and its outbox.

One iteration: read subscriptions and answers; execute commands of other threads; commit them together and complete
their futures; send. An event is sent, and its caller answered, only after it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from dexorder.errors import EventRefused, OutboxFailed, OutboxFull, PublisherClosed
from dexorder.events.commands import Command, FlushCommand, OutcomeQuery, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.outbox import Outbox
from dexorder.events.outcomes import FinalStatus, Outcome, OutcomeTracker, complete, fail
from dexorder.events.retransmit import RetransmitQueue
from dexorder_common.messaging.frames import VERSION, BadFrame, decode_ack, topic
from dexorder_common.model.user_events import Channel, Priority
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

log = structlog.get_logger(__name__)
_SECOND_NS = 1_000_000_000
_CLEANUP_NS = 200_000_000
_MAX_BATCH = 512


class Link(Protocol):
    """Methods of a `Connection` that the rules use."""

    connected: bool
    due_ns: int | None

    def poll(self, *, now_ns: int) -> bool:
        """Process changes of the connection; return whether it was established again."""

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message; None if no message has arrived."""

    def send(self, frames: list[bytes]) -> bool:
        """Send a message; return False if the queue is full."""


class Sender:
    """State of a publisher, for one thread. All times come from one monotonic clock.

    Args:
        jitter: Returns a factor about 1 for each interval between transmissions.

    Attributes:
        is_blocked: The guaranteed link is full; to be cleared when it has room again.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        outbox: Outbox,
        fast: Link,
        guaranteed: Link,
        outcomes: OutcomeTracker,
        jitter: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._fast = fast
        self._guaranteed = guaranteed
        self._outcomes = outcomes
        self._pending = RetransmitQueue(
            int(settings.retransmit_base_seconds * _SECOND_NS),
            int(settings.retransmit_max_seconds * _SECOND_NS),
            int(settings.query_seconds * _SECOND_NS),
            settings.window,
            jitter,
        )
        self._pending.add(outbox.events())
        self._subscribed: set[bytes] = set()
        self._settled: list[str] = []
        self._cleanup_ns: int | None = None
        self._flushes: list[FlushCommand] = []
        self.is_blocked = False

    def subscribed(self, user_id: str) -> bool:
        """Return whether the gateway has a session of this user open; for any thread."""
        return topic(user_id) in self._subscribed

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next iteration is due even without input; None for never."""
        dues = [self._cleanup_ns, self._fast.due_ns, self._guaranteed.due_ns]
        if self._can_send():
            more = self._pending.next(now_ns=now_ns) is not None
            dues.append(now_ns if more else self._pending.next_due_ns())
        return min((due for due in dues if due is not None), default=None)

    def iterate(self, commands: Iterable[Command], now_ns: int) -> None:
        """Run one iteration."""
        if self._guaranteed.poll(now_ns=now_ns):
            self._pending.reconnected()
            self.is_blocked = False
        self._fast.poll(now_ns=now_ns)
        self._read_subscriptions()
        self._read_answers(now_ns)
        self._execute(commands, now_ns)
        if self._cleanup_ns is not None and now_ns >= self._cleanup_ns:
            self._remove_settled(now_ns)
        self._send(now_ns)
        if self._flushes and not len(self._pending):
            for flush in self._flushes:
                complete(flush.flushed, None)
            self._flushes.clear()

    def end(self, now_ns: int) -> None:
        """Remove settled events from the outbox after the last iteration."""
        self._remove_settled(now_ns)

    def fail_flushes(self) -> None:
        """Fail the calls that wait for an empty outbox."""
        for flush in self._flushes:
            fail(flush.flushed, PublisherClosed("the publisher is closed"))

    def _read_subscriptions(self) -> None:
        while (message := self._fast.receive()) is not None:
            if message[0][:1] == b"\x01":
                self._subscribed.add(message[0][1:])
            elif message[0][:1] == b"\x00":
                self._subscribed.discard(message[0][1:])

    def _read_answers(self, now_ns: int) -> None:
        for _ in range(_MAX_BATCH):
            if (frames := self._guaranteed.receive()) is None:
                return
            try:
                ack = decode_ack(frames)
            except BadFrame as error:
                log.warning("invalid answer of the gateway", reason=error.reason)
                continue
            if not ack.event_id:
                log.warning("the gateway could not read an event", error=ack.error_message)
            elif ack.status == pb.QUEUED:
                if self._pending.queued(ack.event_id, now_ns=now_ns):
                    self._outcomes.queued(ack.event_id)
            elif ack.status in (pb.DELIVERED, pb.ACK_ERROR) and self._pending.settled(ack.event_id):
                self._settle(_outcome(ack), now_ns)

    def _execute(self, commands: Iterable[Command], now_ns: int) -> None:
        added: dict[str, PublishCommand] = {}
        duplicates: list[PublishCommand] = []
        for command in commands:
            if isinstance(command, OutcomeQuery):
                pending = command.event_id in self._pending or command.event_id in added
                self._outcomes.query(command.event_id, command.outcome, pending=pending)
            elif isinstance(command, FlushCommand):
                self._flushes.append(command)
            elif command.written is None:
                status = FinalStatus.SENT if self._send_fast(command) else FinalStatus.DROPPED
                self._outcomes.notify(Outcome(command.event_id, status))
            elif command.event_id in added or command.event_id in self._pending:
                duplicates.append(command)
            elif len(self._pending) + len(added) >= self._settings.max_events:
                fail(command.written, OutboxFull(f"the outbox has {self._settings.max_events:,} events, its maximum"))
            else:
                added[command.event_id] = command
        if added:
            self._write(list(added.values()), now_ns)
        for duplicate in duplicates:
            self._answer_duplicate(duplicate)

    def _write(self, added: list[PublishCommand], now_ns: int) -> None:
        try:
            self._outbox.write([(command.event_id, command.frame) for command in added], self._settled)
        except OutboxFailed as error:
            for command in added:
                _answer(command, error)
                self._outcomes.lost(command.event_id, error)
            return
        self._settled = []
        self._cleanup_ns = None
        self._pending.add(command.event_id for command in added)
        for command in added:
            _answer(command)
            if command.priority is Priority.NORMAL and self._send_fast(command):
                self._pending.settled(command.event_id)
                self._settle(Outcome(command.event_id, FinalStatus.SENT), now_ns)

    def _answer_duplicate(self, command: PublishCommand) -> None:
        """Accept an event that is already in the outbox; refuse another one with its id."""
        try:
            if self._outbox.frame(command.event_id) != command.frame:
                raise EventRefused(f"event_id {command.event_id!r} belongs to another event in the outbox")
            _answer(command)
        except (EventRefused, OutboxFailed) as error:
            _answer(command, error)

    def _send_fast(self, command: PublishCommand) -> bool:
        to = topic(command.user_id)
        return to in self._subscribed and self._fast.send([to, VERSION, command.frame])

    def _send(self, now_ns: int) -> None:
        for _ in range(_MAX_BATCH):
            event_id = self._pending.next(now_ns=now_ns) if self._can_send() else None
            if event_id is None:
                return
            try:
                self.is_blocked = not self._guaranteed.send([VERSION, self._outbox.frame(event_id)])
            except OutboxFailed as error:
                log.error("an event can't be read; it is tried again later", error=str(error))
            if not self.is_blocked:
                self._pending.sent(event_id, now_ns=now_ns)

    def _can_send(self) -> bool:
        # Events sent before the connection is up would be sent again by `reconnected`. A bound socket can't tell.
        return not self.is_blocked and (self._guaranteed.connected or self._settings.bind)

    def _settle(self, outcome: Outcome, now_ns: int) -> None:
        self._settled.append(outcome.event_id)
        self._cleanup_ns = self._cleanup_ns or now_ns + _CLEANUP_NS
        self._outcomes.settled(outcome)

    def _remove_settled(self, now_ns: int) -> None:
        """Remove settled events from the outbox. A start before that sends them again, which has no effect."""
        if not self._settled:
            return
        try:
            self._outbox.write([], self._settled)
            self._settled = []
            self._cleanup_ns = None
        except OutboxFailed as error:
            log.error("settled events stay in the outbox for now", error=str(error))
            self._cleanup_ns = now_ns + _SECOND_NS


def _answer(command: PublishCommand, error: Exception | None = None) -> None:
    assert command.written is not None
    if error is None:
        complete(command.written, command.event_id)
    else:
        fail(command.written, error)


def _outcome(ack: pb.EventAck) -> Outcome:
    if ack.status == pb.ACK_ERROR:
        return Outcome(ack.event_id, FinalStatus.ERROR, error=ack.error_message or "no reason given")
    via = next((channel for channel in Channel if channel == int(ack.delivered_via)), None)
    return Outcome(ack.event_id, FinalStatus.DELIVERED, via)
