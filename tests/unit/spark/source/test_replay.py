"""A source that can replay: what is planned when, and when it is acked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_spark.source import replay
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.source.options import Position, SourceOptions
from tests.fakes.source_server import FakeSource, RunningSource
from tests.unit.spark.source.engine import Checkpoint, Crash, Engine, Row


@pytest.fixture
def source() -> Iterator[RunningSource]:
    running = RunningSource(FakeSource(partitions=2))
    add(running, 10)
    yield running
    running.stop()


def add(source: RunningSource, count: int) -> None:
    for _ in range(count):
        source.fake.add(0, b"%d" % source.fake.ends[0])


def options(source: RunningSource, **changes: Any) -> SourceOptions:
    usual: dict[str, Any] = {"retry_seconds": 5, "max_records": 4, "ack": True}
    return SourceOptions(source.address, **(usual | changes))


def offsets(rows: list[Row]) -> list[int]:
    return [row["offset"] for row in rows]


def test_every_batch_is_acked_once_as_soon_as_it_is_committed(source: RunningSource) -> None:
    rows: list[Row] = []
    acked_before: list[dict[int, int]] = []

    def note(_: list[Row]) -> None:
        acked_before.append({**source.fake.committed})

    query = Engine(options(source), Checkpoint(), rows.extend, on_committed=note)
    assert query.run_to_idle() == 3
    assert offsets(rows) == list(range(10))
    assert acked_before == [{}, {0: 4}, {0: 8}], "never ahead of the commit log"
    assert source.fake.committed == {0: 10}, "the last one, too, while idle"
    assert source.fake.ack_calls == [[(0, 3)], [(0, 7)], [(0, 9)]]


@pytest.mark.parametrize("crash", ["planning", "sink", "commit"])
def test_an_uncommitted_batch_is_read_again(source: RunningSource, crash: str) -> None:
    rows: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source), checkpoint, rows.extend)
    query.poll()
    with pytest.raises(Crash):
        query.poll(crash)
    assert source.fake.committed == {0: 4}
    Engine(options(source), checkpoint, rows.extend).run_to_idle()
    again = [4, 5, 6, 7] if crash == "commit" else []
    assert offsets(rows) == [0, 1, 2, 3, *again, 4, 5, 6, 7, 8, 9]
    assert source.fake.committed == {0: 10}


def test_an_ack_that_fails_is_made_good_and_stops_nothing(
    source: RunningSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_IDLE_WAIT_S", 0)
    rows: list[Row] = []
    query = Engine(options(source), Checkpoint(), rows.extend)
    query.poll()
    fail = iter([True, True])

    def on_ack(_: object) -> None:
        if next(fail, False):
            raise RuntimeError("no broker")

    source.fake.on_ack = on_ack
    assert query.poll()
    assert source.fake.committed == {}
    query.run_to_idle()
    assert offsets(rows) == list(range(10))
    assert source.fake.committed == {0: 10}


def test_a_restarted_query_survives_an_unavailable_source(
    source: RunningSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_IDLE_WAIT_S", 0.02)
    rows: list[Row] = []
    checkpoint = Checkpoint()
    Engine(options(source), checkpoint, rows.extend).poll()
    source.stop()
    query = Engine(options(source), checkpoint, rows.extend)
    assert not query.poll()
    source.start()
    while len(rows) < 10:
        query.poll()
    assert offsets(rows) == list(range(10))


def test_a_new_query_waits_for_its_source_only_so_long(source: RunningSource) -> None:
    source.stop()
    with pytest.raises(Unavailable, match=f"source {source.address}"):
        Engine(options(source, retry_seconds=0.2), Checkpoint(), print).poll()


def test_a_query_of_one_batch_is_acked_by_the_next_run(source: RunningSource) -> None:
    rows: list[Row] = []
    checkpoint = Checkpoint()
    for _ in range(4):  # as with Trigger.Once
        Engine(options(source), checkpoint, rows.extend).poll()
    assert offsets(rows) == list(range(10))
    assert source.fake.ack_calls == [[(0, 3)], [(0, 7)], [(0, 9)]], "the last one, too, though nothing new came"


def test_available_now_with_drain_takes_ten_times_the_cap_at_once(source: RunningSource) -> None:
    add(source, 30)
    rows: list[Row] = []
    checkpoint = Checkpoint()
    assert Engine(options(source, drain=True), checkpoint, rows.extend, available_now=True).run_to_idle() == 1
    assert offsets(rows) == list(range(40))
    assert source.fake.committed == {0: 40}
    add(source, 40)
    query = Engine(options(source, drain=True), checkpoint, rows.extend, available_now=True)
    add(source, 1)  # too late for this run
    assert query.run_to_idle() == 1
    assert offsets(rows) == list(range(80))


def test_available_now_before_its_checkpoint_is_an_error_with_the_remedy(source: RunningSource) -> None:
    checkpoint = Checkpoint()
    taken = options(source, starting="earliest")
    Engine(options(source, starting="earliest", drain=True), checkpoint, len, available_now=True).run_to_idle()
    query = Engine(taken, checkpoint, len, available_now=True)
    with pytest.raises(InvalidRequest, match=r"end 4 of partition 0 is before start 10.*drain=true"):
        query.poll()


@pytest.mark.parametrize("crash", ["planning", "sink", "commit"])
@pytest.mark.parametrize("starting", ["latest", "committed", "earliest", {0: 7, 1: 0}])
def test_a_crash_in_the_first_batch_repeats_exactly_that_batch(
    source: RunningSource, crash: str, starting: Position
) -> None:
    source.fake.committed = {0: 5}
    first: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source, starting=starting), checkpoint, first.extend)
    begin = query.reader.initialOffset()["from"]["0"]
    add(source, 3)
    with pytest.raises(Crash):
        query.poll(crash)
    source.fake.committed = {0: 12}  # by another client
    add(source, 9)
    again: list[Row] = []
    other = starting if isinstance(starting, str) else {0: 11, 1: 0}
    query = Engine(options(source, starting=other), checkpoint, again.extend)
    end = min(begin + 4, 13)
    assert offsets(again) == list(range(begin, end))
    assert offsets(first) == (offsets(again) if crash == "commit" else [])
    query.run_to_idle()
    assert offsets(again) == list(range(begin, 22)), "the second batch follows the first"


def test_a_start_is_only_that_of_the_first_batch(source: RunningSource) -> None:
    rows: list[Row] = []
    checkpoint = Checkpoint()
    Engine(options(source), checkpoint, rows.extend).run_to_idle()
    assert checkpoint.offsets == [
        {"0": 4, "1": 0, "from": {"0": 0, "1": 0}},
        {"0": 8, "1": 0},
        {"0": 10, "1": 0},
    ]
    with pytest.raises(Crash):
        add(source, 2)
        Engine(options(source, drain=True), checkpoint, rows.extend, available_now=True).poll("sink")
    assert checkpoint.offsets[-1] == {"0": 12, "1": 0, "from": {"0": 10, "1": 0}}, "asked before the checkpoint"
    source.fake.committed = {0: 3}
    Engine(options(source), checkpoint, rows.extend).run_to_idle()
    assert offsets(rows) == list(range(12))


@pytest.mark.parametrize(("count", "topic_id"), [(4, ""), (4, "b"), (20, "b")], ids=["shorter", "both", "longer"])
def test_a_log_that_went_back_fails_the_query_or_is_read_from_its_beginning(
    source: RunningSource, monkeypatch: pytest.MonkeyPatch, count: int, topic_id: str
) -> None:
    monkeypatch.setattr(replay, "_IDLE_WAIT_S", 0)
    source.fake.topic_id = topic_id and "a"
    rows: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source), checkpoint, rows.extend)
    query.run_to_idle()
    source.fake.create_again()
    source.fake.topic_id = topic_id
    add(source, count)
    reason = "its topic has id b instead of a" if topic_id else "partition 0 ends at offset 4, before offset 10"
    for each in (query, Engine(options(source), checkpoint, rows.extend)):
        with pytest.raises(SourceBroken, match=f"{source.address}: {reason}.*failOnDataLoss=false"):
            each.poll()
    rows.clear()
    allowed = options(source, fail_on_data_loss=False)
    with pytest.raises(Crash):
        Engine(allowed, checkpoint, rows.extend).poll("commit")
    Engine(allowed, checkpoint, rows.extend).run_to_idle()
    assert offsets(rows) == [0, 1, 2, 3, *range(count)], "the batch that was not committed is repeated"
    assert not Engine(options(source), checkpoint, rows.extend).poll(), "it continues as before"
    assert source.fake.committed == {0: count}


@pytest.mark.parametrize("again", [10, 30], ids=["as long", "longer"])
def test_log_that_lost_records_and_outgrew_its_old_end_fails_the_query_or_is_read_from_its_beginning(
    source: RunningSource, again: int
) -> None:
    """As after an unclean election: the topic has the same id, and only the epoch of the leaders tells."""
    source.fake.topic_id, source.fake.epochs = "a", {0: 1, 1: 1}
    source.fake.add(1, b"other")
    rows: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source), checkpoint, rows.extend)
    query.run_to_idle()
    source.fake.elect(0, 6)
    add(source, again - 6)
    reason = r"FAILED_PRECONDITION: the log was truncated before 10: .*failOnDataLoss=false"
    for each in (query, Engine(options(source), checkpoint, rows.extend)):
        with pytest.raises(SourceBroken, match=f"{source.address}: {reason}"):
            each.poll()
    assert source.fake.committed == {0: 10, 1: 1}, "nothing is acked in the other log"
    rows.clear()
    allowed = options(source, fail_on_data_loss=False)
    with pytest.raises(Crash):
        Engine(allowed, checkpoint, rows.extend).poll("commit")
    Engine(allowed, checkpoint, rows.extend).run_to_idle()
    assert offsets(rows) == [0, 1, 2, 3, *range(again)], "the other partition is not read again"
    assert not Engine(options(source), checkpoint, rows.extend).poll(), "it continues as before"


def test_elections_that_lose_nothing_are_compared_once_and_change_nothing(source: RunningSource) -> None:
    source.fake.epochs = {0: 1, 1: 1}
    rows: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source), checkpoint, rows.extend)
    query.run_to_idle()
    source.fake.compared.clear()
    source.fake.elect(0)
    for _ in range(3):
        assert not query.poll()
    assert source.fake.compared == [(0, 10, 1)]
    add(source, 2)
    source.fake.elect(0)
    assert query.run_to_idle() == 1
    add(source, 1)
    assert Engine(options(source), checkpoint, rows.extend).run_to_idle() == 1
    assert offsets(rows) == list(range(13))
    assert checkpoint.offsets[-1] == {"0": 13, "1": 0, "epochs": {"0": 3, "1": 1}}


def test_log_that_loses_records_between_plan_and_read_fails_the_batch(source: RunningSource) -> None:
    source.fake.epochs = {0: 1, 1: 1}
    query = Engine(options(source), Checkpoint(), len)
    end = query.reader.latestOffset()
    parts = query.reader.partitions(query.reader.initialOffset(), end)
    source.fake.elect(0, 2)
    add(source, 20)
    with pytest.raises(SourceBroken, match="truncated before 4"):
        [*query.reader.read(parts[0])]


def test_start_at_a_commit_of_a_lost_log_is_noticed(source: RunningSource) -> None:
    source.fake.epochs, source.fake.committed, source.fake.committed_epochs = {0: 5, 1: 5}, {0: 8}, {0: 5}
    source.fake.elect(0, 3)
    add(source, 20)
    with pytest.raises(SourceBroken, match="truncated before 8"):
        Engine(options(source, starting="committed"), Checkpoint(), len).poll()
    assert Engine(options(source, starting="earliest"), Checkpoint(), len).poll()
    rows: list[Row] = []
    Engine(options(source, starting="committed", fail_on_data_loss=False), Checkpoint(), rows.extend).run_to_idle()
    assert offsets(rows) == list(range(23))


def test_records_removed_by_retention_are_passed_where_that_is_allowed(source: RunningSource) -> None:
    rows: list[Row] = []
    checkpoint = Checkpoint()
    query = Engine(options(source, fail_on_data_loss=False), checkpoint, rows.extend)
    query.poll()
    source.fake.starts[0] = 7
    assert query.run_to_idle() == 1
    assert offsets(rows) == [0, 1, 2, 3, 7, 8, 9]


def test_available_now_tells_a_log_that_went_back_from_a_missing_drain(source: RunningSource) -> None:
    checkpoint = Checkpoint()
    Engine(options(source, drain=True), checkpoint, len, available_now=True).run_to_idle()
    source.fake.create_again()
    add(source, 3)
    with pytest.raises(SourceBroken, match="partition 0 ends at offset 3, before offset 10"):
        Engine(options(source, drain=True), checkpoint, len, available_now=True).poll()


def test_every_group_has_its_own_acks_and_without_one_nothing_is_acked(source: RunningSource) -> None:
    rows: list[Row] = []
    Engine(SourceOptions(source.address, max_records=4), Checkpoint(), rows.extend).run_to_idle()
    assert offsets(rows) == list(range(10))
    assert (source.fake.committed, source.fake.groups) == ({}, {})
    for group, count in (("a", 1), ("b", 2)):
        query = Engine(options(source, group=group), Checkpoint(), rows.extend)
        for _ in range(count + 1):  # the next one acks
            query.poll()
    assert (source.fake.committed, source.fake.groups) == ({}, {"a": {0: 4}, "b": {0: 8}})
    rows.clear()
    Engine(options(source, group="b"), Checkpoint(), rows.extend).run_to_idle()
    assert offsets(rows) == [8, 9], "a new query continues at the acks of its group"


def test_a_batch_is_limited_by_bytes_where_their_number_is_known(source: RunningSource) -> None:
    rows: list[Row] = []
    add(source, 1_500)
    query = Engine(options(source, max_records=None, max_bytes=5_000), Checkpoint(), rows.extend)
    for count, record_bytes in ((1_000, 0), (50, 100), (1, 6_000), (459, 10)):
        source.fake.record_bytes = record_bytes
        rows.clear()
        query.poll()
        assert len(rows) == count
