"""The publisher's thread: it alone touches the sockets, the outbox and the rules, so none of them needs a lock.

A turn: wait -> subscriptions, answers -> commands of other threads -> one commit for all of them -> tell their callers
-> send. An event is sent, and its caller told, only once it is on the disk.
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

from dexorder.events.commands import Command, CommandQueue, FlushCommand, OutcomeQuery, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection
from dexorder.events.errors import EventRefused, OutboxFailed, OutboxFull, PublisherClosed
from dexorder.events.outbox import Outbox
from dexorder.events.outcome import FinalStatus, Outcome
from dexorder.events.outcomes import OutcomeTracker, done, fail
from dexorder.events.retransmit import RetransmitPolicy, RetransmitQueue
from services.common.messaging.frames import VERSION, BadFrame, decode_ack, topic
from services.common.model.user_events import Channel, Priority
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

log = structlog.get_logger(__name__)
_SECOND_NS = 1_000_000_000
_SETTLE_NS = 200_000_000
_AT_ONCE = 512


class Sender:
    """Its thread runs from ``thread.start()`` until the mailbox is closed."""

    def __init__(
        self, settings: PublisherSettings, on_outcome: Callable[[Outcome], None], on_queued: Callable[[str], None]
    ) -> None:
        """Open the outbox and the sockets; see `Publisher`."""
        self.commands = CommandQueue()
        self._max_events = settings.max_events
        self._outcomes = OutcomeTracker(on_outcome, on_queued)
        pace = RetransmitPolicy(
            int(settings.retransmit_base_seconds * _SECOND_NS),
            int(settings.retransmit_max_seconds * _SECOND_NS),
            int(settings.query_seconds * _SECOND_NS),
            settings.window,
        )
        self._retransmits = RetransmitQueue(pace, lambda: random.uniform(0.9, 1.1))  # noqa: S311 - spreads load, hides nothing
        self._subscribed: set[bytes] = set()
        self._settled: list[str] = []
        self._settle_ns: int | None = None
        self._drains: list[FlushCommand] = []
        self._bound = settings.bind
        self._blocked = False
        with ExitStack() as closing:
            closing.callback(self.commands.end)
            closing.callback(self._outcomes.close)
            self._outbox = Outbox(settings.outbox)
            closing.callback(self._outbox.close)
            context = closing.enter_context(zmq.Context())
            self.fast = Connection(context, zmq.XPUB, settings.fast, settings)
            closing.callback(self.fast.close)
            self.guaranteed = Connection(context, zmq.DEALER, settings.guaranteed, settings)
            closing.callback(self.guaranteed.close)
            self._retransmits.add(self._outbox.events())
            self._closing = closing.pop_all()
        self.thread = threading.Thread(target=self._run, name="dexorder-publisher", daemon=True)

    def subscribed(self, user_id: str) -> bool:
        """Whether the gateway has a session of this user open; for any thread."""
        return topic(user_id) in self._subscribed

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._closing:
            try:
                while self._turn():
                    pass
                self._settle(time.monotonic_ns())
            except Exception:
                log.exception("the publisher has failed; what is in its outbox goes out at the next start")
            for drain in self._drains:
                fail(drain.drained, PublisherClosed("the publisher is closed"))

    def _turn(self) -> bool:
        """One turn; False when it was the last."""
        self._wait()
        now_ns = time.monotonic_ns()
        if self.guaranteed.look(now_ns=now_ns):
            self._retransmits.reconnected()
            self._blocked = False
        self.fast.look(now_ns=now_ns)
        self._take_subscriptions()
        self._take_answers(now_ns)
        commands, more = self.commands.take()
        self._do(commands)
        if self._settle_ns is not None and now_ns >= self._settle_ns:
            self._settle(now_ns)
        self._send(now_ns)
        if self._drains and not len(self._retransmits):
            for drain in self._drains:
                done(drain.drained, None)
            self._drains.clear()
        return more

    def _wait(self) -> None:
        now_ns = time.monotonic_ns()
        dues = [self._settle_ns, self.fast.next_due_ns(), self.guaranteed.next_due_ns()]
        if self._open_to_send():
            more = self._retransmits.next(now_ns=now_ns) is not None
            dues.append(now_ns if more else self._retransmits.next_due_ns())
        due_ns = min((due for due in dues if due is not None), default=None)
        poller = zmq.Poller()
        poller.register(self.commands.bell, zmq.POLLIN)
        for each in (self.fast.socket, self.fast.monitor, self.guaranteed.socket, self.guaranteed.monitor):
            poller.register(each, zmq.POLLIN)
        if self._blocked:
            poller.register(self.guaranteed.socket, zmq.POLLIN | zmq.POLLOUT)
        ready: dict[Any, int] = dict(poller.poll(None if due_ns is None else _milliseconds(due_ns - now_ns)))
        if self.commands.bell.fileno() in ready:
            self.commands.hush()
        if ready.get(self.guaranteed.socket, 0) & zmq.POLLOUT:
            self._blocked = False

    def _take_subscriptions(self) -> None:
        while (message := _received(self.fast.socket)) is not None:
            if message[0][:1] == b"\x01":
                self._subscribed.add(message[0][1:])
            elif message[0][:1] == b"\x00":
                self._subscribed.discard(message[0][1:])

    def _take_answers(self, now_ns: int) -> None:
        for _ in range(_AT_ONCE):
            if (frames := _received(self.guaranteed.socket)) is None:
                return
            try:
                ack = decode_ack(frames)
            except BadFrame as error:
                log.warning("an answer of the gateway can't be read", reason=error.reason)
                continue
            if not ack.event_id:
                log.warning("the gateway could not read an event", error=ack.error_message)
            elif ack.status == pb.QUEUED:
                if self._retransmits.queued(ack.event_id, now_ns=now_ns):
                    self._outcomes.queued(ack.event_id)
            elif ack.status in (pb.DELIVERED, pb.ACK_ERROR) and self._retransmits.settled(ack.event_id):
                self._ended(_outcome(ack), now_ns)

    # ---- commands ------------------------------------------------------------------------------------------------

    def _do(self, commands: Iterable[Command]) -> None:
        added: dict[str, PublishCommand] = {}
        repeats: list[PublishCommand] = []
        for command in commands:
            if isinstance(command, OutcomeQuery):
                waits = command.event_id in self._retransmits or command.event_id in added
                self._outcomes.ask(command.event_id, command.outcome, waits=waits)
            elif isinstance(command, FlushCommand):
                self._drains.append(command)
            elif command.kept is None:
                self._outcomes.tell(
                    Outcome(command.event_id, FinalStatus.SENT if self._fast(command) else FinalStatus.DROPPED)
                )
            elif command.event_id in added or command.event_id in self._retransmits:
                repeats.append(command)
            elif len(self._retransmits) + len(added) >= self._max_events:
                fail(command.kept, OutboxFull(f"{self._max_events:,} events wait for the gateway already"))
            else:
                added[command.event_id] = command
        if added:
            self._keep(list(added.values()))
        for repeat in repeats:
            self._repeat(repeat)

    def _keep(self, added: list[PublishCommand]) -> None:
        try:
            self._outbox.write([(post.event_id, post.frame) for post in added], self._settled)
        except OutboxFailed as error:
            for post in added:
                _answer(post, error)
                self._outcomes.lost(post.event_id, error)
            return
        self._settled = []
        self._settle_ns = None
        self._retransmits.add(post.event_id for post in added)
        now_ns = time.monotonic_ns()
        for post in added:
            _answer(post)
            if post.priority is Priority.NORMAL and self._fast(post):
                self._retransmits.settled(post.event_id)
                self._ended(Outcome(post.event_id, FinalStatus.SENT), now_ns)

    def _repeat(self, post: PublishCommand) -> None:
        """An event whose id still waits: the same one changes nothing."""
        try:
            if self._outbox.frame(post.event_id) != post.frame:
                raise EventRefused(f"event_id {post.event_id!r} is taken by another event that still waits")
            _answer(post)
        except (EventRefused, OutboxFailed) as error:
            _answer(post, error)

    # ---- sending and ends ----------------------------------------------------------------------------------------

    def _fast(self, post: PublishCommand) -> bool:
        to = topic(post.user_id)
        return to in self._subscribed and _sent(self.fast.socket, [to, VERSION, post.frame])

    def _send(self, now_ns: int) -> None:
        for _ in range(_AT_ONCE):
            event_id = self._retransmits.next(now_ns=now_ns) if self._open_to_send() else None
            if event_id is None:
                return
            try:
                self._blocked = not _sent(self.guaranteed.socket, [VERSION, self._outbox.frame(event_id)])
            except OutboxFailed as error:
                log.error("an event can't be read; it is tried again later", error=str(error))
            if not self._blocked:
                self._retransmits.sent(event_id, now_ns=now_ns)

    def _open_to_send(self) -> bool:
        # What is sent before `reconnected` was told would be sent twice; whom a bound socket serves it can't tell.
        return not self._blocked and (self.guaranteed.connected or self._bound)

    def _ended(self, outcome: Outcome, now_ns: int) -> None:
        self._settled.append(outcome.event_id)
        self._settle_ns = self._settle_ns or now_ns + _SETTLE_NS
        self._outcomes.ended(outcome)

    def _settle(self, now_ns: int) -> None:
        """Forget what has ended. Until then a start would send it again, which changes nothing."""
        if not self._settled:
            return
        try:
            self._outbox.write([], self._settled)
            self._settled = []
            self._settle_ns = None
        except OutboxFailed as error:
            log.error("what has ended stays in the outbox for now", error=str(error))
            self._settle_ns = now_ns + _SECOND_NS


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


def _answer(post: PublishCommand, error: Exception | None = None) -> None:
    assert post.kept is not None
    if error is None:
        done(post.kept, post.event_id)
    else:
        fail(post.kept, error)


def _outcome(ack: pb.EventAck) -> Outcome:
    if ack.status == pb.ACK_ERROR:
        return Outcome(ack.event_id, FinalStatus.ERROR, error=ack.error_message or "no reason given")
    known = int(ack.delivered_via) in set(map(int, Channel))
    via = Channel(ack.delivered_via) if known else None
    return Outcome(ack.event_id, FinalStatus.DELIVERED, via)


def _milliseconds(ns: int) -> int:
    return max(0, -(-ns // 1_000_000))
