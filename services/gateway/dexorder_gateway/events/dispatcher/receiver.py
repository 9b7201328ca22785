"""Receiver of containers' events: each is compared with known events, validated, and stored, passed on or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dexorder_common.clock import Clock
from dexorder_common.messaging.frames import topic
from dexorder_common.model.user_events import Channel, Priority, Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.delivery import EventDelivery
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.unit_of_work import UnitOfWork
from dexorder_gateway.events.event_codec import (
    EventRefusal,
    for_sessions,
    payload_problem,
    read_event,
    read_published,
)
from dexorder_gateway.events.ingress.containers import Container, ContainerQuotas, Verdict
from dexorder_gateway.events.ingress.floods import Floods
from dexorder_gateway.events.model import HELD, Ack, Event, EventKey, ReplyTo, TransientEvent
from dexorder_gateway.events.store.outbox import EventOutbox, Known

Copy = tuple[Container, bytes | None, ReplyTo | None]
"""Copy of an event: sender, UserEvent or None for an unknown message, and receiver of the answer, if any."""
ReadCopy = tuple[Container, Event | EventRefusal, ReplyTo | None]


NO_SPACE = "RESOURCE_EXHAUSTED: the disk of the gateway's events is full; send it later under the same id"


class EventReceiver:
    """Part of the transaction processor that handles inputs of containers.

    Attributes:
        work: Present unit of work, which the processor sets.
        pending_acks: For each queued event, the sender of its last copy.
        topics: Topics of users with open sessions, which the processor sets.
        over_quota: How many events were refused because their container's quota was exceeded.
        floods: The connections that have sent them.
    """

    def __init__(
        self,
        outbox: EventOutbox,
        delivery: EventDelivery,
        settings: EventsSettings,
        metrics: DispatcherMetrics,
        clock: Clock,
        work: UnitOfWork,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self.quotas = ContainerQuotas(settings)
        self.pending_acks: dict[EventKey, ReplyTo] = {}
        self.topics: dict[str, bytes] = {}
        self.work = work
        self.over_quota = 0
        self.floods = Floods()
        self._refused = Counter[str]()

    def take(self, copies: Sequence[ReadCopy]) -> None:
        """Take copies of events, which are answered in this order."""
        if not copies:
            return
        queued = self._delivery.queued
        known = self._outbox.known(
            [event.key for _, event, _ in copies if isinstance(event, Event) and queued(event.key) is None]
        )
        elapsed_ns = self._clock.monotonic_ns()
        for container, event, reply_to in copies:
            if isinstance(event, EventRefusal):
                self._refuse(reply_to, event)
            elif event.priority is Priority.INFORMATIONAL:
                self._inform_or_refuse(event, reply_to)
            else:
                self._accept(container, event, reply_to, known, elapsed_ns)
        work = self.work
        if work.new:  # all at once, because each call of the delivery rules costs time
            work.changes.add(self._delivery.accept(work.new, now_ns=work.now_ns))
            work.new = []
        self._count_refused()

    def take_without_disk(self, copies: Sequence[ReadCopy]) -> list[ReadCopy]:
        """Take copies while the disk is full; return the waiting ones. CRITICAL and known events are never refused."""
        known = self._outbox.known([event.key for _, event, _ in copies if isinstance(event, Event)])
        waiting = []
        for copy in copies:
            _, event, reply_to = copy
            if isinstance(event, EventRefusal):
                self._refuse(reply_to, event)
            elif event.priority is Priority.INFORMATIONAL:
                self._inform_or_refuse(event, reply_to)
            elif event.priority is Priority.CRITICAL or self._body_of(event.key, known) is not None:
                waiting.append(copy)
            else:
                self._refuse(reply_to, EventRefusal(event.key.event_id, NO_SPACE, "no_space"))
        self._count_refused()
        return waiting

    def _count_refused(self) -> None:
        if self._refused:
            self._metrics.refused(self._refused)
            self._refused = Counter()

    def take_published(self, published: Iterable[tuple[Container, bytes, bytes]]) -> None:
        """Take events of the fast path: container, topic, UserEvent. CRITICAL ones are stored nevertheless."""
        if critical := self.pass_on(published):
            self.take(read_copies(critical))

    def pass_on(self, published: Iterable[tuple[Container, bytes, bytes]]) -> list[Copy]:
        """Pass events of the fast path on to open sessions; return the events to be stored."""
        critical: list[Copy] = []
        transient, max_bytes = self.work.after_commit.transient, self._settings.max_payload_bytes
        for container, event_topic, body in published:
            event = read_published(body)
            if isinstance(event, EventRefusal):
                self._metrics.dropped(event.kind)
                continue
            user_id = event.user_id
            subscribed = self.topics.get(user_id)
            if not container.speaks_for(user_id) or event_topic != (subscribed or topic(user_id)):
                self._metrics.dropped("not_owned")
            elif event.priority is Priority.CRITICAL:
                critical.append((container, body, None))
            elif subscribed is None:
                self._metrics.dropped("no_session")
            elif problem := payload_problem(event.event_id, event.payload, max_bytes):
                self._metrics.dropped(problem.kind)
            else:
                transient.append(TransientEvent(user_id, container.name, event.body))
        return critical

    def _inform_or_refuse(self, event: Event, reply_to: ReplyTo | None) -> None:
        event_id = event.key.event_id
        if problem := payload_problem(event_id, event.payload, self._settings.max_payload_bytes):
            self._refuse(reply_to, problem)
        elif event.user_id not in self.topics:
            self._refuse(reply_to, EventRefusal(event_id, "no active session", "no_session"))
        else:
            body = for_sessions(event.body, event.payload)
            self.work.after_commit.transient.append(TransientEvent(event.user_id, event.key.container, body))
            self.work.reply(reply_to, Ack(event_id, Status.DELIVERED, via=Channel.WEB))

    def _accept(
        self,
        container: Container,
        event: Event,
        reply_to: ReplyTo | None,
        known: dict[EventKey, Known],
        elapsed_ns: int,
    ) -> None:
        """Accept or refuse an event that is to be stored."""
        key, work = event.key, self.work
        body = self._body_of(key, known)
        if body is None:
            verdict = self.quotas.take(container, event.priority, elapsed_ns, len(event.body))
            if verdict is Verdict.HELD:
                self._hold(event, reply_to, elapsed_ns)
                return
            if verdict is Verdict.REFUSED:
                self.over_quota += 1
                self.floods.refused(reply_to, elapsed_ns)
                self._refuse(reply_to, EventRefusal(key.event_id, "quota exceeded", "quota"))
                return
            if problem := payload_problem(key.event_id, event.payload, self._settings.max_payload_bytes):
                self._refuse(reply_to, problem)
                return
            work.bodies[key] = event.body
            work.new.append((event, verdict is Verdict.SOFT))
            self.quotas.enter(event)
        elif body != event.body:
            self._refuse(reply_to, EventRefusal(key.event_id, "event_id reused", "reused"))
            return
        final = known[key].final if key in known else None
        if final:
            work.reply(reply_to, final.ack())
        else:
            if reply_to is not None:  # port 5570 sends no acks
                self.pending_acks[key] = reply_to
            work.reply(reply_to, key)

    def _body_of(self, key: EventKey, known: dict[EventKey, Known]) -> bytes | None:
        """Return the body of an event that was accepted before; None for a new one."""
        if row := self._delivery.queued(key):
            return row.event.body
        if found := known.get(key):
            return found.body
        return self.work.bodies.get(key)

    def _hold(self, event: Event, reply_to: ReplyTo | None, elapsed_ns: int) -> None:
        """Take no notice of a CRITICAL event above the limit: without an ack its container sends it again."""
        self._refused["held"] += 1
        self.floods.refused(reply_to, elapsed_ns)
        if callable(reply_to):  # a call waits for an answer, and can be told when to come again
            self.work.reply(reply_to, Ack(event.key.event_id, Status.ERROR, HELD, taken=False))

    def _refuse(self, reply_to: ReplyTo | None, refusal: EventRefusal) -> None:
        self._refused[refusal.kind] += 1
        self.work.reply(reply_to, Ack(refusal.event_id, Status.ERROR, refusal.reason))


def read_copies(copies: Iterable[Copy]) -> list[ReadCopy]:
    """Validate copies as far as that needs no other state; thread-safe."""
    return [(container, _read(container, body), reply_to) for container, body, reply_to in copies]


def _read(container: Container, body: bytes | None) -> Event | EventRefusal:
    if body is None:
        return EventRefusal("", "the event does not parse", "undecodable")
    event = read_event(container.name, body)
    if isinstance(event, Event) and not container.speaks_for(event.user_id):
        return EventRefusal(event.key.event_id, "user not owned", "not_owned")
    return event
