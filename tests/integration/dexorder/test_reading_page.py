"""docs/reading-the-data.md, executed."""

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import COVERAGE, FUNDING, OHLC, RETRACTIONS
from dexorder_common.model.history import PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_spark.tables.table import TABLES
from tests.fakes.candle_table import HOUR_NS, HOURS, OTHER, SPAN, START, TICKER
from tests.fakes.pages import append_coverage, dispatch_id
from tests.fakes.relay_server import FakeRelay, Notify, ended, serving
from tests.reading_page import PAGE, SECTIONS, code_of

NEWS = TimeRange(SPAN.end_ns, SPAN.end_ns + 2 * HOUR_NS)


def candles(ticker: str, first: int, count: int, schema: pa.Schema) -> pa.Table:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [
        {
            "ticker": ticker,
            "period_seconds": 3600,
            "open_time": start + timedelta(hours=i),
            "open": 100.0 + i,
            "high": 102.0 + i,
            "low": 99.0 + i,
            "close": 101.0 + i,
            "volume": 1.0,
            "fetched_at": start,
        }
        for i in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema)


@pytest.fixture
def names(catalog: CatalogSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The page's variables. A request has ended; then two hours more of another ticker were committed."""
    with closing(catalog.load()) as loaded:
        table = loaded.load_table(OHLC.name)
        schema = table.schema().as_arrow()
        old = [PageResult(dispatch_id(1), Series(TICKER, 3600), SPAN, fetched_ns=START, rows=HOURS)]
        append_coverage(loaded, old, now_ns=START)  # before the snapshot, so it is no news
        table.append(candles(TICKER, 0, HOURS, schema))
        announced = table.current_snapshot()
        assert announced is not None
        table.append(candles(OTHER, HOURS, 2, schema))
        new = [PageResult(dispatch_id(1), Series(OTHER, 3600), NEWS, fetched_ns=START, rows=2)]
        append_coverage(loaded, new, now_ns=(announced.timestamp_ms + 1_000) * 1_000_000)
    for name in ("NAME", "URI", "WAREHOUSE"):
        monkeypatch.delenv(f"DEXORDER_CATALOG_{name}", raising=False)
    relay = FakeRelay(
        catalog.properties(), ended(Notify.OK, rows=HOURS, snapshot=announced.snapshot_id), name=catalog.name
    )
    with serving(relay):
        monkeypatch.setenv("DEXORDER_RELAY", relay.address)
        found: dict[str, Any] = {}
        yield found
        if "catalog" in found:
            found["catalog"].close()
        if "database" in found:
            found["database"].close()


def execute(names: dict[str, Any], *titles: str) -> None:
    """Run the code of these sections, in the page's order."""
    for title, block in code_of(titles):
        exec(compile(block, f"reading-the-data.md, {title}", "exec"), names)


def test_every_section_of_the_page_is_run() -> None:
    assert [title for title, _ in SECTIONS] == [
        "With our client",
        "pyiceberg",
        "pandas",
        "polars",
        "DuckDB",
        "Spark",
        "Changes since a time",
    ]
    assert all("```python" in text for _, text in SECTIONS)


def test_python_readers(names: dict[str, Any]) -> None:
    execute(names, "With our client", "pyiceberg", "pandas", "polars", "DuckDB", "Changes since a time")
    assert names["rows"].num_rows == names["arrow"].num_rows == HOURS and names["batches"] == 1
    assert names["rows"] == names["arrow"]
    assert names["newest"].to_arrow().num_rows == HOURS
    assert len(names["frame"]) == HOURS and list(names["daily"]) == [124.0, 130.0]
    assert names["closes"].shape == (HOURS, 2)
    assert names["days"]["high"].to_pylist() == [125.0, 131.0]
    (changed,) = names["changed"]
    assert changed["ticker"].to_pylist() == [OTHER] * 2 and names["seen"] > datetime(2025, 1, 1, tzinfo=UTC)


@pytest.mark.spark
def test_spark(names: dict[str, Any], spark: SparkSession) -> None:
    execute(names, "With our client", "Spark")
    assert names["current"].count() == names["pinned"].count() == HOURS
    assert names["pinned"].agg({"close": "max"}).first()[0] == 130.0


SCHEMAS = {RETRACTIONS.name: RETRACTIONS.schema} | {table.name: table.schema for table in TABLES}


@pytest.mark.parametrize("name", [OHLC.name, FUNDING.name, COVERAGE.name, RETRACTIONS.name])
def test_listed_columns_are_those_of_the_table(name: str) -> None:
    (listed,) = re.findall(rf"\| column of `{re.escape(name)}`.*?\n\n", PAGE, re.S)
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", listed, re.M)
    assert rows == [(field.name, re.match(r"\w+", str(field.field_type))[0]) for field in SCHEMAS[name].fields]  # type: ignore[index]
