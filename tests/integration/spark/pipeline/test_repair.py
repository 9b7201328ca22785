"""Removal of wrong rows by the relay from a table that Spark writes: delete files, compaction, further batches."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.instrument import Series
from dexorder_relay.reading.table_reader import TableReader
from dexorder_relay.verification.mending import TableMender
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import TICKER, control, page, span
from tests.fakes.pipeline import Recorder, frame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SERIES = Series(TICKER, 60)


def rows(spark: SparkSession, catalog: CatalogSettings) -> tuple[int, int, float]:
    """Return rows, distinct open times and the sum of prices, as Spark reads them."""
    table = f"{catalog.name}.{OHLC.name}"
    found = spark.sql(f"SELECT count(*), count(DISTINCT open_time), sum(open) FROM {table}").collect()[0]
    return found[0], found[1], found[2]


def test_deleted_rows_stay_deleted_and_the_pipeline_goes_on(spark: SparkSession, trading: CatalogSettings) -> None:
    """A copied file must not bring back rows that a delete file had removed from it."""
    pipeline, name = Pipeline(CANDLES, trading, "test", Recorder()), f"{trading.name}.{OHLC.name}"
    pages = [page(control(0, 60, job=1), 100.0)]
    pipeline.process(frame(spark, pages))
    spark.sql(f"DELETE FROM {name} WHERE minute(open_time) = 35 AND hour(open_time) = 23")
    table = trading.load().load_table(OHLC.name)
    assert any(task.delete_files for task in table.scan().plan_files()), "Spark deletes by merge-on-read"
    assert len(TableReader(trading.load()).candles().times(SERIES, span(0, 60))) == 59
    table.append(table.scan().to_arrow())
    assert rows(spark, trading) == (118, 59, 11_800.0)
    mender = TableMender(trading.load())
    assert mender.mend(mender.look(SERIES, [span(0, 60)], []), [], "test") == 59
    assert rows(spark, trading) == (59, 59, 5_900.0)
    pipeline.process(frame(spark, pages))
    pipeline.process(frame(spark, [page(control(50, 20, job=2), 200.0)]))
    assert rows(spark, trading) == (70, 70, 5_000.0 + 20 * 200.0)
    spark.sql(
        f"CALL {trading.name}.system.rewrite_data_files(table => '{OHLC.name}', options => map('rewrite-all', 'true'))"
    )
    assert rows(spark, trading) == (70, 70, 9_000.0)
