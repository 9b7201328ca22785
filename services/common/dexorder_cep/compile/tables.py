"""Tables that a trigger may read, and the order of the values in the rows that the engine is fed. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dexorder_cep.compile.typed import TICKER_SLOT, TypedColumn
from dexorder_cep.compile.types import BIGINT, DOUBLE, ROWTIME, STRING
from dexorder_cep.language.refusals import refuse
from dexorder_cep.language.syntax import Table
from dexorder_common.model.periods import PERIOD_SECONDS

Source = Literal["ohlc", "ticks"]
TICKER = TypedColumn("ticker", STRING, TICKER_SLOT)
TIME_SLOT = 0
"""Slot of ``ts`` in every row."""

CANDLE_COLUMNS = (
    TICKER,
    TypedColumn("ts", ROWTIME, TIME_SLOT),
    TypedColumn("open", DOUBLE, 1),
    TypedColumn("high", DOUBLE, 2),
    TypedColumn("low", DOUBLE, 3),
    TypedColumn("close", DOUBLE, 4),
    TypedColumn("volume", DOUBLE, 5),
    TypedColumn("quote_volume", DOUBLE.or_null(), 6),
    TypedColumn("trades", BIGINT.or_null(), 7),
)
"""Columns of ``ohlc``; a row has open time in ns, open, high, low, close, volume, quote volume, number of trades."""

TICK_COLUMNS = (
    TICKER,
    TypedColumn("ts", ROWTIME, TIME_SLOT),
    TypedColumn("trade_id", STRING, 1),
    TypedColumn("price", DOUBLE, 2),
    TypedColumn("amount", DOUBLE, 3),
    TypedColumn("side", STRING.or_null(), 4),
)
"""Columns of ``ticks``; a row has time in ns, the exchange's id of the trade, price, amount, side."""


class TableSource(NamedTuple):
    """Meaning of a table's name: ``period_seconds`` is 0 for trades, None where the name does not say."""

    source: Source
    period_seconds: int | None
    columns: tuple[TypedColumn, ...]


def find_table(table: Table) -> TableSource:
    """Find a table by its name: ``ticks``, ``ohlc``, or candles of a period, as ``ohlc_5m`` and ``ohlc_1h``.

    Raises:
        InvalidSql: There is no such table.
    """
    if table.name == "ticks":
        return TableSource("ticks", 0, TICK_COLUMNS)
    if table.name == "ohlc":
        return TableSource("ohlc", None, CANDLE_COLUMNS)
    seconds = PERIOD_SECONDS.get(table.name.removeprefix("ohlc_"))
    if seconds is not None and table.name.startswith("ohlc_"):
        return TableSource("ohlc", seconds, CANDLE_COLUMNS)
    periods = ", ".join(f"ohlc_{name}" for name in PERIOD_SECONDS)
    raise refuse(table.at, f"table {table.name[:60]!r} does not exist; use ticks, ohlc or {periods}")
