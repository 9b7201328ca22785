"""What is to be done by now, some of it at a time, as whoever sends an event meanwhile waits for that. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from services.gateway.events.delivery.decision import Decision
from services.gateway.events.delivery.pending_events import PendingEvent
from services.gateway.events.delivery.provider_limits import Provider
from services.gateway.events.delivery.timers import Timers

T = TypeVar("T")


def if_live(do: Callable[[PendingEvent, Decision], None]) -> Callable[[PendingEvent, Decision], None]:
    """Only with events that are not final by then."""
    return lambda pending, decision: None if pending.done else do(pending, decision)


@dataclass(slots=True)
class _Work:
    now_ns: int
    things: deque[Any]
    do: Callable[[Any, Decision], None]

    def go_on(self, decision: Decision) -> None:
        """As of the moment in which it began: what goes out together comes back together."""
        decision.now_ns = self.now_ns
        while self.things and decision.left > 0:
            decision.left -= 1
            self.do(self.things.popleft(), decision)


class Scheduler:
    """Work that was begun, and things that have their time."""

    def __init__(self, timers: Timers[PendingEvent | Provider[PendingEvent]]) -> None:
        self._timers = timers
        self._begun: deque[_Work] = deque()
        self._together: tuple[int, int] | None = None

    @property
    def unfinished(self) -> bool:
        """Whether it is amid things that belong together: `run` goes on with them."""
        return bool(self._begun) or self._together is not None

    def next_ns(self) -> int | None:
        """When there is something to do; None for never."""
        return self._begun[0].now_ns if self._begun else self._timers.next_ns()

    def each(self, things: Iterable[T], do: Callable[[T, Decision], None], decision: Decision) -> None:
        """Do it with each of them: now with as many as the step has left, with the others in `run`, changed or not."""
        work = _Work(decision.now_ns, deque(things), do)
        work.go_on(decision)
        if work.things:
            self._begun.append(work)

    def run(self, decision: Decision, wake: Callable[[PendingEvent | Provider[PendingEvent], Decision], None]) -> None:
        """Do some of what is to be done by the step's time, what was begun first.

        Args:
            wake: What to do with a thing whose time has come.
        """
        now_ns = decision.now_ns
        while self._begun and decision.left > 0:
            self._begun[0].go_on(decision)
            if not self._begun[0].things:
                self._begun.popleft()
        while decision.left > 0 and (thing := self._next(decision, now_ns)) is not None:
            wake(thing, decision)
            decision.left -= 1
        decision.now_ns = now_ns
        if self._together and self._timers.next_ns() != self._together[0]:
            self._together = None

    def _next(self, decision: Decision, now_ns: int) -> PendingEvent | Provider[PendingEvent] | None:
        """All that is due at the same time shares the moment in which the first of it was done."""
        at_ns = self._timers.next_ns()
        if self._together is None or at_ns != self._together[0]:
            self._together = None if at_ns is None or at_ns > now_ns else (at_ns, now_ns)
        if self._together:
            decision.now_ns = self._together[1]
        return self._timers.pop(now_ns)
