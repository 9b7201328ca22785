"""Open times of a series in files that hold several series."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from dexorder_common.lake.tables import OHLC
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.reading.table_reader import NewestLoad, TableReader
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
    asked_ns = time.monotonic_ns()
    assert reader.newest_candles(asked_ns).times(series, span).tolist() == [at(2), at(3)]
    table.append(pipeline.rows([5, 5]))
    files = [pq.read_table(task.file.file_path) for task in table.scan().plan_files()]
    assert any(len(set(file["ticker"].to_pylist())) > 1 for file in files), "the test needs a file of several series"
    assert sorted(reader.candles().times(series, span)) == [at(2), at(3), at(5), at(5)]
    assert reader.newest_candles(asked_ns).times(series, span).tolist() == [at(2), at(3)], "loaded after it"
    assert sorted(reader.newest_candles(time.monotonic_ns()).times(series, span)) == [at(2), at(3), at(5), at(5)]


def test_a_load_serves_those_who_asked_before_it_began_and_so_does_its_failure() -> None:
    clock, loads = count(10, 10), list[str]()

    def load() -> None:
        loads.append("")
        if len(loads) == 2:
            raise OSError("the catalog does not answer")

    newest = NewestLoad(load, lambda: next(clock))
    for asked_ns in (0, 5, 9):
        assert newest.table(asked_ns) is None
    assert len(loads) == 1
    for asked_ns in (10, 15):  # the time at which a load began is not before it
        with pytest.raises(OSError, match="does not answer"):
            newest.table(asked_ns)
    assert len(loads) == 2
    assert newest.table(20) is None
    assert len(loads) == 3
