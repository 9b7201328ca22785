"""What the parts promise to have on disk, written for ever: ``python -m tests.rig.durable_writers PART FOLDER``.

Each number is printed when its writer says that it is on disk; `read` returns those that a folder has.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from dexorder.events.outbox import open_outbox
from dexorder_common.clock import SystemClock
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.user_events import Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import DeliveryChanges
from dexorder_gateway.events.dispatcher.cycle import DispatcherCycle
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.start import processor_of
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.ingress.containers import LOCAL, Container
from dexorder_gateway.events.model import NO_CONTACTS, Ack, Event, EventMessage
from dexorder_gateway.events.store.event_log import EventLog, EventQuery
from dexorder_gateway.events.store.outbox import open_outbox as open_events
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from dexorder_relay.store.database import open_store
from dexorder_spark.cep.files import FolderFiles
from dexorder_spark.cep.journal import Journal, JournalBatch, Snapshot
from tests.rig.durable_warehouse import minutes_of, warehouse

BATCHES = 20
"""Batches of the triggers' journal between two snapshots."""


def _insert(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (f"test-{number}", number))


async def relay(folder: Path) -> AsyncIterator[int]:
    async with open_store(folder / "relay.db") as store:
        for number in count():
            await store.write(_insert, number)
            yield number


class OneByOne:
    """Sockets of the gateway's cycle: one event at a time; ``acks`` has what a container got since the last look."""

    def __init__(self) -> None:
        self.next: bytes | None = None
        self.acks: list[Ack] = []
        self.has_unsent = False

    def wait(self, timeout_ms: int, *, router: bool, sub: bool) -> tuple[bool, bool]:
        return self.next is not None, False

    def events(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        event, self.next = self.next, None
        if event is not None:
            yield LOCAL, event, b"container"

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        self.acks += [ack for _, ack in acks]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def unused(event: Event) -> EventMessage:
    raise AssertionError(f"{event} has no channel but sessions")


def gateway(folder: Path) -> Iterator[int]:
    """Accept CRITICAL events and take their session's acks: 2k is the QUEUED of event k, 2k + 1 its DELIVERED."""
    outbox, sockets, clock = open_events(folder / "events.db"), OneByOne(), SystemClock()
    metrics = DispatcherMetrics(CollectorRegistry())
    processor = processor_of(outbox, EventsSettings(), metrics, clock, render=unused)
    cycle = DispatcherCycle(processor, sockets, clock, lambda effects: None)

    def receive(processor: TransactionProcessor) -> None:
        processor.acked("alice", processor.epoch, processor.resume("alice", None)[0], seen=True)

    for number in count():
        delivery = pb.DeliverySpec(priority=pb.CRITICAL)
        sockets.next = pb.UserEvent(user_id="alice", event_id=str(number), delivery=delivery).SerializeToString()
        for place, status in ((2 * number, Status.QUEUED), (2 * number + 1, Status.DELIVERED)):
            if status is Status.DELIVERED:
                cycle.call(receive)
            cycle.run(0)
            assert [(ack.event_id, ack.status) for ack in sockets.acks] == [(str(number), status)]
            sockets.acks.clear()
            yield place


def contacts(folder: Path) -> Iterator[int]:
    outbox = open_events(folder / "events.db")
    for number in count():
        outbox.write(DeliveryChanges(), {str(number): NO_CONTACTS}, meanwhile=lambda done: None)
        yield number


def publisher(folder: Path) -> Iterator[int]:
    outbox = open_outbox(folder / "outbox.db")
    for number in count():
        outbox.write([(str(number), b"event")], [])
        yield number


def triggers(folder: Path) -> Iterator[int]:
    journal = Journal(FolderFiles(folder))
    for number in count():
        if number % BATCHES == 0:
            journal.snapshot(Snapshot(number, None, {}))
        journal.append(JournalBatch(number + 1, None, {}))
        yield number


def catalog(folder: Path) -> Iterator[int]:
    lake = CatalogSettings.local(folder).load()
    for number in count():
        lake.create_namespace(f"n{number}")
        yield number


PARTS: dict[str, Callable[[Path], Iterator[int] | AsyncIterator[int]]] = {
    each.__name__: each for each in (relay, gateway, contacts, publisher, triggers, catalog, warehouse)
}


async def read(part: str, folder: Path) -> int:
    """Return how many numbers the folder has, counted from 0 without a hole."""
    if part == "triggers":
        found = Journal(FolderFiles(folder)).read()
        return found[0].number + len(found[1]) if found else 0
    if part == "catalog":
        return len(CatalogSettings.local(folder).load().list_namespaces())
    if part == "relay":
        async with open_store(folder / "relay.db") as store:
            sql = "SELECT value FROM meta WHERE name LIKE 'test-%'"
            numbers = {row[0] for row in await store.read(lambda db: db.execute(sql).fetchall())}
    elif part == "gateway":
        events = open_events(folder / "events.db")
        events.close()
        records = EventLog(folder / "events.db").page(EventQuery(size=10**6)).records
        numbers = {2 * int(each.key.event_id) for each in records}
        numbers |= {2 * int(each.key.event_id) + 1 for each in records if each.status is Status.DELIVERED}
    elif part == "warehouse":
        numbers = minutes_of(folder)
    elif part == "contacts":
        events = open_events(folder / "events.db")
        numbers = set(map(int, events.contacts()))
        events.close()
    else:
        outbox = open_outbox(folder / "outbox.db")
        numbers = set(map(int, outbox.events()))
        outbox.close()
    assert numbers == set(range(len(numbers)))
    return len(numbers)


async def main(part: str, folder: Path) -> None:
    written = PARTS[part](folder)
    if isinstance(written, AsyncIterator):
        async for number in written:
            print(number, flush=True)
    else:
        for number in written:
            print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
