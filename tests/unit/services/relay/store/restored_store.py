"""A relay's store whose file is copied, replaced by older copies and killed, and what is written to it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.history import Outcome, RequestStatus
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.triggers import EventKind, Trigger
from dexorder_relay.state.changes import RequestAccepted, RequestEnded
from dexorder_relay.state.history import progress
from dexorder_relay.store import triggers
from dexorder_relay.store.database import FORGET_REQUESTS, Store
from dexorder_relay.store.logs import Log, start_of
from tests.stream_model import Resumed
from tests.unit.services.relay.harness import TICKER, Driver, at

T = TypeVar("T")
TOPIC = "RESPONSE:me"
WATCHED = "watched"
"""Trigger of all events."""
ALL = 1_000


class RestoredStore:
    """Lives of a store, each a second after the last one."""

    def __init__(self, folder: Path) -> None:
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.path = folder / "relay.db"
        self.copies: list[Path] = []
        self._runner = asyncio.Runner()
        self._names = map("{}".format, itertools.count())
        self._open()

    def close(self) -> None:
        """End this life."""
        self._runner.run(self.store.close())

    def end(self) -> None:
        """End the last life."""
        self.close()
        self._runner.close()

    def restart(self) -> None:
        """End this life and begin the next."""
        self.close()
        self._open()

    def kill(self) -> None:
        """Begin the next life with the files as they are now."""
        folder = self.path.parent / f"life-{next(self._names)}"
        folder.mkdir()
        for file in self.path.parent.glob("relay.db*"):
            shutil.copyfile(file, folder / file.name)
        self.close()
        self.path = folder / self.path.name
        self._open()

    def copy(self) -> None:
        """Copy the file while it is in use."""
        self.copies.append(self.path.with_name(f"copy-{next(self._names)}"))
        with closing(sqlite3.connect(self.path)) as db, closing(sqlite3.connect(self.copies[-1])) as copy:
            db.backup(copy)

    def restore(self, copy: Path) -> None:
        """Begin the next life with a copy."""
        self.close()
        shutil.copyfile(copy, self.path)
        self._open()

    def empty(self) -> None:
        """Begin the next life without a file."""
        self.close()
        self.path.unlink()
        self._open()

    def _open(self) -> None:
        async def opened() -> Store:
            return Store(self.path, now_ns=self.now_ns)

        self.now_ns += SECOND_NS
        self.store = self._runner.run(opened())
        self.register(WATCHED)

    def _do(self, future: asyncio.Future[T]) -> T:
        return self._runner.run(_done(future))

    def notify(self) -> None:
        """End a request of the client."""
        driver = Driver()
        live = driver.accept(f"r{next(self._names)}", 0, 10, client_id="me")
        outcome = Outcome(RequestStatus.OK, "", at(10), self.now_ns, 10)
        ended = RequestEnded(live.request, outcome, progress(driver.state, live))
        self._do(self.store.commit([RequestAccepted(live), ended]))

    def fire(self) -> None:
        """Report an event of the watched trigger."""
        registered = self._do(self.store.read(triggers.find, WATCHED))
        assert registered is not None
        name, registration = f"e{next(self._names)}", registered.registration
        reported = triggers.ReportedEvent(name, registration, EventKind.FIRED, TICKER, self.now_ns, b"")
        self._do(self.store.write(triggers.report, [reported], None, now_ns=self.now_ns))

    def register(self, trigger_id: str = "") -> None:
        """Register a trigger, by default a new one, unless it is there."""
        trigger = Trigger(trigger_id or f"t{next(self._names)}", "SELECT", (TICKER,))
        write = self.store.write(triggers.register, [(trigger, 60)], now_ns=self.now_ns, limit=None)
        self._do(write)

    def delete(self, trigger_id: str) -> None:
        """Delete a trigger."""
        self._do(self.store.write(triggers.delete, trigger_id, now_ns=self.now_ns))

    def forget(self) -> bool:
        """Delete all that has ended, as retention does; return whether there was any."""
        self.now_ns += SECOND_NS
        before_ns = self.now_ns - SECOND_NS // 2
        requests = self._do(self.store.forget(FORGET_REQUESTS, before_ns))
        return bool(requests + self._do(self.store.forget_trigger_events(before_ns)))

    def resume(self, log: Log, after: Cursor | None) -> Resumed:
        """Return what a client gets that resumes after a cursor."""
        start = self._do(self.store.read(start_of, log, after))
        return Resumed(start.cursor, start.is_reset, self.items(log, start.cursor.sequence))

    def items(self, log: Log, after: int = 0) -> list[tuple[int, str]]:
        """Return the stored items of a log after a sequence."""
        if log is Log.NOTIFICATIONS:
            found = self._runner.run(self.store.notifications(TOPIC, after, ALL))
            return [(each.cursor.sequence, each.request.request_id) for each in found if each.cursor]
        read = self.store.read(triggers.events_after, ("trigger_id", WATCHED), None, after, ALL)
        return [(each.sequence, each.event.event_id) for each in self._do(read)]

    def changes(self, after: Cursor | None) -> triggers.TriggerChanges:
        """Return what the pipeline gets that has all changes up to a cursor."""
        return self._do(self.store.read(triggers.changes_after, after, ALL))

    def live(self) -> dict[int, str]:
        """Return the triggers by registration."""
        found = self._do(self.store.read(triggers.page, "", "", 0, -1))
        return {each.registration: each.trigger.trigger_id for each in found}


async def _done(future: asyncio.Future[T]) -> T:
    return await future
