"""Outcomes of events: their values, the most recent ones, and the callers that wait for one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import structlog

from dexorder.errors import EventUnknown, PublisherClosed
from dexorder_common.model.user_events import Channel

log = structlog.get_logger(__name__)
T = TypeVar("T")
MAX_RECENT = 10_000


class FinalStatus(StrEnum):
    """Final status of an event at its publisher."""

    DELIVERED = "DELIVERED"
    """The event reached the user, as the gateway confirmed."""
    ERROR = "ERROR"
    """The gateway will not deliver the event; ``error`` has the reason."""
    SENT = "SENT"
    """The event was sent on the fast path while the user had a session open. That path has no answers."""
    DROPPED = "DROPPED"
    """The event is INFORMATIONAL and the user had no session open."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an event. ``via`` is set only if it was delivered, ``error`` only if it was not."""

    event_id: str
    status: FinalStatus
    via: Channel | None = None
    error: str = ""


class OutcomeTracker:
    """Recent outcomes and pending queries; for the publisher's thread."""

    def __init__(self, on_outcome: Callable[[Outcome], None], on_queued: Callable[[str], None]) -> None:
        self._on_outcome = on_outcome
        self._on_queued = on_queued
        self._recent: OrderedDict[str, Outcome] = OrderedDict()
        self._queries: dict[str, list[Future[Outcome]]] = {}

    def query(self, event_id: str, answer: Future[Outcome], *, pending: bool) -> None:
        """Complete ``answer`` with the outcome: when it comes if the event is pending, else at once."""
        if pending:
            self._queries.setdefault(event_id, []).append(answer)
        elif event_id in self._recent:
            complete(answer, self._recent[event_id])
        else:
            fail(answer, EventUnknown(f"event {event_id!r} is not pending and is not among the recent outcomes"))

    def settled(self, outcome: Outcome) -> None:
        """Record the outcome of an event that was in the outbox."""
        self._recent[outcome.event_id] = outcome
        self._recent.move_to_end(outcome.event_id)
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        for answer in self._queries.pop(outcome.event_id, ()):
            complete(answer, outcome)
        self.notify(outcome)

    def lost(self, event_id: str, error: Exception) -> None:
        """Fail the queries for an event that could not be written to the outbox."""
        for answer in self._queries.pop(event_id, ()):
            fail(answer, error)

    def notify(self, outcome: Outcome) -> None:
        """Call the callback for an outcome without recording it."""
        _call(self._on_outcome, outcome)

    def queued(self, event_id: str) -> None:
        """Call the callback for an event that the gateway has on disk."""
        _call(self._on_queued, event_id)

    def close(self) -> None:
        """Fail all pending queries."""
        for answers in self._queries.values():
            for answer in answers:
                fail(answer, PublisherClosed("the publisher is closed"))
        self._queries.clear()


def _call(callback: Callable[[T], None], value: T) -> None:
    try:
        callback(value)
    except Exception:
        log.exception("a callback has failed")


def complete(future: Future[Any], result: Any) -> None:
    """Set a result unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def fail(future: Future[Any], error: Exception) -> None:
    """Set an error unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
