"""The publisher's thread. It alone uses the sockets, the outbox and the rules, so they need no lock.

One iteration: wait; read subscriptions and answers; execute commands of other threads; commit them together and
complete their futures; send. An event is sent, and its caller answered, only after it is on disk.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import structlog
import zmq

from dexorder.errors import EventRefused, OutboxFailed, OutboxFull, PublisherClosed
from dexorder.events.commands import Command, CommandQueue, FlushCommand, OutcomeQuery, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection
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


class Sender:
    """Thread that runs from ``thread.start()`` until the command queue is closed."""

    def __init__(
        self, settings: PublisherSettings, on_outcome: Callable[[Outcome], None], on_queued: Callable[[str], None]
    ) -> None:
        """Open the outbox and the sockets; see `Publisher`."""
        jitter = random.Random()  # noqa: S311 - no secret; its own, as the thread must not change an application's seed
        self.commands = CommandQueue()
        self._settings = settings
        self._outcomes = OutcomeTracker(on_outcome, on_queued)
        self._pending = RetransmitQueue(
            int(settings.retransmit_base_seconds * _SECOND_NS),
            int(settings.retransmit_max_seconds * _SECOND_NS),
            int(settings.query_seconds * _SECOND_NS),
            settings.window,
            lambda: jitter.uniform(0.9, 1.1),
        )
        self._subscribed: set[bytes] = set()
        self._settled: list[str] = []
        self._cleanup_ns: int | None = None
        self._flushes: list[FlushCommand] = []
        self._blocked = False
        with ExitStack() as closing:
            closing.callback(self.commands.shut_down)
            closing.callback(self._outcomes.close)
            self._outbox = Outbox(settings.outbox)
            closing.callback(self._outbox.close)
            context = closing.enter_context(zmq.Context())
            self.fast = Connection(context, zmq.XPUB, settings.fast, settings)
            closing.callback(self.fast.close)
            self.guaranteed = Connection(context, zmq.DEALER, settings.guaranteed, settings)
            closing.callback(self.guaranteed.close)
            self._pending.add(self._outbox.events())
            self._closing = closing.pop_all()
        self.thread = threading.Thread(target=self._run, name="dexorder-publisher", daemon=True)

    def subscribed(self, user_id: str) -> bool:
        """Return whether the gateway has a session of this user open; for any thread."""
        return topic(user_id) in self._subscribed

    def _run(self) -> None:
        with self._closing:
            try:
                while self._iterate():
                    pass
                self._remove_settled(time.monotonic_ns())
            except Exception:
                log.exception("the publisher has failed; the events in its outbox are sent after the next start")
            for flush in self._flushes:
                fail(flush.flushed, PublisherClosed("the publisher is closed"))

    def _iterate(self) -> bool:
        """Run one iteration; False after the last one."""
        self._wait()
        now_ns = time.monotonic_ns()
        if self.guaranteed.poll(now_ns=now_ns):
            self._pending.reconnected()
            self._blocked = False
        self.fast.poll(now_ns=now_ns)
        self._read_subscriptions()
        self._read_answers(now_ns)
        commands, more = self.commands.take()
        self._execute(commands)
        if self._cleanup_ns is not None and now_ns >= self._cleanup_ns:
            self._remove_settled(now_ns)
        self._send(now_ns)
        if self._flushes and not len(self._pending):
            for flush in self._flushes:
                complete(flush.flushed, None)
            self._flushes.clear()
        return more

    def _wait(self) -> None:
        now_ns = time.monotonic_ns()
        dues = [self._cleanup_ns, self.fast.due_ns, self.guaranteed.due_ns]
        if self._can_send():
            more = self._pending.next(now_ns=now_ns) is not None
            dues.append(now_ns if more else self._pending.next_due_ns())
        due_ns = min((due for due in dues if due is not None), default=None)
        poller = zmq.Poller()
        for each in (self.commands.wakeup, self.fast.socket, self.fast.monitor, self.guaranteed.monitor):
            poller.register(each, zmq.POLLIN)
        poller.register(self.guaranteed.socket, zmq.POLLIN | zmq.POLLOUT if self._blocked else zmq.POLLIN)
        timeout_ms = None if due_ns is None else max(0, -(-(due_ns - now_ns) // 1_000_000))
        ready: dict[Any, int] = dict(poller.poll(timeout_ms))
        if self.commands.wakeup.fileno() in ready:
            self.commands.wakeup.recv(4096)
        if ready.get(self.guaranteed.socket, 0) & zmq.POLLOUT:
            self._blocked = False

    def _read_subscriptions(self) -> None:
        while (message := _received(self.fast.socket)) is not None:
            if message[0][:1] == b"\x01":
                self._subscribed.add(message[0][1:])
            elif message[0][:1] == b"\x00":
                self._subscribed.discard(message[0][1:])

    def _read_answers(self, now_ns: int) -> None:
        for _ in range(_MAX_BATCH):
            if (frames := _received(self.guaranteed.socket)) is None:
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

    def _execute(self, commands: Iterable[Command]) -> None:
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
            self._write(list(added.values()))
        for duplicate in duplicates:
            self._answer_duplicate(duplicate)

    def _write(self, added: list[PublishCommand]) -> None:
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
        now_ns = time.monotonic_ns()
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
        return to in self._subscribed and _sent(self.fast.socket, [to, VERSION, command.frame])

    def _send(self, now_ns: int) -> None:
        for _ in range(_MAX_BATCH):
            event_id = self._pending.next(now_ns=now_ns) if self._can_send() else None
            if event_id is None:
                return
            try:
                self._blocked = not _sent(self.guaranteed.socket, [VERSION, self._outbox.frame(event_id)])
            except OutboxFailed as error:
                log.error("an event can't be read; it is tried again later", error=str(error))
            if not self._blocked:
                self._pending.sent(event_id, now_ns=now_ns)

    def _can_send(self) -> bool:
        # Events sent before the connection is up would be sent again by `reconnected`. A bound socket can't tell.
        return not self._blocked and (self.guaranteed.connected or self._settings.bind)

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


def _received(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def _sent(socket: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


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
