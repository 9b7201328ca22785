"""How events have ended lately, and who wants to know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

from dexorder.events.errors import EventUnknown, PublisherClosed
from dexorder.events.outcome import Outcome

log = structlog.get_logger(__name__)
T = TypeVar("T")
MOST_RECENT = 10_000


class OutcomeTracker:
    """Used by the publisher's thread alone."""

    def __init__(self, on_outcome: Callable[[Outcome], None], on_queued: Callable[[str], None]) -> None:
        self._on_outcome = on_outcome
        self._on_queued = on_queued
        self._recent: OrderedDict[str, Outcome] = OrderedDict()
        self._asked: dict[str, list[Future[Outcome]]] = {}

    def ask(self, event_id: str, answer: Future[Outcome], *, waits: bool) -> None:
        """Have ``answer`` done when the event ends; now if it has, or is unknown."""
        if event_id in self._recent and not waits:
            done(answer, self._recent[event_id])
        elif waits:
            self._asked.setdefault(event_id, []).append(answer)
        else:
            fail(answer, EventUnknown(f"no event {event_id!r} waits, and none has ended lately"))

    def ended(self, outcome: Outcome) -> None:
        """An event that waited has ended."""
        self._recent[outcome.event_id] = outcome
        self._recent.move_to_end(outcome.event_id)
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        for answer in self._asked.pop(outcome.event_id, ()):
            done(answer, outcome)
        self.tell(outcome)

    def lost(self, event_id: str, error: Exception) -> None:
        """An event that somebody may have asked for was not kept."""
        for answer in self._asked.pop(event_id, ()):
            fail(answer, error)

    def tell(self, outcome: Outcome) -> None:
        """Only the callback."""
        _call(self._on_outcome, outcome)

    def queued(self, event_id: str) -> None:
        """The gateway has an event on its disk."""
        _call(self._on_queued, event_id)

    def close(self) -> None:
        """Nobody will know any more."""
        for answers in self._asked.values():
            for answer in answers:
                fail(answer, PublisherClosed("the publisher is closed"))
        self._asked.clear()


def _call(callback: Callable[[T], None], told: T) -> None:
    try:
        callback(told)
    except Exception:
        log.exception("a callback has failed")


def done(future: Future[Any], result: Any) -> None:
    """Set a result, unless nobody waits for it any more."""
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def fail(future: Future[Any], error: Exception) -> None:
    """Set an error, unless nobody waits for it any more."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
