"""Transactions of the dispatcher, without its sockets: inputs are decided on, written at once, then effects follow.

Effects leave only after the disk has the rows: all are in an `AfterCommit`, returned after the write.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dexorder_common.clock import Clock
from dexorder_common.messaging.frames import topic
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import InvalidRequest, SuiteError
from dexorder_common.model.user_events import Channel
from dexorder_common.storage.durable_sqlite import DiskSpace
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import DeliveryChanges
from dexorder_gateway.events.delivery.channel_policy import ContactsCache
from dexorder_gateway.events.delivery.delivery import EventDelivery
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.receiver import EventReceiver, ReadCopy, read_copies
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit, UnitOfWork
from dexorder_gateway.events.ingress.containers import Container
from dexorder_gateway.events.model import Contacts, EventKey, Result
from dexorder_gateway.events.store.outbox import EventOutbox, Written

T = TypeVar("T")
MAX_DUE_NS = 5_000_000
"""Time for due work in one transaction. To write it takes as long again, and containers wait for their acks."""


class TransactionProcessor:
    """Transactions, one after the other: each is ``begin``, any inputs, ``commit``. For one thread at a time.

    While the disk is full, ``commit`` and ``forget`` do not return. Between two attempts, the caller of ``commit`` may
    continue with work that needs no disk.
    """

    def __init__(
        self,
        outbox: EventOutbox,
        delivery: EventDelivery,
        contacts: ContactsCache,
        settings: EventsSettings,
        metrics: DispatcherMetrics,
        clock: Clock,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._contacts = contacts
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self.epoch = outbox.epoch
        self.space = DiskSpace()
        self._work = UnitOfWork(clock.wall_ns())
        self.receiver = EventReceiver(outbox, delivery, settings, metrics, clock, self._work)
        rows = list(outbox.queued())
        for row in rows:
            self.receiver.quotas.enter(row.event)
        pauses = outbox.pauses(self._work.now_ns)
        self._work.changes.add(delivery.restore(rows, outbox.sequences(), pauses, now_ns=self._work.now_ns))

    def begin(self) -> None:
        """Start a transaction; the first one contains the work that the restart found."""
        self._work.now_ns = self._clock.wall_ns()

    def next_due_ns(self) -> int | None:
        """Return when the next transaction is due by the wall clock, even without inputs."""
        return self._delivery.next_due_ns()

    def resolve(self, future: asyncio.Future[T], find: Callable[[], T]) -> None:
        """Set the result of a future of the event loop, a value or a SuiteError, once the transaction is on disk."""
        try:
            self._work.after_commit.resolved.append((future, find()))
        except SuiteError as error:
            self._work.after_commit.resolved.append((future, error))

    def due(self) -> None:
        """Do the work that is due by now, for some milliseconds."""
        now_ns, until_ns = self._work.now_ns, self._clock.monotonic_ns() + MAX_DUE_NS
        while (due_ns := self._delivery.next_due_ns()) is not None and due_ns <= now_ns:
            self._work.changes.add(self._delivery.due(now_ns=now_ns))
            if self._clock.monotonic_ns() >= until_ns:
                break

    def finished(self, key: EventKey, number: int, result: Result) -> None:
        """Handle the result of a `SendRequest`."""
        self._work.changes.add(self._delivery.finished(key, number, result, now_ns=self._work.now_ns))

    def session_opened(self, user_id: str) -> None:
        """Note that a user's first session has opened."""
        self.receiver.topics[user_id] = topic(user_id)
        self._work.after_commit.subscribe.append(self.receiver.topics[user_id])
        self._work.changes.add(self._delivery.session_opened(user_id, now_ns=self._work.now_ns))

    def session_closed(self, user_id: str) -> None:
        """Note that a user's last session has closed."""
        self._work.after_commit.unsubscribe.append(self.receiver.topics.pop(user_id))
        self._delivery.session_closed(user_id)

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> None:
        """Handle a session's ack, or its report that the user has seen an event."""
        if epoch != self._outbox.epoch:
            raise InvalidRequest("the epoch is of another log; subscribe again")
        handle = self._delivery.seen if seen else self._delivery.received
        self._work.changes.add(handle(user_id, sequence, now_ns=self._work.now_ns))

    def resume(self, user_id: str, cursor: Cursor | None) -> tuple[int, bool]:
        """Resume a session; all up to a valid cursor counts as received.

        Return the user's newest position, and whether the cursor is invalid here.
        """
        newest = self._delivery.newest(user_id)
        if cursor is None:
            return newest, False
        if self._outbox.start_of(user_id, cursor).is_reset:
            return newest, True
        self._work.changes.add(self._delivery.received_up_to(user_id, cursor.sequence, now_ns=self._work.now_ns))
        return newest, False

    def contacts(self, user_id: str) -> Contacts:
        """Return a user's contacts."""
        return self._contacts.contacts(user_id)

    def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        """Replace a user's contacts."""
        self._contacts.set_contacts(user_id, contacts)
        self._work.contacts[user_id] = contacts
        self._work.changes.add(self._delivery.contacts_changed(user_id, now_ns=self._work.now_ns))

    def user_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """Store that a user is active on a channel."""
        self._contacts.set_active(user_id, channel, until_ns)
        self._work.presence[user_id, channel] = until_ns
        self._work.changes.add(self._delivery.user_active(user_id, channel, until_ns, now_ns=self._work.now_ns))

    def commit(
        self,
        meanwhile: Callable[[Written], None] | None = None,
        while_full: Callable[[], object] | None = None,
    ) -> AfterCommit:
        """Write the transaction's rows, then return their effects.

        Args:
            meanwhile: See `EventOutbox.write`.
            while_full: See `DiskSpace.write`; it may call `without_disk`.

        Raises:
            sqlite3.Error: The rows are not on disk; memory is ahead of it, so the processor can't be used any more.
        """
        work = self._work
        self._remove_gone(work.changes.gone)
        if work.has_rows:
            started = time.perf_counter()
            presence = [(user_id, channel, until_ns) for (user_id, channel), until_ns in work.presence.items()]
            self.space.write(lambda: self._outbox.write(work.changes, work.contacts, presence, meanwhile), while_full)
            self._count(work.changes, time.perf_counter() - started)
        effects = work.end(self.receiver.pending_acks)
        self._work = self.receiver.work = UnitOfWork(0)
        self._count_effects(effects)
        return effects

    def without_disk(
        self, copies: Sequence[ReadCopy], published: Iterable[tuple[Container, bytes, bytes]]
    ) -> tuple[AfterCommit, list[ReadCopy]]:
        """Take messages of containers while a commit waits for space; return the effects, and the copies that wait."""
        receiver, waiting_work = self.receiver, self.receiver.work
        receiver.work = UnitOfWork(self._clock.wall_ns())
        try:
            waiting = receiver.take_without_disk(copies)
            waiting += read_copies(receiver.pass_on(published))
            effects = receiver.work.end({})
        finally:
            receiver.work = waiting_work
        self._count_effects(effects)
        return effects, waiting

    def _count_effects(self, effects: AfterCommit) -> None:
        if effects.acks:
            self._metrics.acked(Counter([ack.status for _, ack in effects.acks]))
        if effects.transient:
            self._metrics.informed(len(effects.transient))

    def forget(self) -> bool:
        """Delete some events that are past their retention, outside of any transaction; return whether any were."""
        before_ns = self._clock.wall_ns() - int(self._settings.retention_days * 86_400e9)
        return self.space.write(lambda: self._outbox.forget(before_ns)) > 0

    def _remove_gone(self, gone: Sequence[tuple[str, Channel, str]]) -> None:
        """Remove destinations that no longer exist; that is no reason to retry the others."""
        for user_id, channel, destination in gone:
            contacts = self._contacts.contacts(user_id).without(channel, destination)
            self._contacts.set_contacts(user_id, contacts)
            self._work.contacts[user_id] = contacts

    def _count(self, changes: DeliveryChanges, seconds: float) -> None:
        for final in changes.finals:
            self.receiver.quotas.leave(final.key)
        accepted = Counter([row.event.priority for row in changes.accepted])
        finished = Counter([final.status for final in changes.finals])
        self._metrics.committed(accepted, finished, self.receiver.quotas.queued.total(), seconds)
