"""Data source of a table's pages: records of a source.v1 server, decoded and written to files where they are read.

Its rows are those of ``files.Stage``: control rows, and the files that the workers wrote. A record is then never sent
from Python to Java and back. In all else it is ``udsource``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from services.common.lake.catalog import CatalogSettings
from spark.pipeline.dead_letters import LetterLayout
from spark.pipeline.decode import DECODED_DDL, Rules
from spark.pipeline.files import Layout, Stage
from spark.source.offsets import OffsetRange, share
from spark.source.options import SourceOptions
from spark.source.replay import RangePartition
from spark.source.udsource import UdSource, UdStreamReader
from spark.tables.table import PageTable

PAGES = "dexorder-pages"
"""Format of the data source."""
_PAGES_PER_TASK = 8
"""Fewer pages are decoded sooner than a further task would start, and it would write a file more."""


@dataclass
class PagesPartition(InputPartition):
    """Records that one task decodes, and its work."""

    stage: Stage
    ranges: list[OffsetRange]


def page_source(table: PageTable, catalog: CatalogSettings) -> type[DataSource]:
    """Return the data source that writes files of ``table``, to be registered before ``format(PAGES)``."""

    class PageSource(UdSource):
        """Data source with the table and its catalog, which options, being text, cannot have."""

        @classmethod
        def name(cls) -> str:
            return PAGES

        def schema(self) -> str:
            return DECODED_DDL

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return PageStreamReader(SourceOptions.parse(self.options), table, catalog)

    return PageSource


class PageStreamReader(UdStreamReader):
    """Reader of control rows and files."""

    def __init__(self, options: SourceOptions, table: PageTable, settings: CatalogSettings) -> None:
        super().__init__(replace(options, min_partitions=1))
        self._tasks = options.min_partitions
        self._table = table
        self._settings = settings
        self._catalog: Catalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without planner and catalog: workers do not plan."""
        return vars(self) | super().__getstate__() | {"_catalog": None}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, at most ``minPartitions``: each writes a file per partition of the table."""
        planned = super().partitions(start, end)
        ranges = [each.part for each in planned if isinstance(each, RangePartition) and each.part]
        self._catalog = self._catalog or self._settings.load()
        layout = Layout.of(self._table, self._catalog.load_table(self._table.name))
        stage = Stage(layout, LetterLayout.of(self._options.address, self._catalog), Rules(time.time_ns()))
        tasks = min(self._tasks, sum(each.end - each.start for each in ranges) // _PAGES_PER_TASK)
        return [PagesPartition(stage, part) for part in share(ranges, max(tasks, 1)) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield control rows and files of one task, in a worker."""
        assert isinstance(partition, PagesPartition)
        records = chain.from_iterable(RangePartition(each).read(self._options) for each in partition.ranges)
        return partition.stage.run(records)
