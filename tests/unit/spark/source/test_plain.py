"""A source without replay, at least once: the planner asked as Spark asks it, against a real server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_spark.source import plain
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.source.in_flight import RecordId
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.plain import PlainPlanner, read_now
from dexorder_spark.source.udsource import UdStreamReader, read_partition
from tests.unit.spark.source.engine import Checkpoint, Crash, Engine, Row
from tests.unit.spark.source.plain_source import PlainSource, RunningPlainSource, id_of, record, serving


class Sink:
    """Written records, and acks that preceded the commit log."""

    def __init__(self, source: PlainSource) -> None:
        self.queries: list[Engine] = []
        self.rows: list[Row] = []
        self.committed: set[RecordId] = set()
        self.early: list[RecordId] = []
        source.on_ack = self._on_ack

    def _on_ack(self, ids: list[RecordId]) -> None:
        self.early += [one for one in ids if one not in self.committed]

    def commit(self, rows: list[Row]) -> None:
        self.committed |= {(row["partition"], row["offset_bytes"]) for row in rows}

    def stop(self) -> None:
        for query in self.queries:
            query.reader.stop()

    @property
    def numbers(self) -> list[int]:
        return [int(row["payload"]) for row in self.rows]


@pytest.fixture
def running() -> Iterator[RunningPlainSource]:
    with serving(PlainSource()) as running:
        yield running


@pytest.fixture
def source(running: RunningPlainSource) -> PlainSource:
    return running.source


@pytest.fixture
def sink(source: PlainSource) -> Iterator[Sink]:
    sink = Sink(source)
    yield sink
    sink.stop()


def options(running: RunningPlainSource, **changes: Any) -> SourceOptions:
    usual: dict[str, Any] = {"retry_seconds": 5, "read_timeout_ms": 20, "max_records": 4}
    return SourceOptions(running.address, **(usual | changes))


def engine(running: RunningPlainSource, sink: Sink, checkpoint: Checkpoint | None = None, **changes: Any) -> Engine:
    made = checkpoint or Checkpoint()
    query = Engine(options(running, **changes), made, sink.rows.extend, on_committed=sink.commit)
    sink.queries.append(query)
    return query


def fill(source: PlainSource, first: int, last: int) -> None:
    source.add(*(record(number) for number in range(first, last)))


def test_every_record_is_read_once_and_acked_while_idle(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    fill(source, 0, 10)
    query = engine(running, sink)
    assert query.run_to_idle() == 3
    assert sink.numbers == list(range(10))
    assert source.acked == [id_of(record(number)) for number in range(10)]
    assert source.acks == [[id_of(record(n)) for n in batch] for batch in (range(4), range(4, 8), range(8, 10))]
    assert source.pending == 0
    fill(source, 10, 12)
    assert query.run_to_idle() == 1
    assert source.pending == 0
    assert not sink.early


def test_the_columns_serve_offsets_that_are_no_numbers(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    fill(source, 0, 1)
    engine(running, sink).run_to_idle()
    assert (sink.rows[0]["offset"], sink.rows[0]["offset_bytes"], sink.rows[0]["key"]) == (None, b"o-0", "k0")


def test_a_source_that_waits_for_acks_is_read_to_its_end(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.waits_for_acks = True
    fill(source, 0, 10)
    assert engine(running, sink).run_to_idle() == 3
    assert sink.numbers == list(range(10))
    assert source.pending == 0


def test_a_source_that_repeats_records_in_flight_duplicates_nothing(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.repeats = True
    fill(source, 0, 10)
    query = engine(running, sink, max_records=6)
    while source.pending:
        query.poll()
    assert sorted(sink.numbers) == list(range(10))
    assert not sink.early


@pytest.mark.parametrize("crash", ["planning", "sink", "commit"])
def test_an_uncommitted_batch_is_sent_again(
    running: RunningPlainSource, source: PlainSource, sink: Sink, crash: str
) -> None:
    fill(source, 0, 10)
    checkpoint = Checkpoint()
    query = engine(running, sink, checkpoint)
    query.poll()
    with pytest.raises(Crash):
        query.poll(crash)
    again = engine(running, sink, checkpoint)
    again.run_to_idle()
    assert set(sink.numbers) == set(range(10))
    assert len(sink.numbers) == (14 if crash == "commit" else 10), "only what the sink had already comes twice"
    assert source.pending == 0
    assert not sink.early


def test_a_source_that_never_repeats_records_loses_the_unacked(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.redelivers = False
    fill(source, 0, 10)
    checkpoint = Checkpoint()
    query = engine(running, sink, checkpoint)
    query.poll()
    with pytest.raises(Crash):
        query.poll("sink")
    engine(running, sink, checkpoint).run_to_idle()
    assert sink.numbers == [0, 1, 2, 3, 8, 9]
    assert source.pending == 4, "the source itself still has them, in flight to a reader that is gone"


def test_a_query_of_one_batch_acks_nothing(running: RunningPlainSource, source: PlainSource, sink: Sink) -> None:
    fill(source, 0, 4)
    checkpoint = Checkpoint()
    for _ in range(2):  # as with Trigger.Once
        engine(running, sink, checkpoint).poll()
    assert sink.numbers == [*range(4), *range(4)], "what was not acked comes again"
    assert source.acks == []


def test_a_source_that_restarts_before_the_ack_duplicates_nothing(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.knows_issued = True
    fill(source, 0, 10)
    query = engine(running, sink)
    query.poll()
    running.stop()
    assert not query.poll(), "away is nothing new"
    running.start()
    while source.pending:
        query.poll()
    assert sink.numbers == list(range(10))
    assert not sink.early


def test_an_ack_that_is_refused_for_good_is_given_up(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    fill(source, 0, 3)
    query = engine(running, sink)
    query.poll()
    source.refusals = 1_000
    for _ in range(3):
        query.poll()
    asked: list[list[RecordId]] = []
    source.on_ack = asked.append
    query.poll()
    assert not asked
    source.refusals = 0
    fill(source, 3, 5)
    query.run_to_idle()
    assert source.acked == [id_of(record(number)) for number in (3, 4)]


def test_a_stream_that_is_cut_in_a_read_doubles_nothing(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.cut_after = [3, 1, 0]
    fill(source, 0, 20)
    query = engine(running, sink, max_records=8)
    while source.pending:
        query.poll()
    assert sorted(sink.numbers) == list(range(20))


def test_a_source_that_fails_later_has_no_new_records_and_one_never_reached_is_an_error(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    fill(source, 0, 2)
    query = engine(running, sink)
    assert query.run_to_idle() == 1
    source.failures = ["no broker"]
    assert not query.poll()
    running.stop()
    assert not query.poll()
    late = UdStreamReader(options(running, replay="never", retry_seconds=0.2))
    with pytest.raises(Unavailable, match=f"source {running.address}"):
        late.latestOffset()
    reader = UdStreamReader(options(running, retry_seconds=0.2))
    with pytest.raises(Unavailable, match=f"source {running.address}"):
        reader.latestOffset()


def test_a_record_that_cannot_be_read_ends_the_query(
    running: RunningPlainSource, source: PlainSource, sink: Sink
) -> None:
    source.raw = [b"\xff\xff"]
    with pytest.raises(SourceBroken, match=f"source {running.address}, record 1 of a read"):
        engine(running, sink).poll()


def test_a_batch_is_bounded_by_bytes_too(running: RunningPlainSource, source: PlainSource, sink: Sink) -> None:
    source.add(*(record(number, payload=bytes(10_000)) for number in range(100)))
    checkpoint = Checkpoint()
    query = engine(running, sink, checkpoint, max_records=50, max_bytes=200_000)
    query.poll()
    assert 15 <= len(sink.rows) <= 50
    query.run_to_idle()
    assert len(sink.rows) == 100
    assert source.pending == 0


def test_large_batches_have_several_tasks(running: RunningPlainSource, source: PlainSource) -> None:
    source.add(*(record(number, payload=b"%4d" % number + bytes(100_000)) for number in range(80)))
    taken = options(running, max_records=100)
    planner = PlainPlanner(taken)
    parts = planner.partitions({"run": "older", "batch": 1}, planner.latest_offset())
    assert 8 <= len(parts) <= 10
    rows = [row for part in parts for batch in read_partition(taken, part) for row in batch.to_pylist()]
    assert [int(row["payload"][:4]) for row in rows] == list(range(80))
    assert max(len(pickle.dumps(part)) for part in parts) < 1_100_000
    planner.stop()


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"starting": "earliest"}, "startingOffsets"),
        ({"starting": {0: 3}}, "startingOffsets"),
        ({"ending": {0: 3}}, "endingOffsets"),
        ({"drain": True}, "drain=true"),
    ],
)
def test_options_that_need_replay_are_refused(
    running: RunningPlainSource, changes: dict[str, Any], option: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{option}.*{running.address}"):
        PlainPlanner(options(running, **changes))
    with pytest.raises(InvalidRequest, match=f"{option}.*{running.address}"):
        read_now(options(running, **changes))


def test_a_batch_read_reads_all_present_records_and_acks_none(running: RunningPlainSource, source: PlainSource) -> None:
    fill(source, 0, 10)
    for _ in range(2):
        rows = [row for part in read_now(options(running)) for batch in part.read() for row in batch.to_pylist()]
        assert [int(row["payload"]) for row in rows] == list(range(10))
    assert source.acks == []
    assert source.pending == 10


def test_a_batch_read_of_an_empty_source_is_empty(running: RunningPlainSource) -> None:
    parts = read_now(options(running))
    assert [batch for part in parts for batch in part.read()] == []


def test_a_batch_read_that_loses_its_source_is_an_error(running: RunningPlainSource, source: PlainSource) -> None:
    fill(source, 0, 4)
    source.failures = ["no broker"] * 2
    with pytest.raises(Unavailable, match="no broker"):
        read_now(options(running))


class CrashMachine(RuleBasedStateMachine):
    """Batches, crashes and source restarts in any order: nothing lost, nothing acked too early."""

    def __init__(self) -> None:
        super().__init__()
        self.running = RunningPlainSource(PlainSource())
        self.source = self.running.source
        self.sink = Sink(self.source)
        self.checkpoint = Checkpoint()
        self.sent = 0
        self.query: Engine | None = None
        self.patch = mock.patch.object(plain, "_IDLE_WAIT_S", 0.01)
        self.patch.start()

    @rule(count=st.integers(1, 9))
    def send(self, count: int) -> None:
        fill(self.source, self.sent, self.sent + count)
        self.sent += count

    @rule(crash=st.sampled_from(["", "", "planning", "sink", "commit"]))
    def batch(self, crash: str) -> None:
        if self.query is None:
            self.query = engine(self.running, self.sink, self.checkpoint)
        try:
            self.query.poll(crash)
        except Crash:
            self.stop()

    @rule()
    def stop(self) -> None:
        if self.query is not None:
            self.query.reader.stop()
        self.query = None

    @rule(after=st.integers(0, 5))
    def cut(self, after: int) -> None:
        self.source.cut_after.append(after)

    @rule()
    def lose_an_ack(self) -> None:
        self.source.lost_acks = 1

    @invariant()
    def nothing_is_acked_too_early(self) -> None:
        assert not self.sink.early

    def teardown(self) -> None:
        self.source.cut_after = []
        self.source.lost_acks = 0
        try:
            query = self.query or engine(self.running, self.sink, self.checkpoint)
            for _ in range(100):
                if not query.poll() and not self.source.pending:
                    break
        finally:
            self.sink.stop()
            self.running.stop()
            self.patch.stop()
        assert self.source.pending == 0
        assert set(self.sink.numbers) == set(range(self.sent))
        assert not self.sink.early


TestCrashes = CrashMachine.TestCase
TestCrashes.settings = settings(
    max_examples=25, stateful_step_count=12, suppress_health_check=[HealthCheck.too_slow], deadline=None
)
