"""The file of a relay's store, in memory, which outlives its processes: what was not synced at a kill is lost.

Batches reach the file when a sync of drawn length is over, in the order in which they were given, by the product's own
transaction. A kill during the sync loses the group; a kill right behind it leaves a group of which nobody was told. As
in the product, a group waits while the disk has no space, and any other failed write ends the process.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from dexorder_common.storage.durable_sqlite import SPACE_SECONDS, open_durable
from dexorder_relay.store.database import Store
from dexorder_relay.store.schema import STEPS
from dexorder_relay.store.writer import MAX_GROUP_SIZE, Batch, GivenBatches, Work, run_group
from tests.simulation.loop import Process

Moment = Callable[[Process, str], Awaitable[None]]
"""Passed at a point at which a kill matters; does not return if there is one."""


@cache
def _empty_file() -> bytes:
    connection = open_durable(Path(":memory:"), STEPS, newer="")
    return connection.serialize()


async def _pass(process: Process, what: str) -> None:
    """Do nothing at a point at which a kill would matter."""


class Disk:
    """The file of one store, through all lives of its process.

    Attributes:
        sync_seconds: Shortest and longest time of a sync.
        is_full: There is no space for a write.
        is_broken: Every write fails.
        backup: An older copy of the file.
    """

    def __init__(self, random: Random, moment: Moment = _pass) -> None:
        self.sync_seconds = (0.001, 0.03)
        self.is_full = self.is_broken = False
        self.backup: bytes | None = None
        self.moment = moment
        self.random = random
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(_empty_file())

    def copy(self) -> None:
        """Keep a backup of what is on the disk now."""
        self.backup = self.connection.serialize()

    def restore(self) -> None:
        """Replace the file by its backup; no process uses it meanwhile."""
        assert self.backup is not None
        # another connection: statements that this one keeps prepared would crash with another file
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(self.backup)

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a query over what is durable."""
        return self.connection.execute(sql, values).fetchall()

    def store(self, process: Process, now_ns: int) -> Store:
        """Open the file for a new life of the process."""
        return Store(Path("relay.db"), None, now_ns, open_writer=lambda *_: Writer(self, process))


class Writer:
    """`dexorder_relay.store.writer.Writer` of one life of a process."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.connection = disk.connection
        self._disk = disk
        self._process = process
        self._batches = GivenBatches()
        self.timeouts = self._batches.timeouts
        self.failed, self.full, self.space = self._batches.failed, self._batches.full, self._batches.space
        self._waiting: list[Work] = []
        self._syncing: asyncio.Task[None] | None = None

    def give(self, run: Batch, *, writes: bool = True) -> asyncio.Future[Any]:
        """Run a batch with the next sync; reads alone need none."""
        return self._batches.add(run, self._put, writes=writes)

    async def close(self) -> None:
        """Write what was given."""
        self._batches.is_closed = True
        if self._syncing is not None:
            await self._syncing

    def _put(self, work: Work) -> None:
        self._waiting.append(work)
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # what the same step of the caller gives shares the sync
            group, self._waiting = self._waiting[:MAX_GROUP_SIZE], self._waiting[MAX_GROUP_SIZE:]
            is_write = any(work.writes for work in group)
            if is_write:
                await asyncio.sleep(self._disk.random.uniform(*self._disk.sync_seconds))
                await self._disk.moment(self._process, "before a write is on disk")
            try:
                if is_write and self._disk.is_broken:
                    raise sqlite3.OperationalError("disk I/O error")
                if is_write and self._disk.is_full:
                    await self._wait_for_space()
                results = run_group(self.connection, group)
            except sqlite3.Error as error:
                self._batches.fail(error, [*group, *self._waiting])
                return
            if is_write:
                await self._disk.moment(self._process, "when a write is on disk, before its answer")
            self._batches.resolve(group, results)

    async def _wait_for_space(self) -> None:
        self._batches.fill(True)
        while self._disk.is_full:  # noqa: ASYNC110
            await asyncio.sleep(SPACE_SECONDS)
        self._batches.fill(False)
