"""Calls that one cycle of the dispatcher's thread makes, with a processor and sockets that do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from dexorder_common.clock import SystemClock
from dexorder_gateway.events.dispatcher.cycle import MAX_CALLS_NS, DispatcherCycle
from dexorder_gateway.events.dispatcher.thread import DispatcherThread
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit

MAX_CALLS_S = MAX_CALLS_NS / 1e9


class Idle:
    """Processor and sockets at once: it counts transactions; no message arrives and nothing is due."""

    def __init__(self) -> None:
        self.transactions = 0

    def wait(self, *_: object, **__: object) -> tuple[bool, bool]:
        return False, False

    def commit(self, meanwhile: object = None) -> AfterCommit:
        self.transactions += 1
        return AfterCommit()

    def next_due_ns(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def slow(seconds: float, done: list[int], number: int) -> Callable[[TransactionProcessor], None]:
    def call(processor: TransactionProcessor) -> None:
        time.sleep(seconds)
        done.append(number)

    return call


def cycle_of(idle: Idle) -> DispatcherCycle:
    return DispatcherCycle(idle, idle, SystemClock(), lambda effects: None)  # type: ignore[arg-type]


def test_many_calls_are_made_in_order_and_in_several_transactions() -> None:
    """Otherwise containers would wait for an ack until all calls are made."""
    idle, done = Idle(), list[int]()
    cycle, over = cycle_of(idle), threading.Event()
    thread = DispatcherThread(cycle, lambda failure: None)
    for number in range(20):
        cycle.call(slow(MAX_CALLS_S / 2, done, number))
    cycle.call(lambda processor: over.set())
    thread.start()
    assert over.wait(20)
    assert (done, idle.transactions >= 9) == (list(range(20)), True)
    thread.stop()
    thread.join()


def test_calls_made_before_the_end_are_in_the_last_transaction() -> None:
    idle, done = Idle(), list[int]()
    cycle = cycle_of(idle)
    thread = DispatcherThread(cycle, lambda failure: None)
    for number in range(10):
        cycle.call(slow(MAX_CALLS_S, done, number))
    thread.stop()
    thread.start()
    thread.join()
    assert (done, idle.transactions) == (list(range(10)), 1)
