"""What the parts promise to have on disk, written for ever: ``python -m tests.rig.durable_writers PART FOLDER``.

Each number is printed when its writer says that it is on disk; `read` returns those that a folder has.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

from dexorder.events.outbox import open_outbox
from dexorder_gateway.events.delivery.changes import DeliveryChanges
from dexorder_gateway.events.model import NO_CONTACTS
from dexorder_gateway.events.store.outbox import open_outbox as open_events
from dexorder_relay.store.database import open_store
from dexorder_spark.cep.files import FolderFiles
from dexorder_spark.cep.journal import Journal, JournalBatch, Snapshot

BATCHES = 20
"""Batches of the triggers' journal between two snapshots."""


def _insert(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (f"test-{number}", number))


async def relay(folder: Path) -> AsyncIterator[int]:
    async with open_store(folder / "relay.db") as store:
        for number in count():
            await store.write(_insert, number)
            yield number


def gateway(folder: Path) -> Iterator[int]:
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


PARTS: dict[str, Callable[[Path], Iterator[int] | AsyncIterator[int]]] = {
    each.__name__: each for each in (relay, gateway, publisher, triggers)
}


async def read(part: str, folder: Path) -> int:
    """Return how many numbers the folder has, counted from 0 without a hole."""
    if part == "triggers":
        found = Journal(FolderFiles(folder)).read()
        return found[0].number + len(found[1]) if found else 0
    if part == "relay":
        async with open_store(folder / "relay.db") as store:
            sql = "SELECT value FROM meta WHERE name LIKE 'test-%'"
            numbers = {row[0] for row in await store.read(lambda db: db.execute(sql).fetchall())}
    elif part == "gateway":
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
