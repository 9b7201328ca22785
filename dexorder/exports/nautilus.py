"""nautilus_trader's ParquetDataCatalog: bars and trade ticks with prices of 128 bits, as in its wheels for Linux.

Prices and sizes are decimals there, of one precision in a file: the fewest digits that show each double of the column
as Python prints it. A bar has the time at which it ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from arro3.core import Array, DataType, Field, Schema, Table
from arro3.io import write_parquet

from dexorder.errors import ExportFailed
from dexorder.exports.files import new_file, symbol_of
from dexorder.rows.table import Rows, times_ns
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.periods import PERIODS, next_open
from dexorder_common.model.times import iso

_DIGITS = 16
"""Digits after the point of the 128-bit integers, and the largest precision."""
_BYTES = 16
_UNITS = {"s": "SECOND", "m": "MINUTE", "h": "HOUR", "d": "DAY", "w": "WEEK", "M": "MONTH"}
_SIDES = {"buy": 1, "sell": 2}
_NAME = re.compile(r"(.{30})_(.{30})\.parquet")


def instrument_id(ticker: str) -> str:
    """Return the id that nautilus_trader gives the market of a crypto exchange.

    >>> instrument_id("BTC/USDT.BINANCE"), instrument_id("BTC/USDT:USDT.BINANCE")
    ('BTCUSDT.BINANCE', 'BTCUSDT-PERP.BINANCE')
    """
    pair, _, settle = symbol_of(ticker).partition(":")
    name = pair.replace("/", "")
    if settle:
        name += f"-{settle.partition('-')[2]}" if "-" in settle else "-PERP"
    return f"{name}.{Instrument.parse(ticker).venue}"


def write(rows: Rows, series: Series, folder: Path) -> Path:
    """Write the rows of a series; ExportFailed for another file of the catalog that overlaps with them."""
    if not rows.num_rows:
        raise ExportFailed(f"{series} is empty in the range; nautilus can't read a file without rows")
    market = instrument_id(series.ticker)
    if series.dataset is TRADES:
        place, key, table = folder / "data" / "trade_tick" / market, {}, _ticks(rows)
    else:
        period = PERIODS[series.period_seconds]
        kind = f"{market}-{period[:-1]}-{_UNITS[period[-1]]}-LAST-EXTERNAL"
        place, key, table = folder / "data" / "bar" / kind, {"bar_type": kind}, _bars(rows, series.period_seconds)
    columns, precisions, times = table
    path = place / f"{_file_time(times[0])}_{_file_time(times[-1])}.parquet"
    _check_alone(place, path)
    metadata = {**key, "instrument_id": market, **{name: str(value) for name, value in precisions.items()}}
    fields = [Field(name, array.type, nullable=False) for name, array in columns.items()]
    with new_file(path) as stream:
        write_parquet(Table.from_arrays(list(columns.values()), schema=Schema(fields, metadata=metadata)), stream)
    return path


def _bars(rows: Rows, period_seconds: int) -> tuple[dict[str, Any], dict[str, int], Sequence[int]]:
    prices = {name: rows[name].to_pylist() for name in ("open", "high", "low", "close")}
    volumes = rows["volume"].to_pylist()
    precision, size = _precision([each for column in prices.values() for each in column]), _precision(volumes)
    times = [next_open(each, period_seconds) for each in times_ns(rows, "open_time")]
    columns = {name: _fixed(values) for name, values in prices.items()}
    columns |= {"volume": _fixed(volumes), "ts_event": _unsigned(times), "ts_init": _unsigned(times)}
    return columns, {"price_precision": precision, "size_precision": size}, times


def _ticks(rows: Rows) -> tuple[dict[str, Any], dict[str, int], Sequence[int]]:
    prices, sizes, times = rows["price"].to_pylist(), rows["amount"].to_pylist(), times_ns(rows, "time")
    sides = [_SIDES.get(side, 0) for side in rows["side"].to_pylist()]
    columns = {
        "price": _fixed(prices),
        "size": _fixed(sizes),
        "aggressor_side": Array(sides, DataType.uint8()),
        "trade_id": Array(rows["trade_id"].to_pylist(), DataType.string()),
        "ts_event": _unsigned(times),
        "ts_init": _unsigned(times),
    }
    return columns, {"price_precision": _precision(prices), "size_precision": _precision(sizes)}, times


def _precision(values: Sequence[float]) -> int:
    """Return the digits after the point that the values need."""
    digits = 0
    for value in set(values):
        exponent = Decimal(repr(value)).normalize().as_tuple().exponent
        digits = max(digits, -exponent if isinstance(exponent, int) else _DIGITS + 1)
    if digits > _DIGITS:
        raise ExportFailed(f"a value needs {digits} digits after the point; nautilus takes at most {_DIGITS}")
    return digits


def _fixed(values: Sequence[float]) -> Any:
    made = [int(Decimal(repr(each)).scaleb(_DIGITS)).to_bytes(_BYTES, "little", signed=True) for each in values]
    return Array(made, DataType.binary(_BYTES))


def _unsigned(values: Sequence[int]) -> Any:
    return Array(values, DataType.uint64())


def _file_time(time_ns: int) -> str:
    """Return a time as in the catalog's names: ``2024-01-01T01-00-00-000000000Z``."""
    return f"{iso(time_ns)[:-1].replace(':', '-')}-{time_ns % 10**9:09}Z"


def _check_alone(place: Path, path: Path) -> None:
    first, last = _ends(path)
    for other in place.glob("*.parquet"):
        if other.name != path.name and _NAME.fullmatch(other.name):
            start, end = _ends(other)
            if start <= last and end >= first:
                raise ExportFailed(f"{other} overlaps with the rows, and nautilus would read both; delete it first")


def _ends(path: Path) -> tuple[str, str]:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return found[1], found[2]
