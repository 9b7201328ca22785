"""Random histories of a user's log whose file is replaced by older copies of itself."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.store.event_log import EventLog, Replay
from tests.seeds import seeded
from tests.stream_model import Place, Resumed, StreamModel
from tests.unit.services.gateway.events.dispatcher.stage import SECOND, Stage
from tests.unit.services.gateway.events.samples import body

DAY = 86_400 * SECOND
USER = "alice"


class RestoredLog:
    """Steps of a history; each takes a number."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.db"
        self.stage = Stage(self.path)
        self.stage.work()
        self.model = StreamModel()
        self.copies: list[tuple[Path, frozenset[str]]] = []
        self.ever: frozenset[str] = frozenset()
        self.names = map("e{}".format, itertools.count())

    def publish(self, number: int) -> None:
        self.stage.take(*(body(next(self.names), USER, Priority.CRITICAL) for _ in range(1 + number % 3)))
        for sequence, name in self.log():
            self.model.given(Cursor(self.stage.processor.epoch, sequence), name)
            self.ever |= {name}

    def resume(self, number: int) -> None:
        self.resume_from(self.model.place(number))

    def come_back(self, number: int) -> None:
        """Resume, leave before any event was received, and resume."""
        self.resume_from(self.resume_from(self.model.place(number)))

    def resume_from(self, place: Place) -> Place:
        self.stage.work()
        settled = self.settled()
        replay = self.replay(place.cursor)
        assert self.settled() - settled <= place.known, "only what the session had received is settled"
        events = [(each.sequence, each.event.key.event_id) for each in replay.events]
        stored = {name for _, name in self.log()}
        if place.cursor is None:
            stored -= settled  # such a session starts with the events that still wait
        stream = Resumed(Cursor(replay.epoch, replay.sequence), replay.reset, events)
        return self.model.resumed(place, stream, stored, self.ever)

    def ack(self, number: int) -> None:
        cursor = self.model.place(number).cursor
        if cursor is None:
            return
        self.stage.work()
        settled = self.settled()
        self.stage.work(lambda processor: processor.acked(USER, cursor.epoch, cursor.sequence, seen=bool(number % 2)))
        assert self.settled() - settled <= {self.model.item_at(cursor)}

    def forget(self, number: int = 0) -> None:
        self.stage.clock.advance(8 * DAY)
        self.model.may_reset |= self.stage.processor.forget()

    def restart(self, number: int = 0) -> None:
        self.stage.clock.advance(SECOND)
        self.stage.again()

    def copy(self, number: int = 0) -> None:
        path = self.path.with_name(f"copy-{len(self.copies)}")
        with closing(sqlite3.connect(self.path)) as db, closing(sqlite3.connect(path)) as copy:
            db.backup(copy)
        self.copies.append((path, self.ever))

    def restore(self, number: int) -> None:
        if not self.copies:
            return
        self.model.may_reset = True
        self.stage.outbox.close()
        path, self.ever = self.copies[number % len(self.copies)]
        shutil.copyfile(path, self.path)
        self.restart()

    def replay(self, cursor: Cursor | None) -> Replay:
        """Return what the dispatcher gives to a session that opens, with all batches."""
        found: list[tuple[int, bool]] = []
        self.stage.work(lambda processor: found.append(processor.resume(USER, cursor)))
        ((newest, reset),) = found
        replay = EventLog(self.path).replay(self.stage.processor.epoch, USER, cursor, newest, reset=reset)
        assert not replay.more
        return replay

    def log(self) -> list[tuple[int, str]]:
        return self.rows("SELECT sequence, event_id FROM events WHERE sequence IS NOT NULL ORDER BY sequence")

    def settled(self) -> set[str]:
        return {name for _, name in self.rows("SELECT 0, event_id FROM events WHERE status != 1")}

    def rows(self, sql: str) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(sql).fetchall()


WEIGHTS = {
    RestoredLog.publish: 4,
    RestoredLog.resume: 4,
    RestoredLog.come_back: 2,
    RestoredLog.ack: 3,
    RestoredLog.forget: 1,
    RestoredLog.restart: 1,
    RestoredLog.copy: 1,
    RestoredLog.restore: 2,
}


@pytest.mark.parametrize("number", range(8))
def test_no_event_is_missed_without_a_reset_and_no_ack_settles_another_event(number: int, tmp_path: Path) -> None:
    random, world = seeded(f"restored log {number}"), RestoredLog(tmp_path)
    for step in random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=60):
        step(world, random.randrange(1000))
    world.stage.outbox.close()
