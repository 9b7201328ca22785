"""One turn of the dispatcher without its sockets: what came is checked and decided, one write, then what is to be done.

Nothing is said or sent that is not on disk: all that follows from a turn is in its `Effects`, made after the write.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from services.common.clock import Clock
from services.common.messaging.frames import topic
from services.common.model.errors import InvalidRequest, SuiteError
from services.common.model.user_events import Channel
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.changes import Changes
from services.gateway.events.delivery.contacts_cache import ContactsCache
from services.gateway.events.delivery.gone import without
from services.gateway.events.delivery.state_machine import Delivery
from services.gateway.events.dispatcher.metrics import DispatcherMetrics
from services.gateway.events.dispatcher.unit_of_work import AfterCommit, UnitOfWork
from services.gateway.events.ingress.acks import PendingAcks
from services.gateway.events.ingress.containers import Container
from services.gateway.events.ingress.intake import Copy, Intake, ReadCopy, read_copies
from services.gateway.events.ingress.quotas import Quotas
from services.gateway.events.model import Contacts, EventKey, Result
from services.gateway.events.store.outbox import Done, Outbox

T = TypeVar("T")
LONGEST_DUE_NS = 5_000_000
"""To write it takes as long again, and meanwhile nobody is answered."""


class TransactionProcessor:
    """For one thread at a time. Each turn is ``begin``, any of the others, ``close``.

    Attributes:
        epoch: Of the outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        delivery: Delivery,
        people: ContactsCache,
        settings: EventsSettings,
        metrics: DispatcherMetrics,
        clock: Clock,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._people = people
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._quotas = Quotas(settings)
        self._pending_acks = PendingAcks()
        self._open: Counter[str] = Counter()
        self._topics: dict[str, bytes] = {}
        self._newest: dict[str, int] = {}
        self._forgotten = outbox.forgotten()
        self.epoch = outbox.epoch
        self._work = UnitOfWork(clock.wall_ns())
        self._intake = Intake(
            outbox, delivery, settings, metrics, clock, self._quotas, self._pending_acks, self._topics, self._work
        )
        self._restore()

    def begin(self) -> None:
        """A new turn; the first has what the restart found to do."""
        self._work.now_ns = self._clock.wall_ns()

    def next_due_ns(self) -> int | None:
        """When the next turn must be, by the wall clock, even if nothing comes."""
        return self._delivery.next_due_ns()

    # ---- what containers send

    def take(self, copies: Iterable[Copy]) -> int:
        """Copies of events, which are answered in this order; how many new ones were above a hard quota."""
        return self._intake.take(read_copies(copies))

    def take_read(self, copies: Sequence[ReadCopy]) -> int:
        """As `take`, after `read_copies`."""
        return self._intake.take(copies)

    def take_published(self, published: Iterable[tuple[Container, bytes, bytes]]) -> None:
        """Events of the fast path: container, topic, UserEvent. What is CRITICAL is kept though it came this way."""
        self._intake.take_published(published)

    # ---- what the event loop says

    def answer(self, future: asyncio.Future[T], find: Callable[[], T]) -> None:
        """Settle a future of the event loop, with a value or a SuiteError, once the turn is on disk."""
        try:
            self._work.after_commit.done.append((future, find()))
        except SuiteError as error:
            self._work.after_commit.done.append((future, error))

    def _restore(self) -> None:
        self._newest = self._outbox.sequences()
        live = list(self._outbox.live())
        self._quotas.queued.update(each.event.key.container for each in live)
        pauses = self._outbox.pauses(self._work.now_ns)
        self._work.add(self._delivery.restore(live, self._newest, pauses, now_ns=self._work.now_ns))

    def due(self) -> None:
        """Do what is due by now, for some milliseconds."""
        now_ns, until_ns = self._work.now_ns, self._clock.monotonic_ns() + LONGEST_DUE_NS
        while (due_ns := self._delivery.next_due_ns()) is not None and due_ns <= now_ns:
            self._work.add(self._delivery.due(now_ns=now_ns))
            if self._clock.monotonic_ns() >= until_ns:
                break

    def finished(self, key: EventKey, number: int, result: Result) -> None:
        """What came of a `SendOut`."""
        self._work.add(self._delivery.finished(key, number, result, now_ns=self._work.now_ns))

    def session_opened(self, user_id: str) -> None:
        """One more session of a user is open."""
        self._open[user_id] += 1
        if self._open[user_id] == 1:
            self._topics[user_id] = topic(user_id)
            self._work.after_commit.opened.append(self._topics[user_id])
            self._work.add(self._delivery.session_opened(user_id, now_ns=self._work.now_ns))

    def session_closed(self, user_id: str) -> None:
        """One less."""
        self._open[user_id] -= 1
        if self._open[user_id] <= 0:
            del self._open[user_id]
            self._work.after_commit.closed.append(self._topics.pop(user_id))
            self._work.add(self._delivery.session_closed(user_id, now_ns=self._work.now_ns))

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> None:
        """A session has an event, or its user has seen it.

        Raises:
            InvalidRequest: The place is in another log.
        """
        if epoch != self._outbox.epoch:
            raise InvalidRequest("the epoch is of another log; subscribe again")
        say = self._delivery.seen if seen else self._delivery.received
        self._work.add(say(user_id, sequence, now_ns=self._work.now_ns))

    def resume(self, user_id: str, cursor: tuple[str, int] | None) -> tuple[int, bool]:
        """Where a session goes on: the user's newest place, and whether its cursor means nothing here.

        A cursor that does says that all before it was received.
        """
        newest = self._newest.get(user_id, 0)
        if cursor is None:
            return newest, False
        epoch, sequence = cursor
        if epoch != self._outbox.epoch or not self._forgotten.get(user_id, 0) <= sequence <= newest:
            return newest, True
        self._work.add(self._delivery.received_up_to(user_id, sequence, now_ns=self._work.now_ns))
        return newest, False

    def contacts(self, user_id: str) -> Contacts:
        """How a user can be reached."""
        return self._people.contacts(user_id)

    def set_contacts(self, user_id: str, contacts: Contacts) -> None:
        """Replace that."""
        self._people.set_contacts(user_id, contacts)
        self._work.contacts[user_id] = contacts
        self._work.add(self._delivery.contacts_changed(user_id, now_ns=self._work.now_ns))

    def reached(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """A user is active on a channel."""
        self._people.set_active(user_id, channel, until_ns)
        self._work.presence[user_id, channel] = until_ns
        self._work.add(self._delivery.reached(user_id, channel, until_ns, now_ns=self._work.now_ns))

    def forget(self) -> bool:
        """Forget some events that are past their time; whether there may be more. Not part of a turn."""
        before_ns = self._clock.wall_ns() - int(self._settings.retention_days * 86_400e9)
        forgotten = self._outbox.forget(before_ns)
        for user_id, sequence in forgotten.items():
            self._forgotten[user_id] = max(self._forgotten.get(user_id, 0), sequence)
        return bool(forgotten)

    # ---- the turn's end

    def close(self, meanwhile: Callable[[Done], None] | None = None) -> AfterCommit:
        """Write what the turn has changed, then say what follows.

        Args:
            meanwhile: See `Outbox.write`.

        Raises:
            sqlite3.Error: It is not on disk; memory is ahead of it, so nothing may be done any more.
        """
        work = self._work
        self._take_out(work.changes.gone)
        if work.writes:
            started = time.perf_counter()
            presence = [(user_id, channel, until_ns) for (user_id, channel), until_ns in work.presence.items()]
            self._outbox.write(work.changes, work.contacts, presence, meanwhile)
            self._count(work.changes, time.perf_counter() - started)
        after_commit = work.end(self._pending_acks)
        self._work = self._intake.work = UnitOfWork(0)
        if after_commit.acks:
            self._metrics.answered(Counter([ack.status for _, ack in after_commit.acks]))
        if after_commit.informed:
            self._metrics.informed(len(after_commit.informed))
        return after_commit

    def _take_out(self, gone: Sequence[tuple[str, Channel, str]]) -> None:
        """Destinations that no longer exist; no reason to begin anew with the others."""
        for user_id, channel, destination in gone:
            contacts = without(self._people.contacts(user_id), channel, destination)
            self._people.set_contacts(user_id, contacts)
            self._work.contacts[user_id] = contacts

    def _count(self, changes: Changes, seconds: float) -> None:
        for final in changes.finals:
            self._quotas.queued[final.key.container] -= 1
        # a user's new events have higher places from one to the next, and than all that were written before
        self._newest.update({new.event.user_id: new.sequence for new in changes.accepted if new.sequence is not None})
        for live in changes.updated:
            if live.sequence is not None and live.sequence > self._newest.get(live.event.user_id, 0):
                self._newest[live.event.user_id] = live.sequence
        accepted = Counter([live.event.priority for live in changes.accepted])
        finished = Counter([final.status for final in changes.finals])
        self._metrics.committed(accepted, finished, self._quotas.queued.total(), seconds)
