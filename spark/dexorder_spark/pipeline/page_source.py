"""Data source of a table's pages: records of a source.v1 server, decoded and written to files where they are read.

It yields the rows of ``files.Stage``: control rows, and the files that the workers wrote. A record is then never sent
from Python to Java and back. Otherwise it works like ``udsource``.

Two of the processes that Spark starts for a query only pass the reader on. So the modules of table and catalog, which
take a CPU second and 110 MiB, are imported where they are used.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from dexorder_spark.source.offsets import OffsetRange, Offsets, from_json, share
from dexorder_spark.source.options import SourceOptions
from dexorder_spark.source.replay import RangePartition, ReplayPlanner
from dexorder_spark.source.udsource import UdSource, UdStreamReader

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from dexorder_common.lake.catalog import CatalogSettings
    from dexorder_spark.pipeline.files import Stage
    from dexorder_spark.tables.table import PageTable

_FORMAT = "dexorder-pages"


@dataclass
class PagesPartition(InputPartition):
    """Records that one task decodes, and its work."""

    stage: Stage
    ranges: list[OffsetRange]


@dataclass(frozen=True)
class Pace:
    """Rule when a batch starts. A batch costs about as much with one record as with fifty, and leaves small files.

    Attributes:
        seconds: Longest time between the starts of two batches while records come.
        record_seconds: Time after the start of a batch for each of its records before the next one starts, as long
            as more records come; None for always ``seconds``. So a burst is collected, and one page never waits.
        soonest_seconds: Shortest time between the starts of two batches, where quick ones may follow sooner: after
            one and a half times as long as the last one took.
    """

    seconds: float = 0.0
    record_seconds: float | None = None
    soonest_seconds: float | None = None


AT_ONCE = Pace()
_IDLE_FACTOR = 1.5
"""Time from the start of a batch to that of the next one, in lengths of it: a third of the time is left to others."""


class Spacing:
    """Decision when a planner looks for the next batch.

    The first records after a quiet time do not wait, nor does anybody while a full batch waits.
    """

    def __init__(self, pace: Pace, full: int | None) -> None:
        """Start a batch at once if ``full`` records wait for it."""
        self._pace = pace
        self._full = full
        self._last: dict[str, Any] | None = None
        self._seen: Offsets = {}
        self._begun_s: float | None = None
        """Start of the batch that runs."""
        self._due_s = 0.0

    def next(self, look: Callable[[], dict[str, Any]], peek: Callable[[], Offsets], *, now_s: float) -> dict[str, Any]:
        """Return the end of the next batch from ``look``, or again the end of the last batch, which has ended.

        Args:
            peek: Returns the end of the log.
        """
        self._note_end(now_s)
        if self._last is not None and now_s < self._due_s and self._still_collects(peek):
            return self._last
        end = look()
        if end != self._last:
            size = 0 if self._last is None else _size(from_json(self._last), from_json(end))
            self._due_s = now_s + self._wait_s(size)
            self._last = end
            self._seen = from_json(end)
            self._begun_s = now_s
        return end

    def _note_end(self, now_s: float) -> None:
        """Let the next batch follow sooner after a quick one."""
        begun_s, soonest_s, self._begun_s = self._begun_s, self._pace.soonest_seconds, None
        if begun_s is not None and soonest_s is not None:
            self._due_s = min(self._due_s, begun_s + max(soonest_s, _IDLE_FACTOR * (now_s - begun_s)))

    def _wait_s(self, size: int) -> float:
        if self._full is not None and size >= self._full:
            return 0.0
        each_s = self._pace.record_seconds
        return self._pace.seconds if each_s is None else min(self._pace.seconds, size * each_s)

    def _still_collects(self, peek: Callable[[], Offsets]) -> bool:
        """Return whether the next batch is to become larger."""
        if self._pace.record_seconds is None:
            return True
        before, self._seen = self._seen, dict(peek())
        waiting = _size(from_json(self._last or {}), self._seen)
        is_full = self._full is not None and waiting >= self._full
        return waiting == 0 or (self._seen != before and not is_full)


def _size(start: Offsets, end: Offsets) -> int:
    return sum(offset - start.get(partition, 0) for partition, offset in end.items())


def format_of(table: PageTable) -> str:
    """Return the name of the table's data source."""
    return f"{_FORMAT}-{table.name.rpartition('.')[2]}"


def page_source(table: PageTable, catalog: CatalogSettings, pace: Pace = AT_ONCE) -> type[DataSource]:
    """Return the data source that writes files of ``table``, to be registered before ``format(format_of(table))``."""

    from dexorder_spark.pipeline.controls import DECODED_DDL

    name, ddl, target = format_of(table), DECODED_DDL, pickle.dumps((table, catalog))

    class PageSource(UdSource):
        """Data source with the table and its catalog, which options, being text, cannot have."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return ddl

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return PageStreamReader(SourceOptions.parse(self.options), target, pace)

    return PageSource


class PageStreamReader(UdStreamReader):
    """Reader of control rows and files."""

    def __init__(self, options: SourceOptions, target: bytes, pace: Pace = AT_ONCE) -> None:
        """Keep the target, a pickled pair of table and settings of the catalog, until tasks are planned."""
        super().__init__(replace(options, min_partitions=1))
        self._tasks = options.min_partitions
        self._target = target
        self._spacing = Spacing(pace, options.max_records)
        self._opened: tuple[PageTable, Catalog] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without planner and catalog: workers do not plan."""
        return super().__getstate__() | {"_opened": None}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; until it is due, the end of the last one."""
        return self._spacing.next(super().latestOffset, self._end_of_log, now_s=time.monotonic())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, at most ``minPartitions``: each writes a file per partition of the table."""
        planned = super().partitions(start, end)
        ranges = [each.part for each in planned if isinstance(each, RangePartition) and each.part]
        stage = self._stage()
        pages = sum(each.end - each.start for each in ranges)
        tasks = min(self._tasks, pages // stage.layout.table.pages_per_task)
        return [PagesPartition(stage, part) for part in share(ranges, max(tasks, 1)) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield control rows and files of one task, in a worker."""
        assert isinstance(partition, PagesPartition)
        records = chain.from_iterable(RangePartition(each).read(self._options) for each in partition.ranges)
        return partition.stage.run(records)

    def _end_of_log(self) -> Offsets:
        planner = self._plan()
        assert isinstance(planner, ReplayPlanner)  # replay=always
        return planner.end_of_log()

    def _stage(self) -> Stage:
        from dexorder_spark.pipeline.controls import Rules
        from dexorder_spark.pipeline.files import FileLayout, Stage
        from dexorder_spark.records.dead_letters import LetterLayout

        if self._opened is None:
            table, settings = pickle.loads(self._target)  # noqa: S301
            self._opened = table, settings.load()
        table, catalog = self._opened
        layout = FileLayout.of(table, catalog.load_table(table.name))
        return Stage(layout, LetterLayout.of(self._options.address, catalog), Rules(time.time_ns()))
