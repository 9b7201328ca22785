"""What one turn of the dispatcher's thread takes in, with a desk and ports that do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from services.common.clock import ManualClock
from services.gateway.events.dispatcher.thread import LONGEST_ASKED_S, DispatcherThread
from services.gateway.events.dispatcher.transaction import TransactionProcessor
from services.gateway.events.dispatcher.unit_of_work import AfterCommit


class Idle:
    """A desk and ports at once: they count turns, and nothing ever comes or is due."""

    def __init__(self) -> None:
        self.turns = 0

    def wait(self, *_: object, **__: object) -> tuple[bool, bool]:
        return False, False

    def close(self, meanwhile: object = None) -> AfterCommit:
        self.turns += 1
        return AfterCommit()

    def next_due_ns(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def slow(seconds: float, done: list[int], number: int) -> Callable[[TransactionProcessor], None]:
    def ask(processor: TransactionProcessor) -> None:
        time.sleep(seconds)
        done.append(number)

    return ask


def thread_of(idle: Idle) -> DispatcherThread:
    return DispatcherThread(idle, idle, ManualClock(), lambda after_commit: None, lambda failure: None)  # type: ignore[arg-type]


def test_much_that_is_asked_together_is_done_in_order_and_in_many_turns() -> None:
    """Or containers would wait for an answer until all of it is done."""
    idle, done = Idle(), list[int]()
    thread, over = thread_of(idle), threading.Event()
    for number in range(20):
        thread.ask(slow(LONGEST_ASKED_S / 2, done, number))
    thread.ask(lambda processor: over.set())
    thread.start()
    assert over.wait(20)
    assert (done, idle.turns >= 9) == (list(range(20)), True)
    thread.stop()
    thread.join()


def test_all_that_was_asked_before_the_end_is_done() -> None:
    idle, done = Idle(), list[int]()
    thread = thread_of(idle)
    for number in range(10):
        thread.ask(slow(LONGEST_ASKED_S, done, number))
    thread.stop()
    thread.start()
    thread.join()
    assert (done, idle.turns) == (list(range(10)), 1)
