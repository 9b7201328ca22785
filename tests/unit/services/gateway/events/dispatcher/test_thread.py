"""One cycle of the dispatcher's thread: its calls, and what it reads of a flood; with sockets that do nothing else."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.clock import ManualClock, SystemClock
from dexorder_common.messaging.frames import topic
from dexorder_common.model.user_events import Channel, Priority, Status
from dexorder_common.storage import durable_sqlite
from dexorder_gateway.events.dispatcher.cycle import (
    BATCH_MESSAGES,
    FLOOD_BATCH,
    MAX_CALLS_NS,
    MAX_MESSAGES,
    DispatcherCycle,
)
from dexorder_gateway.events.dispatcher.receiver import NO_SPACE
from dexorder_gateway.events.dispatcher.thread import DispatcherThread
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit
from dexorder_gateway.events.ingress.containers import LOCAL, Container
from dexorder_gateway.events.model import Ack
from tests.fakes.events.contacts import contacts_with
from tests.unit.services.gateway.events.dispatcher.stage import SECOND, Stage
from tests.unit.services.gateway.events.samples import body

MAX_CALLS_S = MAX_CALLS_NS / 1e9


class Idle:
    """Processor and sockets at once: it counts transactions; no message arrives and nothing is due."""

    def __init__(self) -> None:
        self.transactions = 0

    def wait(self, *_: object, **__: object) -> tuple[bool, bool]:
        return False, False

    def commit(self, *_: object) -> AfterCommit:
        self.transactions += 1
        return AfterCommit()

    def next_due_ns(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Flooded(Idle):
    """Sockets on which one container's NORMAL events never end."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.on_read: Callable[[], object] = lambda: None
        self.acks: Counter[str] = Counter()

    def wait(self, *_: object, **__: object) -> tuple[bool, bool]:
        return True, False

    def events(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        for _ in range(limit):
            self.read += 1
            self.on_read()
            yield LOCAL, body(f"n{self.read}"), b"flooder"

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        self.acks.update(ack.error or ack.status.name for _, ack in acks)


def test_a_flood_is_read_at_full_speed_and_refused_by_the_time_of_its_arrival(tmp_path: Path) -> None:
    """Read slowly, it would arrive slowly, and be accepted."""
    stage, sockets = Stage(tmp_path / "e.db", soft_events_per_second=50, hard_events_per_second=100), Flooded()
    cycle = DispatcherCycle(stage.processor, sockets, stage.clock, lambda effects: None)
    for _ in range(10):
        cycle.run(0)
        stage.clock.advance(SECOND // 10)
    assert sockets.read >= 10 * MAX_MESSAGES
    refused = sockets.acks["quota exceeded"]
    assert sockets.acks == {"QUEUED": 190, "quota exceeded": refused}, "a burst of one second, and 90 for 0.9 s"
    assert refused >= 10 * MAX_MESSAGES - 190
    assert stage.rows() == 190
    stage.outbox.close()


@pytest.mark.parametrize(("quota", "least", "most"), [(1e9, 200, 200 + BATCH_MESSAGES), (100, 90, 100 + FLOOD_BATCH)])
def test_a_cycle_that_refuses_a_flood_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: float, least: int, most: int
) -> None:
    """Reading takes 0.1 ms an event."""
    monkeypatch.setattr("dexorder_gateway.events.dispatcher.cycle.MAX_AHEAD", 0)
    stage, sockets = Stage(tmp_path / "e.db", soft_events_per_second=quota, hard_events_per_second=quota), Flooded()
    sockets.on_read = lambda: stage.clock.advance(SECOND // 10_000)
    cycle = DispatcherCycle(stage.processor, sockets, stage.clock, lambda effects: None)
    cycle.run(0)
    before = sockets.read
    cycle.run(0)
    assert least <= sockets.read - before < most
    stage.outbox.close()


class Beside(Flooded):
    """The flood, of which each event takes 0.1 ms, and among it events of another connection, by their place."""

    def __init__(self, clock: ManualClock, honest: Sequence[int] = ()) -> None:
        super().__init__()
        self.honest = honest
        self.told: list[bytes] = []
        self.on_read = lambda: clock.advance(SECOND // 10_000)

    def events(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        for each in super().events(limit):
            is_honest = self.read in self.honest
            yield (LOCAL, body(f"h{self.read}", priority=Priority.CRITICAL), b"honest") if is_honest else each

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        self.told += [routing_id for routing_id, _ in acks]


def beside_a_flood(path: Path, before: int) -> tuple[Stage, Beside, DispatcherCycle]:
    """Return a cycle that has refused much of a flood already."""
    stage = Stage(path, soft_events_per_second=100, hard_events_per_second=100)
    sockets = Beside(stage.clock)
    cycle = DispatcherCycle(stage.processor, sockets, stage.clock, lambda effects: None)
    while sockets.read < before:
        cycle.run(0)
    assert stage.processor.receiver.floods
    return stage, sockets, cycle


@pytest.mark.parametrize("after", [1, 16, 17, 50, 90])
def test_an_event_beside_a_flood_is_committed_when_it_is_read_and_its_ack_is_sent_first(
    tmp_path: Path, after: int
) -> None:
    stage, sockets, cycle = beside_a_flood(tmp_path / "e.db", 1_000)
    sockets.honest = [sockets.read + after]
    sockets.told.clear()
    cycle.run(0)
    assert sockets.read < sockets.honest[0] + FLOOD_BATCH
    assert sockets.told[0] == b"honest" and set(sockets.told[1:]) == {b"flooder"}
    stage.outbox.close()


def test_a_flood_alone_is_committed_seldom_and_a_call_ends_its_wait(tmp_path: Path) -> None:
    stage, sockets, cycle = beside_a_flood(tmp_path / "e.db", 1_000)
    written: list[int] = []
    write = stage.outbox.write
    stage.outbox.write = lambda *given: written.append(sockets.read) or write(*given)  # type: ignore[func-returns-value,method-assign]
    first = sockets.read
    while sockets.read < first + 1_000:  # a tenth of a second, in which the quota takes ten
        cycle.run(0)
    assert 2 <= len(written) <= 12
    called: list[int] = []
    sockets.on_read = lambda: cycle.call(lambda _: called.append(sockets.read)) if not called else None
    first = sockets.read
    cycle.run(0)
    assert sockets.read < first + 2 * FLOOD_BATCH
    cycle.run(0)
    assert called
    stage.outbox.close()


class Told(Idle):
    """Sockets on which one CRITICAL event arrives; counts what leaves."""

    has_unsent = False

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def wait(self, *_: object, **__: object) -> tuple[bool, bool]:
        return True, False

    def events(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        yield from () if self.sent else [(LOCAL, body("c", priority=Priority.CRITICAL), b"container")]

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        self.sent += [ack.status for _, ack in acks]


def test_acks_events_of_sessions_and_provider_calls_leave_after_their_write(tmp_path: Path) -> None:
    stage, sockets, handed = Stage(tmp_path / "e.db"), Told(), list[AfterCommit]()
    before: list[int] = []
    stage.work(
        lambda processor: processor.session_opened("alice"),
        lambda processor: processor.set_contacts("alice", contacts_with(telegram_chat_id="100")),
    )
    write = stage.outbox.write

    def noted(*given: Any) -> None:
        before.append(len(sockets.sent) + len(handed))
        write(*given)
        before.append(len(sockets.sent) + len(handed))

    stage.outbox.write = noted  # type: ignore[assignment,method-assign]
    cycle = DispatcherCycle(stage.processor, sockets, stage.clock, handed.append)
    cycle.run(0)
    assert (before, sockets.sent, len(handed[0].session_events)) == ([0, 0], [Status.QUEUED], 1)
    del before[:], sockets.sent[:], handed[:]
    stage.clock.advance(60 * SECOND)  # the session acks nothing, so the next channel is tried
    sockets.sent.append(None)
    cycle.run(0)
    assert before == [1, 1] and [each.channel for each in handed[0].sends] == [Channel.TELEGRAM]
    stage.outbox.close()


class FullDisk(Idle):
    """Sockets that have two events, of which the disk takes none until all others have come in as well."""

    def __init__(self, before: Sequence[bytes], meanwhile: Sequence[bytes], published: Sequence[bytes]) -> None:
        super().__init__()
        self._router, self._sub = [list(before), list(meanwhile)], list(published)
        self.acks: list[tuple[str, Status, str]] = []
        self.has_unsent = False

    @property
    def is_full(self) -> bool:
        return bool(self._router or self._sub)

    def wait(self, *_: object, **wanted: Any) -> tuple[bool, bool]:
        return wanted["router"] and bool(self._router), wanted["sub"] and len(self._router) == 0

    def events(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        for each in self._router.pop(0) if self._router else ():
            yield LOCAL, each, b"container"

    def published(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        taken, self._sub = self._sub, []
        for each in taken:
            yield LOCAL, topic("alice"), each

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        self.acks += [(ack.event_id, ack.status, ack.error) for _, ack in acks]


def test_on_a_full_disk_sessions_get_events_and_new_normal_ones_are_refused_and_critical_ones_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_sqlite, "SPACE_SECONDS", 0.01)
    normal, informational, critical = Priority.NORMAL, Priority.INFORMATIONAL, Priority.CRITICAL
    first = [body("old", priority=normal), body("c1", priority=critical)]
    more = [
        body("n", priority=normal),
        body("c2", priority=critical),
        body("old", priority=normal),
        body("i", priority=informational),
    ]
    stage, handed = Stage(tmp_path / "e.db"), list[AfterCommit]()
    sockets = FullDisk(first, more, [body("f", priority=informational), body("c3", priority=critical)])
    write = stage.outbox.write

    def full(*given: Any) -> None:
        if sockets.is_full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        write(*given)

    cycle = DispatcherCycle(stage.processor, sockets, stage.clock, handed.append)
    stage.work(lambda processor: processor.session_opened("alice"))
    monkeypatch.setattr(stage.outbox, "write", full)
    cycle.run(0)
    assert sockets.acks[:2] == [("n", Status.ERROR, NO_SPACE), ("i", Status.DELIVERED, "")]
    assert {each[:2] for each in sockets.acks[2:]} == {("old", Status.QUEUED), ("c1", Status.QUEUED)}
    assert len(handed[0].transient) == 1 and len(handed[1].transient) == 1, "before the disk had space"
    del sockets.acks[:]
    cycle.run(0)
    assert sorted(each[:2] for each in sockets.acks) == [("c2", Status.QUEUED), ("old", Status.QUEUED)]
    assert stage.rows() == 4, "the one of the fast path, too"
    stage.outbox.close()


def slow(seconds: float, done: list[int], number: int) -> Callable[[TransactionProcessor], None]:
    def call(processor: TransactionProcessor) -> None:
        time.sleep(seconds)
        done.append(number)

    return call


def cycle_of(idle: Idle) -> DispatcherCycle:
    return DispatcherCycle(idle, idle, SystemClock(), lambda effects: None)  # type: ignore[arg-type]


def test_many_calls_are_made_in_order_and_in_several_transactions() -> None:
    """Otherwise containers would wait for an ack until all calls are made."""
    idle, done, before = Idle(), list[int](), set[int]()
    cycle, over = cycle_of(idle), threading.Event()
    thread = DispatcherThread(cycle, lambda failure: None)
    for number in range(20):
        cycle.call(slow(MAX_CALLS_S / 2, done, number))
        cycle.call(lambda processor: before.add(idle.transactions))  # those that follow the calls are not counted
    cycle.call(lambda processor: over.set())
    thread.start()
    assert over.wait(20)
    assert (done, len(before) >= 9) == (list(range(20)), True)
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
