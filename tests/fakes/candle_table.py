"""Small Iceberg table of hourly candles, as Spark would have written it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import parse_time

TICKER, OTHER = "BTC/USDT.SIM", "ETH/USDT.SIM"
START = parse_time("2024-01-01")
HOURS = 30
HOUR_NS = 3_600_000_000_000
SPAN = TimeRange(START, START + HOURS * HOUR_NS)


@dataclass(frozen=True)
class Warehouse:
    """A catalog with ``trading.ohlc``: thirty hourly candles of TICKER; the first snapshot has one fewer."""

    properties: dict[str, str]
    first_snapshot: int
    last_snapshot: int


def candles(ticker: str, first: int, count: int) -> pa.Table:
    """Return hourly candles; the price of hour i is 100 + i."""
    hours = range(first, first + count)
    times = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=i) for i in hours]
    prices = {
        name: [100.0 + i + added for i in hours]
        for name, added in (("open", 0), ("high", 2), ("low", -1), ("close", 1))
    }
    return pa.table(
        {
            "ticker": [ticker] * count,
            "period_seconds": pa.array([3600] * count, pa.int32()),
            "open_time": pa.array(times, pa.timestamp("us", "UTC")),
            **prices,
            "volume": [1.0 + i for i in hours],
        }
    )


def make_warehouse(root: Path) -> Warehouse:
    """Create the catalog and its table in ``root``."""
    properties = {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}", "warehouse": root.as_uri()}
    catalog: Any = load_catalog("dexorder", **properties)
    catalog.create_namespace("trading")
    table = catalog.create_table("trading.ohlc", schema=candles(TICKER, 0, 1).schema)
    table.append(pa.concat_tables([candles(TICKER, 1, HOURS - 1), candles(OTHER, 0, 3)]))
    first = table.current_snapshot().snapshot_id
    table.append(candles(TICKER, 0, 1))  # after the others, so that only the reader can order them
    last = table.current_snapshot().snapshot_id
    catalog.close()
    return Warehouse(properties, first, last)
