"""The file in which the ingestors of a host keep what they learnt of an exchange."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import HALF_LIFE_NS, Agreement, Counted
from dexorder_ingestor.exchange.answer_shape import Shape
from dexorder_ingestor.exchange.learnt import SHAPE_AGE_NS, Learnt, LearntRecord, decode

NOW_NS = 1_700_000_000 * SECOND_NS
SHAPE = Shape(100, newest_first=True)


def learn(learnt: Learnt) -> None:
    learnt.agreement.incomplete.note(true=1_000)
    learnt.agreement.foreign.note(true=1_000)


def needs(learnt: Learnt) -> tuple[int, int]:
    return learnt.agreement.agreeing(), learnt.agreement.lead()


def test_restarted_ingestor_knows_what_the_last_one_learnt(tmp_path: Path) -> None:
    first = Learnt(tmp_path / "file")
    learn(first)
    first.shapes.adopt(SHAPE)
    first.share(now_ns=NOW_NS)
    second = Learnt(tmp_path / "file")
    second.share(now_ns=NOW_NS + SECOND_NS)
    assert needs(second) == needs(first) == (2, 2)
    assert second.shapes.shape == SHAPE


def test_answers_of_two_processes_are_counted_once_each(tmp_path: Path) -> None:
    one, two = Learnt(tmp_path / "file"), Learnt(tmp_path / "file")
    for _ in range(3):
        for each in (one, two):
            each.agreement.incomplete.note(true=10)
            each.share(now_ns=NOW_NS)
            each.share(now_ns=NOW_NS)
    one.share(now_ns=NOW_NS)
    assert one.agreement.incomplete.counted == two.agreement.incomplete.counted == Counted(60, 0)


def test_untrue_answer_of_one_process_ends_the_credit_in_all(tmp_path: Path) -> None:
    one, two = Learnt(tmp_path / "file"), Learnt(tmp_path / "file")
    learn(one)
    for each in (one, two):
        each.share(now_ns=NOW_NS)
    two.agreement.incomplete.note(untrue=1)
    two.share(now_ns=NOW_NS)
    one.share(now_ns=NOW_NS)
    assert needs(one)[0] > 2


def test_what_was_learnt_yesterday_is_forgotten(tmp_path: Path) -> None:
    first = Learnt(tmp_path / "file")
    learn(first)
    first.shapes.adopt(SHAPE)
    first.share(now_ns=NOW_NS)
    later = Learnt(tmp_path / "file")
    later.share(now_ns=NOW_NS + max(SHAPE_AGE_NS, 24 * HALF_LIFE_NS))
    assert needs(later) == (Agreement().agreeing(), Agreement().lead())
    assert later.shapes.shape == Shape()


def test_shape_that_no_longer_holds_is_forgotten_by_all(tmp_path: Path) -> None:
    one, two = Learnt(tmp_path / "file"), Learnt(tmp_path / "file")
    one.shapes.adopt(SHAPE)
    one.share(now_ns=NOW_NS)
    two.share(now_ns=NOW_NS)
    two.shapes.adopt(Shape())
    two.share(now_ns=NOW_NS)
    one.share(now_ns=NOW_NS)
    assert one.shapes.shape == Shape()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 40,
        b"[",
        b"{}",
        b"[1,2,3]",
        b"[1,[5,9],[0,0],[0,false,false,false],0]",
        b"[1,[NaN,0],[0,0],[0,false,false,false],0]",
        b"[1,[1e9,0],[0,0],[0,false,false,false],0]",
        b"[1,[5,0],[0,0],[-1,false,false,false],0]",
        b"[1,[5,0],[0,0],[0,0,false,false],0]",
        b"[true,[5,0],[0,0],[0,false,false,false],0]",
        b"[" * 100_000,
    ],
)
def test_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(damage)
    learnt = Learnt(path)
    learnt.share(now_ns=NOW_NS)
    assert needs(learnt) == (Agreement().agreeing(), Agreement().lead())
    learn(learnt)
    learnt.share(now_ns=NOW_NS)
    again = Learnt(path)
    again.share(now_ns=NOW_NS)
    assert needs(again) == (2, 2)


@given(st.integers(0, 300), st.binary(max_size=4))
def test_no_damage_raises(at: int, put: bytes) -> None:
    data = LearntRecord(NOW_NS, Counted(500.0, 1.5), Counted(7, 0), SHAPE, NOW_NS).encode()
    for damaged in (data[:at], data[:at] + put + data[at + len(put) :]):
        found = decode(damaged, now_ns=NOW_NS)
        assert found.at_ns == NOW_NS and 0 <= found.incomplete.untrue <= found.incomplete.answers


def test_file_from_the_future_counts_for_nothing() -> None:
    data = LearntRecord(NOW_NS + 1, Counted(500, 0), Counted(500, 0), SHAPE, NOW_NS).encode()
    assert decode(data, now_ns=NOW_NS) == LearntRecord(NOW_NS)


def test_locked_or_unwritable_file_only_costs_the_sharing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    learnt = Learnt(path)
    learn(learnt)
    learnt.share(now_ns=NOW_NS)
    assert needs(learnt) == (2, 2)
    os.close(holder)
    learnt.share(now_ns=NOW_NS)
    again = Learnt(path)
    again.share(now_ns=NOW_NS)
    assert needs(again) == (2, 2), "nothing that could not be shared is lost"
    Learnt(tmp_path / "no folder" / "file").share(now_ns=NOW_NS)
