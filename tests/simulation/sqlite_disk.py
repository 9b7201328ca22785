"""SQLite files in memory that outlive the process that uses them, and lose what it had not committed.

The suite's files are synced at each commit (``synchronous=FULL``), so a commit is the only point at which data become
durable. `SqliteDisk.on_commit` is called before and after each one, and may kill the process there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any, Literal

from dexorder_common.storage.durable_sqlite import migrate

Moment = Literal["before", "after"]
_NUMBERS = count()


class Killed(BaseException):
    """The process was killed in the midst of a call; unwinds its stack, which does nothing more."""


class SqliteDisk:
    """A file, which one process at a time opens with `connect`.

    Attributes:
        on_commit: Called at each commit; may kill the process and raise `Killed`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.on_commit: Callable[[Moment], None] = lambda moment: None
        self.uri = ""
        self._kept: sqlite3.Connection | None = None
        self._used: _Connection | None = None
        self._replace()

    def connect(self, steps: Sequence[str]) -> sqlite3.Connection:
        """Open the file in place of the process that had it open, whose unfinished transaction is lost."""
        self.close()
        connection = sqlite3.connect(self.uri, uri=True, isolation_level=None, factory=_Connection)
        connection.disk = self
        migrate(connection, steps, newer="{} {}")
        self._used = connection
        return connection

    def close(self) -> None:
        """Close the file for the process that has it open."""
        if self._used is not None:
            self._used.close()
            self._used = None

    def lose_uncommitted(self) -> None:
        """Forget the unfinished transaction of a process that was killed."""
        if self._used is not None:
            self._used.rollback()

    def image(self) -> bytes:
        """Return a copy of what is durable."""
        assert self._kept is not None
        return self._kept.serialize()

    def restore(self, image: bytes) -> None:
        """Replace the file by an earlier copy; no process may use it."""
        self._replace()
        with sqlite3.connect(":memory:") as copy:
            copy.deserialize(image)
            assert self._kept is not None
            copy.backup(self._kept)
        copy.close()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a query over what is durable."""
        assert self._kept is not None
        return self._kept.execute(sql, values).fetchall()

    def _replace(self) -> None:
        self.close()
        if self._kept is not None:
            self._kept.close()
        self.uri = f"file:{self.name}-{next(_NUMBERS)}?mode=memory&cache=shared"
        self._kept = sqlite3.connect(self.uri, uri=True, isolation_level=None)


class _Connection(sqlite3.Connection):
    disk: SqliteDisk

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *values)
        self.disk.on_commit("before")
        cursor = super().execute(sql)
        self.disk.on_commit("after")
        return cursor


class InlineExecutor(Executor):
    """Runs a call of a thread at once; its future is done when it is asked for the second time."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a call."""
        future = _LateFuture()
        try:
            future.set_result(call(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


class _LateFuture(Future[Any]):
    asked = 0

    def done(self) -> bool:
        """Return False once: until then the thread of the caller does what it can do meanwhile."""
        self.asked += 1
        return self.asked > 1
