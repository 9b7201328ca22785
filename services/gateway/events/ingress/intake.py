"""What containers send: each event is held against what is known and allowed, and then taken, handed on or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from services.common.clock import Clock
from services.common.messaging.frames import topic
from services.common.model.user_events import Channel, Priority, Status
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.state_machine import Delivery
from services.gateway.events.dispatcher.metrics import DispatcherMetrics
from services.gateway.events.dispatcher.unit_of_work import UnitOfWork
from services.gateway.events.ingress.acks import Ack, PendingAcks, ReplyTo, final_ack
from services.gateway.events.ingress.containers import Container
from services.gateway.events.ingress.quotas import Quotas
from services.gateway.events.ingress.validation import (
    Refusal,
    for_sessions,
    payload_problem,
    read_event,
    read_published,
)
from services.gateway.events.model import Event, EventKey
from services.gateway.events.store.outbox import Known, Outbox
from services.gateway.events.store.records import TransientEvent

Copy = tuple[Container, bytes | None, ReplyTo | None]
"""A copy of an event: who sent it, the UserEvent or None for what is none, and whom to answer or None for nobody."""
ReadCopy = tuple[Container, Event | Refusal, ReplyTo | None]


class Intake:
    """The desk's side towards containers.

    Attributes:
        turn: The one under way, which gets what comes of them; the desk sets it.
    """

    def __init__(
        self,
        outbox: Outbox,
        delivery: Delivery,
        settings: EventsSettings,
        metrics: DispatcherMetrics,
        clock: Clock,
        quotas: Quotas,
        pending_acks: PendingAcks,
        topics: Mapping[str, bytes],
        work: UnitOfWork,
    ) -> None:
        self._outbox = outbox
        self._delivery = delivery
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._quotas = quotas
        self._pending_acks = pending_acks
        self._topics = topics
        self.work = work

    def take(self, copies: Sequence[ReadCopy]) -> int:
        """Copies of events, which are answered in this order; how many new ones were above a hard quota."""
        live = self._delivery.live
        known = self._outbox.known(
            [event.key for _, event, _ in copies if isinstance(event, Event) and live(event.key) is None]
        )
        elapsed_ns = self._clock.monotonic_ns()
        above = 0
        for container, event, reply_to in copies:
            if isinstance(event, Refusal):
                self._refuse(reply_to, event)
            elif event.priority is Priority.INFORMATIONAL:
                self._inform_or_refuse(event, reply_to)
            else:
                above += self._accept(container, event, reply_to, known, elapsed_ns)
        self._begin_new()
        return above

    def take_published(self, published: Iterable[tuple[Container, bytes, bytes]]) -> None:
        """Events of the fast path: container, topic, UserEvent. What is CRITICAL is kept though it came this way."""
        critical: list[Copy] = []
        informed, most_bytes = self.work.after_commit.informed, self._settings.max_payload_bytes
        for container, named, body in published:
            event = read_published(body)
            if isinstance(event, Refusal):
                self._metrics.dropped(event.kind)
                continue
            user_id = event.user_id
            heard = self._topics.get(user_id)
            if not container.speaks_for(user_id) or named != (heard or topic(user_id)):
                self._metrics.dropped("not_owned")
            elif event.priority is Priority.CRITICAL:
                critical.append((container, body, None))
            elif heard is None:
                self._metrics.dropped("no_session")
            elif problem := payload_problem(event, most_bytes):
                self._metrics.dropped(problem.kind)
            else:
                informed.append(TransientEvent(user_id, container.name, event.body))
        if critical:
            self.take(read_copies(critical))

    def _inform_or_refuse(self, event: Event, reply_to: ReplyTo | None) -> None:
        event_id = event.key.event_id
        if problem := payload_problem(event, self._settings.max_payload_bytes):
            self._refuse(reply_to, problem)
        elif event.user_id not in self._topics:
            self._refuse(reply_to, Refusal(event_id, "no active session", "no_session"))
        else:
            told = for_sessions(event.body, event.payload)
            self.work.after_commit.informed.append(TransientEvent(event.user_id, event.key.container, told))
            self.work.reply(reply_to, Ack(event_id, Status.DELIVERED, via=Channel.WEB))

    def _accept(
        self,
        container: Container,
        event: Event,
        reply_to: ReplyTo | None,
        known: dict[EventKey, Known],
        elapsed_ns: int,
    ) -> bool:
        key, work, above = event.key, self.work, False
        before = self._body_before(key, known)
        if before is not None and before != event.body:
            self._refuse(reply_to, Refusal(key.event_id, "event_id reused", "reused"))
            return above
        if before is None:
            verdict = self._quotas.take(container, event.priority, elapsed_ns)
            above = verdict.above
            if verdict.refused:
                self._refuse(reply_to, Refusal(key.event_id, "quota exceeded", "quota"))
                return above
            if problem := payload_problem(event, self._settings.max_payload_bytes):
                self._refuse(reply_to, problem)
                return above
            work.bodies[key] = event.body
            work.new.append((event, verdict.soft))
            self._quotas.queued[container.name] += 1
        final = known[key].final if key in known else None
        if final:
            work.reply(reply_to, final_ack(final))
        else:
            self._pending_acks.wait(key, reply_to)
            work.reply_state(reply_to, key)
        return above

    def _body_before(self, key: EventKey, known: dict[EventKey, Known]) -> bytes | None:
        if live := self._delivery.live(key):
            return live.event.body
        if found := known.get(key):
            return found.body
        return self.work.bodies.get(key)  # it came in this very turn

    def _begin_new(self) -> None:
        """Let what was accepted go its way; all at once, as each call of the rules has its price."""
        work = self.work
        if work.new:
            work.add(self._delivery.accept(work.new, now_ns=work.now_ns))
            work.new = []

    def _refuse(self, reply_to: ReplyTo | None, refusal: Refusal) -> None:
        self._metrics.refused(refusal.kind)
        self.work.reply(reply_to, Ack(refusal.event_id, Status.ERROR, refusal.reason))


def read_copies(copies: Iterable[Copy]) -> list[ReadCopy]:
    """Check copies as far as it takes nothing but themselves; for any thread, at any time."""
    return [(container, _read(container, body), reply_to) for container, body, reply_to in copies]


def _read(container: Container, body: bytes | None) -> Event | Refusal:
    if body is None:
        return Refusal("", "the event does not parse", "undecodable")
    event = read_event(container.name, body)
    if isinstance(event, Event) and not container.speaks_for(event.user_id):
        return Refusal(event.key.event_id, "user not owned", "not_owned")
    return event
