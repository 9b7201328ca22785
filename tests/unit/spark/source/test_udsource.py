"""Choice of the planner, and the reader that workers get."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.plain import PlainPlanner, RecordsPartition
from dexorder_spark.source.replay import RangePartition, ReplayPlanner
from dexorder_spark.source.udsource import (
    UdBatchReader,
    UdSource,
    UdStreamReader,
    decoding_source,
    read_partition,
    replayed_from,
)
from tests.unit.spark.source.plain_source import PlainSource, RunningPlainSource, record, serving

dumps: Callable[[object], bytes] = cloudpickle.dumps
ENDS = (("x-starts", "0:0"), ("x-ends", "0:7"), ("x-committed", ""))
MARK, NUMBERS = {"run": "older", "batch": 3}, {"0": 5}


@pytest.fixture
def running() -> Iterator[RunningPlainSource]:
    with serving(PlainSource([record(n) for n in range(3)])) as running:
        yield running


def options(running: RunningPlainSource, replay: Any = "auto", retry_seconds: float = 5) -> SourceOptions:
    return SourceOptions(running.address, retry_seconds=retry_seconds, replay=replay, read_timeout_ms=20)


@pytest.mark.parametrize(
    ("replay", "metadata", "count", "way"),
    [
        ("auto", ENDS, 0, "replay"),
        ("auto", (), 0, "plain"),
        ("auto", (), -1, "plain"),  # a source that does not count; ours answers with an error instead
        ("always", ENDS, 0, "replay"),
        ("always", (), 0, InvalidRequest("option replay=always: .* no x-ends")),
        ("always", (), -1, Unavailable("does not know its offsets")),
        ("never", ENDS, 0, "plain"),
        ("never", (), 0, "plain"),
    ],
)
def test_the_server_and_the_option_say_how_it_is_read(
    running: RunningPlainSource, replay: str, metadata: tuple[tuple[str, str], ...], count: int, way: str | Exception
) -> None:
    running.source.metadata = metadata
    running.source.count = count
    if isinstance(way, Exception):
        with pytest.raises(type(way), match=str(way)):
            UdStreamReader(options(running, replay, 0.2)).initialOffset()
        return
    assert (replayed_from(options(running, replay), 5) is not None) == (way == "replay")
    reader = UdStreamReader(options(running, replay))
    reader.initialOffset()
    assert isinstance(reader._planner, ReplayPlanner if way == "replay" else PlainPlanner)
    reader.stop()


@pytest.mark.parametrize(
    ("replay", "checkpoint", "way"),
    [
        ("auto", MARK, PlainPlanner),
        ("auto", NUMBERS, ReplayPlanner),
        ("never", MARK, PlainPlanner),
        ("always", NUMBERS, ReplayPlanner),
        ("always", MARK, "started without replay, .* is now read with replay"),
        ("never", NUMBERS, "started with replay, .* is now read without replay"),
    ],
)
def test_a_checkpoint_is_continued_in_its_mode_without_a_call_to_the_server(
    running: RunningPlainSource, replay: str, checkpoint: dict[str, Any], way: Any
) -> None:
    running.stop()
    reader = UdStreamReader(options(running, replay))
    if isinstance(way, str):
        with pytest.raises(InvalidRequest, match=way):
            reader.partitions(checkpoint, checkpoint)
    else:
        assert len(reader.partitions(checkpoint, checkpoint)) == 1
        assert isinstance(reader._planner, way)
        reader.stop()
    running.start()


def test_a_checkpoint_after_the_choice_of_a_planner_is_checked(running: RunningPlainSource) -> None:
    reader = UdStreamReader(options(running))
    reader.latestOffset()  # as with Trigger.AvailableNow
    with pytest.raises(InvalidRequest, match="started with replay"):
        reader.partitions(NUMBERS, NUMBERS)
    reader.stop()


def test_a_reader_is_pickled_without_its_calls(running: RunningPlainSource) -> None:
    reader = UdStreamReader(options(running))
    end = reader.latestOffset()
    part = pickle.loads(pickle.dumps(reader.partitions(MARK, end)[0]))
    copy = pickle.loads(pickle.dumps(reader))
    assert [row["payload"] for batch in copy.read(part) for row in batch.to_pylist()] == [b"0", b"1", b"2"]
    reader.stop()


@pytest.mark.parametrize("part", [RangePartition(None), RecordsPartition(b"")])
def test_a_task_without_records_reads_nothing(part: Any) -> None:
    assert list(read_partition(SourceOptions("nowhere:1"), part)) == []


def test_a_batch_read_of_a_missing_server_fails_at_once(running: RunningPlainSource) -> None:
    running.stop()
    for replay in ("auto", "always", "never"):
        with pytest.raises(Unavailable, match=f"source {running.address}"):
            UdBatchReader(options(running, replay)).partitions()
    running.start()


def test_options_are_refused_before_anything_is_opened() -> None:
    source = UdSource({"address": "nowhere:1", "replay": "perhaps"})
    for make in (source.streamReader, source.reader):
        with pytest.raises(InvalidRequest, match="replay 'perhaps'"):
            make(None)


def payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["payload"])


def test_a_source_decodes_records_where_they_are_read(running: RunningPlainSource) -> None:
    made = pickle.loads(dumps(decoding_source("payloads", "payload binary", payloads)))  # as Spark sends it
    source = made({"address": running.address, "readTimeoutMs": "20"})
    assert (made.name(), source.schema()) == ("payloads", "payload binary")
    batch_reader, planner = source.reader(None), source.streamReader(None)
    parts = {"read": batch_reader.partitions(), "readStream": []}
    start = planner.initialOffset()
    parts["readStream"] = planner.partitions(start, planner.latestOffset())
    for reader, some in ((batch_reader, parts["read"]), (planner, parts["readStream"])):
        worker = pickle.loads(dumps(reader))
        found = [batch for part in some for batch in worker.read(part)]
        assert [batch.schema.names for batch in found] == [["payload"]] * len(found)
        assert sum(batch.num_rows for batch in found) == 3
    planner.stop()
