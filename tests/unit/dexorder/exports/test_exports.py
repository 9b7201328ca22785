"""Files for backtesting programs, as pandas, pyarrow and numpy read them; nightly/test_exports.py has the peers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dexorder.errors import ExportFailed, RequestRefused
from dexorder.exports.formats import FORMATS, export_format
from dexorder.rows.table import Rows
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.datasets import FUNDING, TRADES
from dexorder_common.model.instrument import Series

SPOT, SWAP = "BTC/USDT.SIM", "BTC/USDT:USDT.SIM"
HOUR_US, START_US = 3_600 * 10**6, 1_704_067_200 * 10**6
CLOSES = [44_218.14, 0.1, 1e-8, 43_916.47, 1e10, 1 / 8]


def candles(count: int = 6, first: int = 0) -> Rows:
    moments = pa.array([START_US + n * HOUR_US for n in range(first, first + count)], pa.int64())
    values = {name: pa.array(CLOSES[:count]) for name in ("open", "high", "low", "close", "volume")}
    rows: dict[str, Any] = {"ticker": [SPOT] * count, "period_seconds": pa.array([3_600] * count, pa.int32())}
    times = {"open_time": moments.cast(pa.timestamp("us", "UTC"))}
    return Rows(pa.table(rows | times | values))


def trades() -> Rows:
    moments = pa.array([START_US, START_US, START_US + 1_500], pa.int64()).cast(pa.timestamp("us", "UTC"))
    values: dict[str, Any] = {"trade_id": ["9", "10", "11"], "price": [1.5, 2.25, 3.0], "amount": [0.001, 2.0, 7.0]}
    return Rows(pa.table({"time": moments, **values, "side": ["buy", "sell", None]}))


@pytest.mark.parametrize(
    ("ticker", "period", "name"),
    [(SPOT, 3_600, "BTC_USDT-1h.feather"), (SWAP, 2_592_000, "futures/BTC_USDT_USDT-1Mo-futures.feather")],
)
def test_freqtrade_gets_its_columns_and_names(tmp_path: Path, ticker: str, period: int, name: str) -> None:
    path = FORMATS["freqtrade"].write(candles(), Series(ticker, period), tmp_path)
    assert path == tmp_path / name and [each.name for each in path.parent.iterdir()] == [path.name]
    frame = pd.read_feather(path)
    assert list(frame.columns) == ["date", "open", "high", "low", "close", "volume"]
    assert str(frame["date"].dtype) == "datetime64[ms, UTC]" and frame["close"].tolist() == CLOSES
    assert frame["date"][1] == pd.Timestamp("2024-01-01T01:00Z")


def test_freqtrade_gets_trades(tmp_path: Path) -> None:
    frame = pd.read_feather(FORMATS["freqtrade"].write(trades(), Series(SPOT, dataset=TRADES), tmp_path))
    assert list(frame.columns) == ["timestamp", "id", "type", "side", "price", "amount", "cost"]
    assert frame["timestamp"].tolist() == [START_US // 1_000] * 2 + [START_US // 1_000 + 1]
    assert frame["cost"].tolist() == [0.0015, 4.5, 21.0]


def test_nautilus_gets_the_exact_decimals_and_no_file_twice(tmp_path: Path) -> None:
    write = FORMATS["nautilus"].write
    path = write(candles(), Series(SPOT, 3_600), tmp_path)
    assert path.parent == tmp_path / "data" / "bar" / "BTCUSDT.SIM-1-HOUR-LAST-EXTERNAL"
    assert path.name == "2024-01-01T01-00-00-000000000Z_2024-01-01T06-00-00-000000000Z.parquet"
    table = pq.read_table(path)
    closes: Any = table["close"].to_pylist()
    found = [int.from_bytes(each, "little", signed=True) for each in closes]
    assert found == [int(Decimal(repr(each)) * 10**16) for each in CLOSES]
    assert table.schema.metadata[b"price_precision"] == b"8"
    assert all(not field.nullable for field in table.schema)
    assert write(candles(), Series(SPOT, 3_600), tmp_path) == path, "the same file again takes its place"
    with pytest.raises(ExportFailed, match="overlaps"):
        write(candles(first=5), Series(SPOT, 3_600), tmp_path)
    write(candles(first=6), Series(SPOT, 3_600), tmp_path)
    ticks = write(trades(), Series(SWAP, dataset=TRADES), tmp_path)
    assert ticks.parent == tmp_path / "data" / "trade_tick" / "BTCUSDT-PERP.SIM"
    assert pq.read_table(ticks)["aggressor_side"].to_pylist() == [1, 2, 0]
    for rows, text in (
        (candles(0), "is empty"),
        (Rows(candles(1).to_arrow().set_column(3, "open", [[1e-17]])), "digits"),
    ):
        with pytest.raises(ExportFailed, match=text):
            write(rows, Series(SPOT, 60), tmp_path)


def test_hftbacktest_gets_trades_as_events(tmp_path: Path) -> None:
    path = FORMATS["hftbacktest"].write(trades(), Series(SPOT, dataset=TRADES), tmp_path)
    events = np.load(path)["data"]
    assert path.name == "BTC_USDT-trades.npz" and events.dtype.itemsize == 64
    both = (1 << 31) | (1 << 30) | 2
    assert events["ev"].tolist() == [both | 1 << 29, both | 1 << 28, both]
    assert events["exch_ts"].tolist() == [each * 1_000 for each in (START_US, START_US, START_US + 1_500)]
    assert (events["px"].tolist(), events["qty"].tolist()) == ([1.5, 2.25, 3.0], [0.001, 2.0, 7.0])


def test_a_format_refuses_what_it_does_not_take() -> None:
    for name, series, text in (
        ("zipline", Series(SPOT, 60), "not one of"),
        ("hftbacktest", Series(SPOT, 60), "takes trades, not candles"),
        ("nautilus", Series(SWAP, dataset=FUNDING), "not funding"),
    ):
        with pytest.raises(RequestRefused, match=text):
            export_format(name, series)


def test_a_hostile_symbol_names_no_file_elsewhere(tmp_path: Path) -> None:
    assert OHLC.name  # the columns are those of the table
    for symbol in ("../../x", "a/../../b", "..\\x"):
        for name, rows, dataset in (("freqtrade", candles(), None), ("hftbacktest", trades(), TRADES)):
            series = Series(f"{symbol}.SIM", 0, dataset) if dataset else Series(f"{symbol}.SIM", 3_600)
            path = FORMATS[name].write(rows, series, tmp_path / "out")
            assert path.resolve().is_relative_to((tmp_path / "out").resolve())
        path = FORMATS["nautilus"].write(candles(), Series(f"{symbol}.SIM", 3_600), tmp_path / "out")
        assert path.resolve().is_relative_to((tmp_path / "out" / "data").resolve())
