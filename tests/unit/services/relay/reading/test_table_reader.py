"""Open times of a series in files that hold several series."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from dexorder_common.lake.tables import OHLC
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading.table_reader import TableReader
from tests.unit.services.relay.harness import TICKER, Pipeline, at


def test_open_times_are_those_of_the_series_and_the_range_only(tmp_path: Path) -> None:
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    reader, series, span = TableReader(catalog), Series(TICKER, 60), TimeRange(at(2), at(6))
    assert reader.candles().times(series, span).tolist() == []
    table = OHLC.load_or_create(catalog)
    assert reader.candles().times(series, span).tolist() == []
    pipeline = Pipeline(catalog, None)
    rows = [
        pipeline.rows([0, 2, 3, 6]),
        pipeline.rows([3, 5], period_seconds=300),
        *(pipeline.rows([2, 4], ticker=f"{base}/USDT.SIM") for base in ("ETH", "LTC", "XRP", "BNB", "ADA", "SOL")),
    ]
    table.append(pa.concat_tables(rows))
    table.append(pipeline.rows([5, 5]))
    files = [pq.read_table(task.file.file_path) for task in table.scan().plan_files()]
    assert any(len(set(file["ticker"].to_pylist())) > 1 for file in files), "the test needs a file of several series"
    assert sorted(reader.candles().times(series, span)) == [at(2), at(3), at(5), at(5)]
