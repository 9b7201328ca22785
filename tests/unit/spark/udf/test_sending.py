"""The sender of a UDF's rows: feeding never waits for it, each row is sent in order, refused ones are dead letters."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dexorder_common.model.udf import UdfOutput
from dexorder_spark.udf import sending
from dexorder_spark.udf.sending import Sending
from dexorder_spark.udf.sinks import Refused, Sinks
from tests.fakes.pipeline import wait_until


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"sequence": n, "group": "g"} for n in range(first, end)]


class Table:
    """Table and dead letters in memory."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.letters: list[int] = []
        self.lost: range = range(0)

    def rows(self, first: int, end: int) -> list[dict[str, Any]]:
        self.reads.append((first, end))
        return [row for row in rows(first, end) if row["sequence"] not in self.lost]

    def bury(self, refused: Sequence[Refused]) -> None:
        self.letters += [each.row["sequence"] for each in refused]


class Gateway(Sinks):
    """Sinks that keep sequences; while ``open`` is not set, a call waits as it does for a slow gateway."""

    def __init__(self) -> None:
        super().__init__("u", UdfOutput(topic="t"), "")
        self.sent: list[int] = []
        self.failures: list[Exception] = []
        self.refuses: set[int] = set()
        self.open = threading.Event()
        self.open.set()

    def send(self, rows: Sequence[Any]) -> list[Refused]:
        self.open.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.sent += [row["sequence"] for row in rows if row["sequence"] not in self.refuses]
        return [Refused(row, "topic t", "too large") for row in rows if row["sequence"] in self.refuses]

    def close(self) -> None:
        self.open.set()


@contextmanager
def sender(first: int = 0) -> Iterator[tuple[Sending, Gateway, Table, list[str]]]:
    gateway, table, lines = Gateway(), Table(), list[str]()
    with Sending("u", gateway, table, lines.append) as made:  # type: ignore[arg-type]
        made.begin(first)
        yield made, gateway, table, lines


def test_rows_are_sent_in_order_from_memory() -> None:
    with sender() as (made, gateway, table, _):
        for first in range(0, 6_000, 500):
            made.offer(first + 500, rows(first, first + 500))
        wait_until(lambda: made.sent == 6_000)
    assert gateway.sent == [*range(6_000)] and table.reads == []


def test_offering_does_not_wait_for_a_gateway_that_hangs_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MOST_HELD", 100)
    with sender() as (made, gateway, table, _):
        gateway.open.clear()
        for first in range(0, 1_000, 50):
            made.offer(first + 50, rows(first, first + 50))  # would never return if it waited
        assert made.sent == 0
        assert len(made._held) <= 100
        gateway.open.set()
        wait_until(lambda: made.sent == 1_000)
        made.offer(1_001, rows(1_000, 1_001))
        wait_until(lambda: made.sent == 1_001)
    assert gateway.sent == [*range(1_001)]
    assert table.reads and sum(end - first for first, end in table.reads) <= 900


def test_rows_of_a_start_before_are_read_from_the_table() -> None:
    with sender(first=7) as (made, gateway, table, _):
        made.offer(20)
        made.offer(22, rows(20, 22))
        wait_until(lambda: made.sent == 22)
    assert gateway.sent == [*range(7, 22)]
    assert table.reads[0][0] == 7 and table.reads[-1][1] <= 22


def test_a_gateway_that_is_away_is_tried_again_and_the_status_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_FIRST_PAUSE_S", 0.01)
    with sender() as (made, gateway, _, lines):
        gateway.failures = [OSError("no route"), OSError("no route")]
        made.offer(3, rows(0, 3))
        wait_until(lambda: made.sent == 3 and not made.message)
    assert gateway.sent == [0, 1, 2]
    assert lines == ["dexorder: rows are not sent on: OSError: no route"]


def test_refused_rows_are_dead_letters_and_hold_up_no_other_one() -> None:
    with sender() as (made, gateway, table, lines):
        gateway.refuses = {1, 3}
        made.offer(5, rows(0, 5))
        wait_until(lambda: made.sent == 5)
    assert gateway.sent == [0, 2, 4] and table.letters == [1, 3]
    assert lines[0] == "dexorder: row 1 of group 'g' is left out of the topic t: too large"


def test_a_row_counts_as_sent_only_after_its_letter_is_written() -> None:
    with sender() as (made, gateway, table, _):
        gateway.refuses = {0}
        table.bury = lambda refused: (_ for _ in ()).throw(OSError("disk full"))  # type: ignore[method-assign]
        made.offer(1, rows(0, 1))
        wait_until(lambda: "disk full" in made.message)
        assert made.sent == 0


def test_rows_that_the_table_has_lost_do_not_hold_up_later_ones() -> None:
    with sender() as (made, gateway, table, _):
        table.lost = range(4)
        made.offer(6)
        wait_until(lambda: made.sent == 6)
    assert gateway.sent == [4, 5]


def test_without_topic_and_user_all_rows_count_as_sent() -> None:
    with Sending("u", Sinks("u", UdfOutput(), ""), Table(), print) as made:  # type: ignore[arg-type]
        made.begin(0)
        made.offer(9, rows(0, 9))
        assert made.sent == 9
