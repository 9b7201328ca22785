"""Random histories of the relay's logs, whose file is killed, replaced by older copies of itself, and emptied."""

from __future__ import annotations

from pathlib import Path

import pytest

from dexorder_common.model.cursor import Cursor
from dexorder_relay.store.logs import Log
from tests.seeds import seeded
from tests.stream_model import Place, StreamModel
from tests.unit.services.relay.store.restored_store import WATCHED, RestoredStore

CLIENTS = [Log.NOTIFICATIONS, Log.TRIGGER_EVENTS]
"""Logs that clients follow."""


class RestoredLogs:
    """Steps of a history; each takes a log and a number."""

    def __init__(self, folder: Path) -> None:
        self.world = RestoredStore(folder)
        self.models = {log: StreamModel() for log in CLIENTS}
        self.ever: dict[Log, frozenset[str]] = dict.fromkeys(CLIENTS, frozenset())
        self.copied: list[dict[Log, frozenset[str]]] = []
        self.epochs = {self.world.store.epoch}
        self.followers: list[tuple[Cursor | None, dict[int, str]]] = [(None, {})]
        self.registered: dict[tuple[str, int], str] = {}

    def append(self, log: Log, number: int) -> None:
        for _ in range(1 + number % 3):
            (self.world.notify if log is Log.NOTIFICATIONS else self.world.fire)()
        for sequence, name in self.world.items(log):
            self.models[log].given(Cursor(self.world.store.epoch, sequence), name)
            self.ever[log] |= {name}

    def resume(self, log: Log, number: int) -> None:
        self.resume_from(log, self.models[log].place(number))

    def come_back(self, log: Log, number: int) -> None:
        """Resume, leave before any item was received, and resume."""
        self.resume_from(log, self.resume_from(log, self.models[log].place(number)))

    def resume_from(self, log: Log, place: Place) -> Place:
        stored = [name for _, name in self.world.items(log)]
        return self.models[log].resumed(place, self.world.resume(log, place.cursor), stored, self.ever[log])

    def register(self, log: Log, number: int) -> None:
        self.world.register()

    def delete(self, log: Log, number: int) -> None:
        found = [name for name in self.world.live().values() if name != WATCHED]
        if found:
            self.world.delete(found[number % len(found)])

    def follow(self, log: Log, number: int) -> None:
        """The pipeline, with any state that it ever had, has all triggers afterwards and no others."""
        after, known = self.followers[number % len(self.followers)]
        found = self.world.changes(after)
        known = {} if found.start.is_reset else dict(known)
        for each in found.changes:
            known.pop(each.registration, None)
            if each.trigger is not None:
                known[each.registration] = each.trigger.trigger_id
        assert known == self.world.live()
        self.followers.append((found.cursor, known))
        for registration, name in known.items():
            key = (self.world.store.epoch, registration)
            assert self.registered.setdefault(key, name) == name, f"registration {registration} is given twice"

    def forget(self, log: Log, number: int) -> None:
        if self.world.forget():
            self.may_reset()

    def restart(self, log: Log, number: int) -> None:
        self.world.restart()

    def kill(self, log: Log, number: int) -> None:
        self.world.kill()

    def copy(self, log: Log, number: int) -> None:
        self.world.copy()
        self.copied.append(dict(self.ever))

    def restore(self, log: Log, number: int) -> None:
        if not self.copied:
            return
        number %= len(self.copied)
        self.world.restore(self.world.copies[number])
        self.ever = dict(self.copied[number])
        assert self.world.store.epoch in self.epochs
        self.may_reset()

    def empty(self, log: Log, number: int) -> None:
        self.world.empty()
        self.ever = dict.fromkeys(CLIENTS, frozenset())
        assert self.world.store.epoch not in self.epochs
        self.epochs.add(self.world.store.epoch)
        self.may_reset()

    def may_reset(self) -> None:
        for model in self.models.values():
            model.may_reset = True


WEIGHTS = {
    RestoredLogs.append: 5,
    RestoredLogs.resume: 5,
    RestoredLogs.come_back: 2,
    RestoredLogs.register: 1,
    RestoredLogs.delete: 1,
    RestoredLogs.follow: 3,
    RestoredLogs.forget: 1,
    RestoredLogs.restart: 1,
    RestoredLogs.kill: 1,
    RestoredLogs.copy: 1,
    RestoredLogs.restore: 2,
}


@pytest.mark.parametrize("number", range(8))
def test_no_item_is_missed_without_a_reset_and_no_sequence_is_given_twice(number: int, tmp_path: Path) -> None:
    random, world = seeded(f"restored store {number}"), RestoredLogs(tmp_path)
    steps = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=60)
    for step in [*steps[:50], RestoredLogs.empty, *steps[50:]]:
        step(world, random.choice(CLIENTS), random.randrange(1000))
    world.world.end()
