"""Python processes that Spark starts for a data source: they load pyspark as it is installed, not from its archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dexorder_spark.runtime.class_archive import home_environment


class WhereFrom(DataSource):
    """One row: the file of pyspark in the planning process, and in the worker."""

    @classmethod
    def name(cls) -> str:
        return "where_from"

    def schema(self) -> str:
        return "planner string, worker string"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        import pyspark

        return [InputPartition(pyspark.__file__)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        import pyspark

        yield partition.value, pyspark.__file__


@pytest.mark.spark
@pytest.mark.skipif(not home_environment(), reason="`make classes` has not run")
def test_no_process_compiles_pyspark_from_the_archive(spark: SparkSession) -> None:
    spark.dataSource.register(WhereFrom)
    (row,) = spark.read.format("where_from").load().collect()
    assert {*row} == {pyspark.__file__}
