"""freqtrade's data folder: Feather files with the names and columns of its FeatherDataHandler."""

from __future__ import annotations

from pathlib import Path

from arro3.core import Array, DataType, Table
from arro3.io import write_ipc

from dexorder.exports.files import new_file, symbol_of
from dexorder.rows.table import Rows, times_ns
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import PERIODS

_REPLACED = str.maketrans(dict.fromkeys("/ .@$+:\\", "_"))


def write(rows: Rows, series: Series, folder: Path) -> Path:
    """Write the rows of a series; a file of the same pair is replaced."""
    symbol = symbol_of(series.ticker)
    is_future = ":" in symbol
    folder = folder / "futures" if is_future else folder
    name = symbol.translate(_REPLACED)
    if series.dataset is TRADES:
        path, table = folder / f"{name}-trades.feather", _trades(rows)
    else:
        period = PERIODS[series.period_seconds].replace("M", "Mo")
        path = folder / f"{name}-{period}{'-futures' if is_future else ''}.feather"
        table = _candles(rows)
    with new_file(path) as stream:
        write_ipc(table, stream, compression="lz4")
    return path


def _candles(rows: Rows) -> Table:
    columns = {name: rows[name] for name in ("open", "high", "low", "close", "volume")}
    return Table.from_pydict({"date": rows["open_time"].cast(DataType.timestamp("ms", tz="UTC")), **columns})


def _trades(rows: Rows) -> Table:
    prices, amounts = rows["price"].to_pylist(), rows["amount"].to_pylist()
    costs = [price * amount for price, amount in zip(prices, amounts, strict=True)]
    return Table.from_pydict(
        {
            "timestamp": Array([each // 1_000_000 for each in times_ns(rows, "time")], DataType.int64()),
            "id": rows["trade_id"],
            "type": Array([None] * len(prices), DataType.string()),
            "side": rows["side"],
            "price": rows["price"],
            "amount": rows["amount"],
            "cost": Array(costs, DataType.float64()),
        }
    )
