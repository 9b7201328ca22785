"""Writer of an SQLite database: one thread, which commits the batches that wait together.

WAL with ``synchronous=FULL``: a commit is an fsync, so batches that arrive during one share the next (group commit).
Batches are applied in the order in which they were given. Reads use the same thread and see all earlier batches.
A write to a full disk is repeated until it succeeds: ``full`` is set, and later batches wait. Any other failed write
leaves memory ahead of the disk, so it is fatal: ``failed`` is set and no later batch is written.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.streams import retrieved
from dexorder_common.storage.durable_sqlite import DiskSpace
from dexorder_common.storage.state_checks import Generation

OnCommit = Callable[[int, float], None]
Batch = Callable[[sqlite3.Connection], Any]
MAX_GROUP_SIZE = 256
FULL_SECONDS = 1.0
"""Time for which a call waits while the disk is full; it may need no space, or there may be some again."""


@dataclass(frozen=True)
class Work:
    """A batch that waits, and the future of its result."""

    run: Batch
    done: asyncio.Future[Any]
    writes: bool


class Writer(Protocol):
    """Runs batches in the order in which they were given.

    Attributes:
        connection: Used only by the writer after the first batch.
        failed: Fails with the first write that fails for another reason than space; no later batch is written.
        full: Set while the disk is full; ``space`` is the opposite.
        timeouts: Of calls that may wait; each expires ``FULL_SECONDS`` after the disk was found full.
    """

    connection: sqlite3.Connection
    failed: asyncio.Future[None]
    full: asyncio.Event
    space: asyncio.Event
    timeouts: set[asyncio.Timeout]

    def give(self, run: Batch, *, writes: bool = True) -> asyncio.Future[Any]:
        """Run a batch; its result is on disk when the future is done."""

    async def close(self) -> None:
        """Run the remaining batches, then close the connection."""


class GivenBatches:
    """The part of a writer in the event loop: futures of batches, and the handling of failures."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.full, self.space = asyncio.Event(), asyncio.Event()
        self.space.set()
        self.timeouts: set[asyncio.Timeout] = set()
        self.is_closed = False

    def add(self, run: Batch, put: Callable[[Work], None], *, writes: bool) -> asyncio.Future[Any]:
        """Pass a batch to ``put``, and return its future; it fails at once after a failure or ``close``."""
        done = self._loop.create_future()
        done.add_done_callback(retrieved)
        if self.failed.done() or self.is_closed:
            done.set_exception(Unavailable("the relay's store is closed"))
        else:
            put(Work(run, done, writes))
        return done

    def fill(self, is_full: bool) -> None:
        """Note whether the disk is full."""
        (self.full if is_full else self.space).set()
        (self.space if is_full else self.full).clear()
        for timeout in [each for each in self.timeouts if not each.expired()]:  # an expired one can't be changed
            timeout.reschedule(self._loop.time() + FULL_SECONDS if is_full else None)

    def resolve(self, group: Sequence[Work], results: Sequence[Any]) -> None:
        """Set the results of batches that are on disk."""
        for work, result in zip(group, results, strict=True):
            if not work.done.done():
                work.done.set_result(result)

    def fail(self, error: Exception, group: Sequence[Work]) -> None:
        """Fail a group that is not written, and with it every later batch."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.add_done_callback(retrieved)
        for work in group:
            if not work.done.done():
                work.done.set_exception(Unavailable("the relay's store can't be written"))


def run_group(connection: sqlite3.Connection, group: Sequence[Work], last: Batch | None = None) -> list[Any]:
    """Run batches in one transaction, and return their results; an error rolls all of them back.

    Args:
        last: One more batch of the transaction.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        results = [run(connection) for run in (*(work.run for work in group), *([last] if last else []))]
        connection.execute("COMMIT")
    except Exception:
        connection.rollback()
        raise
    return results


def generation_of(connection: sqlite3.Connection) -> int:
    """Return the number of commits of a file."""
    return int(connection.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()[0])


def _count_commit(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")
    return generation_of(connection)


class WriterThread:
    """The writer of a file."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_commit: OnCommit | None = None,
        generation: Generation | None = None,
    ) -> None:
        """Start the thread, which keeps the number of each commit outside of the file as well."""
        self._generation = generation
        self._batches = GivenBatches()
        self.failed, self.full, self.space = self._batches.failed, self._batches.full, self._batches.space
        self.timeouts = self._batches.timeouts
        self._space = DiskSpace(lambda is_full: self._call_loop(self._batches.fill, is_full))
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.connection = connection
        self._broken: Exception | None = None
        self._on_commit = on_commit
        self._thread = threading.Thread(target=self._write, name="relay-store", daemon=True)
        self._thread.start()

    def give(self, run: Batch, *, writes: bool = True) -> asyncio.Future[Any]:
        """Run a batch in the thread."""
        return self._batches.add(run, self._queue.put, writes=writes)

    async def close(self) -> None:
        """Run the remaining batches, then close the connection."""
        if not self._batches.is_closed:
            self._batches.is_closed = True
            self._space.give_up()
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _write(self) -> None:
        closing = False
        while not closing:
            group = [self._queue.get()]
            while len(group) < MAX_GROUP_SIZE:
                try:
                    group.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            closing = None in group
            self._run([work for work in group if work is not None])
        self.connection.close()
        if self._generation is not None:
            self._generation.close()

    def _run(self, group: list[Work]) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            start = time.perf_counter()
            writes = sum(work.writes for work in group)
            last = _count_commit if writes else None
            results = self._space.write(lambda: run_group(self.connection, group, last))
            if writes and self._generation is not None:
                self._generation.note(results[-1])
            del results[len(group) :]
            if self._on_commit and writes:
                self._on_commit(writes, time.perf_counter() - start)
        except Exception as error:  # after any error memory is ahead of the disk
            self._broken = error
            self._call_loop(self._batches.fail, error, group)
        else:
            self._call_loop(self._batches.resolve, group, results)

    def _call_loop(self, callback: Callable[..., None], *values: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)
