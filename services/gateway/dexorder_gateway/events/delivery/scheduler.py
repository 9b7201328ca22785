"""Work that is due, done in portions, because containers wait for their acks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from dexorder_gateway.events.delivery.decision import Decision
from dexorder_gateway.events.delivery.pending_events import PendingEvent
from dexorder_gateway.events.delivery.provider_limits import Provider
from dexorder_gateway.events.delivery.timers import Timers

T = TypeVar("T")


def if_pending(action: Callable[[PendingEvent, Decision], None]) -> Callable[[PendingEvent, Decision], None]:
    """Return the action, skipped for events that are final by then."""
    return lambda pending, decision: None if pending.done else action(pending, decision)


@dataclass(slots=True)
class _Work:
    now_ns: int
    things: deque[Any]
    action: Callable[[Any, Decision], None]

    def continue_in(self, decision: Decision) -> None:
        """Continue at the time at which the work started: events sent together are due together later."""
        decision.now_ns = self.now_ns
        while self.things and decision.left > 0:
            decision.left -= 1
            self.action(self.things.popleft(), decision)


class Scheduler:
    """Unfinished work, and timers of events and providers."""

    def __init__(self, timers: Timers[PendingEvent | Provider[PendingEvent]]) -> None:
        self._timers = timers
        self._begun: deque[_Work] = deque()
        self._together: tuple[int, int] | None = None

    @property
    def unfinished(self) -> bool:
        """Return whether work that belongs together is only partly done; `run` continues it."""
        return bool(self._begun) or self._together is not None

    def next_ns(self) -> int | None:
        """Return when the next work is due; None for never."""
        return self._begun[0].now_ns if self._begun else self._timers.next_ns()

    def each(self, things: Iterable[T], action: Callable[[T, Decision], None], decision: Decision) -> None:
        """Do something with each thing: now with as many as the decision may move, with the others in `run`."""
        work = _Work(decision.now_ns, deque(things), action)  # a copy: the actions may change the iterable
        work.continue_in(decision)
        if work.things:
            self._begun.append(work)

    def run(self, decision: Decision, wake: Callable[[PendingEvent | Provider[PendingEvent], Decision], None]) -> None:
        """Do a portion of the work that is due at the decision's time, unfinished work first."""
        now_ns = decision.now_ns
        while self._begun and decision.left > 0:
            self._begun[0].continue_in(decision)
            if not self._begun[0].things:
                self._begun.popleft()
        while decision.left > 0 and (thing := self._next(decision, now_ns)) is not None:
            wake(thing, decision)
            decision.left -= 1
        decision.now_ns = now_ns
        if self._together and self._timers.next_ns() != self._together[0]:
            self._together = None

    def _next(self, decision: Decision, now_ns: int) -> PendingEvent | Provider[PendingEvent] | None:
        """Pop a timer. All that is due at the same time gets the time at which the first of it was handled."""
        at_ns = self._timers.next_ns()
        if self._together is None or at_ns != self._together[0]:
            self._together = None if at_ns is None or at_ns > now_ns else (at_ns, now_ns)
        if self._together:
            decision.now_ns = self._together[1]
        return self._timers.pop(now_ns)
