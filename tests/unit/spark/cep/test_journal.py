"""Journal of the triggers: what is written is read, what is damaged is not, and what stands before it is used then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_cep import EngineState
from dexorder_common.model.cursor import Cursor
from dexorder_spark.cep.files import FolderFiles
from dexorder_spark.cep.inputs import Expire, Feed, Register, Remove, Suspend
from dexorder_spark.cep.journal import Damaged, Journal, JournalBatch, Snapshot, TopicPosition
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.sqlite_disk import Killed

NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(max_size=5)
POSITIONS = st.dictionaries(
    TEXTS, st.builds(TopicPosition, st.dictionaries(st.integers(0, 50), NUMBERS, max_size=4), TEXTS), max_size=3
)
ROWS = st.lists(st.tuples(NUMBERS, TEXTS, st.floats(allow_nan=False), st.none() | NUMBERS), max_size=3)
INPUTS = st.one_of(
    st.builds(
        Register,
        registration=NUMBERS,
        trigger_id=TEXTS,
        sql=TEXTS,
        parameters=st.dictionaries(TEXTS, TEXTS, max_size=2),
        tickers=st.lists(TEXTS, max_size=2),
        registered_ns=NUMBERS,
    ),
    st.builds(Remove, NUMBERS),
    st.builds(Suspend, NUMBERS, TEXTS, NUMBERS),
    st.builds(Feed, TEXTS, st.sampled_from([0, 60]), ROWS, st.none() | NUMBERS, st.none() | NUMBERS),
    st.builds(Expire, NUMBERS),
)
BATCHES = st.builds(
    JournalBatch,
    number=NUMBERS,
    cursor=st.none() | st.builds(Cursor, st.text(min_size=1, max_size=5), NUMBERS),
    positions=POSITIONS,
    inputs=st.lists(INPUTS, max_size=3).map(tuple),
    events=st.lists(st.binary(max_size=30), max_size=5).map(tuple),
)
SNAPSHOTS = st.builds(
    Snapshot,
    number=NUMBERS,
    cursor=st.none() | st.builds(Cursor, st.text(min_size=1, max_size=5), NUMBERS),
    positions=POSITIONS,
    recent=st.dictionaries(TEXTS, st.dictionaries(TEXTS, NUMBERS, max_size=3), max_size=2),
    state=st.none() | st.builds(EngineState, st.binary(max_size=50), st.dictionaries(TEXTS, st.binary(max_size=20))),
)


@given(BATCHES)
def test_a_batch_is_read_as_it_was_written(batch: JournalBatch) -> None:
    assert JournalBatch.decode(batch.encode()) == batch


@given(SNAPSHOTS, st.data())
def test_a_snapshot_with_one_other_byte_or_cut_short_is_damaged(snapshot: Snapshot, data: st.DataObject) -> None:
    content = bytearray(snapshot.encode())
    assert Snapshot.decode(bytes(content)) == snapshot
    place = data.draw(st.integers(0, len(content) - 1))
    cut = bytes(content[:place])
    content[place] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(content), cut, snapshot.encode() + b"x"):
        with pytest.raises(Damaged):
            Snapshot.decode(broken)


def batch(number: int) -> JournalBatch:
    return JournalBatch(number, Cursor("e:1", number), {}, (Expire(number),), (bytes([number]),))


def filled(folder: Path, batches: int, snapshots: set[int]) -> Journal:
    journal = Journal(FolderFiles(folder))
    assert journal.read() is None
    journal.snapshot(Snapshot(0, None, {}))
    for number in range(1, batches + 1):
        journal.append(batch(number))
        if number in snapshots:
            journal.snapshot(Snapshot(number, Cursor("e:1", number), {}))
    return journal


def numbers(folder: Path) -> tuple[int, list[int]]:
    snapshot, batches = Journal(FolderFiles(folder)).read() or (Snapshot(-1, None, {}), [])
    assert all(each == batch(each.number) for each in batches)
    return snapshot.number, [each.number for each in batches]


def test_a_log_that_is_cut_anywhere_has_the_batches_before_and_is_continued_there(tmp_path: Path) -> None:
    filled(tmp_path, 3, set())
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    second = len(whole) * 2 // 3
    for end in range(second, len(whole)):
        path.write_bytes(whole[:end])
        assert numbers(tmp_path) == (0, [1, 2])
        journal = Journal(FolderFiles(tmp_path))
        journal.read()
        journal.append(batch(3))
        assert numbers(tmp_path) == (0, [1, 2, 3])


def test_a_damaged_snapshot_is_replaced_by_the_one_before_and_all_batches_after_that(tmp_path: Path) -> None:
    journal = filled(tmp_path, 7, {2, 4, 6})
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        f"{number:020d}.{kind}" for number in (4, 6) for kind in ("log", "snapshot")
    ], "older files are removed"
    assert numbers(tmp_path) == (6, [7])
    newest = max(tmp_path.glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / f"{9:020d}.tmp").write_bytes(b"cut off")
    assert numbers(tmp_path) == (4, [5, 6, 7])
    assert not [*tmp_path.glob("*.tmp")]
    journal.append(replace(batch(8)))
    assert numbers(tmp_path) == (4, [5, 6, 7, 8])


def test_what_is_on_disk_survives_power_cuts_at_any_steps_of_several_lives() -> None:
    for seed in range(60):
        random = Random(seed)
        files, stored = MemoryFiles(random), 0
        for _ in range(5):
            left = iter(range(random.randint(1, 40)))

            def step(left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise Killed

            files.on_step = step
            with suppress(Killed):
                journal = Journal(files)
                found = journal.read()
                if found is None:
                    assert stored == 0, seed
                    journal.snapshot(Snapshot(0, None, {}))
                    found = Snapshot(0, None, {}), []
                last = found[0].number + len(found[1])
                assert last >= stored, f"seed {seed}: batch {stored} was stored"
                while True:
                    journal.append(batch(last := last + 1))
                    stored = last
                    if random.random() < 0.4:
                        journal.snapshot(Snapshot(last, None, {}))
            files.on_step = lambda: None
            files.killed()
