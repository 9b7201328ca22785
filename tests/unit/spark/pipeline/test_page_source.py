"""Pages of a source, decoded by the tasks that read them; without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC
from dexorder_spark.pipeline.controls import DECODED, DECODED_DDL, FILE_KIND
from dexorder_spark.pipeline.files import unpack
from dexorder_spark.pipeline.page_source import Pace, Spacing, page_source
from dexorder_spark.source.offsets import from_json, to_json
from dexorder_spark.source.udsource import UdSource
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import control, page
from tests.fakes.source_server import FakeSource, RunningSource

dumps: Callable[[object], bytes] = cloudpickle.dumps


@pytest.fixture
def source() -> Iterator[RunningSource]:
    running = RunningSource(FakeSource(partitions=3))
    for number in range(36):
        payload, headers = page(control(number * 10, 10))
        running.fake.add(number % 3, payload, "k", headers)
    yield running
    running.stop()


@pytest.mark.parametrize(("cores", "tasks"), [(1, 1), (2, 2), (4, 4), (64, 4)])
def test_every_page_is_in_one_file_of_one_task_of_at_most_as_many_as_cores(
    catalog: CatalogSettings, source: RunningSource, cores: int, tasks: int
) -> None:
    made = pickle.loads(dumps(page_source(CANDLES, catalog)))  # as Spark sends it to its processes
    options = {"address": source.address, "minPartitions": str(cores), "startingOffsets": "earliest"}
    data_source = made(options)
    assert (made.name(), data_source.schema()) == ("dexorder-pages-ohlc", DECODED_DDL)
    planner = data_source.streamReader(None)
    start, end = planner.initialOffset(), planner.latestOffset()
    parts = pickle.loads(pickle.dumps(planner.partitions(start, end)))
    assert len(parts) == tasks
    worker = pickle.loads(dumps(planner))
    batches = [batch for part in parts for batch in worker.read(part)]
    assert all(batch.schema == DECODED for batch in batches)
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    table = catalog.load().load_table(OHLC.name)
    assert table.scan().count() == 0, "no file is visible before its commit"
    commit_files(table, added=[unpack(row["file"]) for row in rows if row["kind"] == FILE_KIND])
    assert table.refresh().scan().count() == 360
    assert sorted((row["partition"], row["offset"]) for row in rows if row["kind"] != FILE_KIND) == [
        (partition, offset) for partition in range(3) for offset in range(12)
    ]
    nothing = planner.partitions(end, end)
    assert [list(worker.read(part)) for part in nothing] == [[]]


def test_the_generic_source_stays_free_of_the_step(source: RunningSource) -> None:
    reader = UdSource({"address": source.address, "startingOffsets": "earliest"}).streamReader(None)
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset())
    batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 36
    assert batches[0].schema.names[0] == "payload"


def test_the_planner_waits_while_pages_come_and_a_skipped_look_costs_no_record(
    catalog: CatalogSettings, source: RunningSource
) -> None:
    made = pickle.loads(dumps(page_source(CANDLES, catalog, Pace(3_600.0, 3_600.0))))
    planner = made({"address": source.address, "minPartitions": "2", "startingOffsets": "earliest"}).streamReader(None)
    start = planner.initialOffset()
    first = planner.latestOffset()
    assert sum(from_json(first).values()) == 36

    def add() -> None:
        payload, headers = page(control(0, 10))
        source.fake.add(0, payload, "k", headers)

    add()
    second = planner.latestOffset()
    assert sum(from_json(second).values()) == 37, "nothing waits for the first batch"
    add()
    assert planner.latestOffset() == second, "further pages come"
    add()
    assert planner.latestOffset() == second
    third = planner.latestOffset()
    assert sum(from_json(third).values()) == 39, "no further page has come"
    planned = [planner.partitions(*bounds) for bounds in ((start, first), (first, second), (second, third))]
    sizes = [sum(each.end - each.start for part in parts for each in part.ranges) for parts in planned]
    assert sizes == [36, 1, 2]


class Log:
    """Log of two partitions, and the planner that looks at it at given times."""

    def __init__(self, pace: Pace, full: int) -> None:
        self.ends = {0: 5, 1: 5}
        self._spacing = Spacing(pace, full)

    def at(self, now_s: float, *grown: int) -> int:
        """Let the partitions grow, and return the number of records up to the end of the batch."""
        for partition, count in enumerate(grown):
            self.ends[partition] += count
        end = self._spacing.next(lambda: to_json(self.ends), lambda: dict(self.ends), now_s=now_s)
        return sum(from_json(end).values())


def test_batches_start_some_seconds_apart_unless_one_is_quiet_or_full() -> None:
    log = Log(Pace(10.0), 4)
    assert log.at(0.0) == 10, "where the query starts"
    assert log.at(3.0, 1) == 10
    assert log.at(10.0) == 11
    assert log.at(19.9, 2) == 11, "the next batch collects"
    assert log.at(20.0, 0, 1) == 14
    assert log.at(50.0) == 14
    assert log.at(60.0, 1) == 15, "after a quiet time nobody waits"
    assert log.at(70.0, 2, 2) == 19, "a full batch"
    assert log.at(70.1, 1) == 20, "is followed at once"
    assert log.at(70.2, 1) == 20


def test_a_quick_batch_is_followed_sooner_but_leaves_time_to_others() -> None:
    log = Log(Pace(10.0, soonest_seconds=5.0), 1_000)
    assert log.at(0.0) == 10
    assert [log.at(20.0, 1), log.at(21.0)] == [11, 11], "it took 1 s"
    assert [log.at(24.9, 1), log.at(25.0)] == [11, 12], "so the next one begins 5 s after its start"
    assert [log.at(29.0), log.at(30.9, 1), log.at(31.0)] == [12, 12, 13], "it took 4 s"
    assert [log.at(39.5), log.at(40.9, 1), log.at(41.0)] == [13, 13, 14], "never later than without"
    assert [log.at(42.0), log.at(43.0, 1), log.at(46.0)] == [14, 14, 15], "the next call says nothing of its length"


def test_a_batch_collects_for_as_long_as_the_one_before_was_large_while_records_come() -> None:
    log = Log(Pace(1.0, 0.1), 8)
    assert log.at(0.0) == 10, "where the query starts"
    assert log.at(0.0, 1) == 11, "a single page never waits"
    assert log.at(0.1, 3, 2) == 16, "nor what comes a little later"
    assert log.at(0.2, 2) == 16, "after five the next batch collects for half a second"
    assert log.at(0.3, 1) == 16
    assert log.at(0.4) == 19, "unless no further one comes"
    assert log.at(0.5) == 19
    assert log.at(0.55, 1) == 19
    assert log.at(0.6, 1) == 19
    assert log.at(0.71, 1) == 22, "no longer than that"
    assert log.at(0.8, 3, 4) == 22
    assert log.at(0.9, 1) == 30, "nor while a full batch waits"
    assert log.at(0.9, 1) == 31, "and what follows a full one does not wait"


def test_a_collecting_batch_waits_no_longer_than_the_pace_says() -> None:
    log = Log(Pace(1.0, 0.1), 1_000)
    log.at(0.0)
    assert log.at(0.0, 90) == 100
    taken = [log.at(tenths / 10, 1) for tenths in range(1, 10)]
    assert taken == [100] * 9
    assert log.at(1.0) == 109
