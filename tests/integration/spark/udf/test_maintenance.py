"""Tables of UDFs under maintenance: compacted and expired, without a loss of rows or of the state."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.claims import renew_marks
from dexorder_common.lake.tables import udf_table
from dexorder_spark.config import MaintenanceSettings
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.runner import MaintenanceRunner
from dexorder_spark.runtime.locks import WriterLocks
from tests.fakes.pages import TICKER
from tests.fakes.source_server import FakeSource, RunningSource
from tests.fakes.trades import trade, trades_head, trades_record
from tests.unit.spark.udf.rig import definition, running, table_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NAME = udf_table("test").name


def test_a_udf_continues_after_compaction_and_expiry(spark: SparkSession, trading: CatalogSettings) -> None:
    source = RunningSource(FakeSource(partitions=1))
    udf: dict[str, Any] = {"max_records": 1}

    def send(first: int, end: int) -> None:
        for number in range(first, end):
            value, headers = trades_record(trades_head(number, number + 1, page=number), [trade(number)])
            source.fake.add(0, value, TICKER, headers)

    catalog = trading.load()
    settings = MaintenanceSettings(small_files=4, snapshot_hours=0)
    runner = MaintenanceRunner(trading, settings, WriterLocks(), MaintenanceMetrics(CollectorRegistry()))
    try:
        send(0, 8)
        with running(trading, source, definition(), **udf) as rig:
            rig.wait_for(8)
        runner.attach(spark)
        (result,) = runner.maintain([NAME])
        assert (result.table, result.data_files_before) == (NAME, 8) and result.data_files_after < 8
        renew_marks(catalog, before_ns=2**62)
        (result,) = runner.maintain([NAME])
        assert result.expired_snapshots > 0
        send(8, 11)
        with running(trading, source, definition(), **udf) as rig:
            rig.wait_for(11)
        assert rig.stage.status.fed == 3
    finally:
        runner.detach()
        source.stop()
    rows = table_rows(trading)
    assert [(row["sequence"], row["fields"]["count"]) for row in rows] == [(n, n + 1) for n in range(11)]
    found = spark.sql(f"SELECT count(*) AS n, max(doubles['sum']) AS total FROM `{trading.name}`.{NAME}").collect()
    assert (found[0].n, found[0].total) == (11, sum(trade(number).price for number in range(11)))
