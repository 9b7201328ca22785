"""Partitions in turn."""

from __future__ import annotations

from services.gateway.kafkapixy.round_robin import RoundRobin


def test_each_topic_goes_round_by_itself() -> None:
    turns = RoundRobin({"a": 3, "b": 1}.__getitem__)
    assert [turns.next("a") for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [turns.next("b") for _ in range(2)] == [0, 0]
    assert turns.next("a") == 2


def test_topic_that_grows_or_is_not_known() -> None:
    counts = {"a": 0}
    turns = RoundRobin(counts.__getitem__)
    assert turns.next("a") == -1
    counts["a"] = 2
    assert [turns.next("a") for _ in range(3)] == [0, 1, 0]
    counts["a"] = 3
    assert [turns.next("a") for _ in range(3)] == [1, 2, 0]
