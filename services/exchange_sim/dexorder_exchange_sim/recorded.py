"""Recorded candles and trades from files, served unchanged, with their gaps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dexorder_exchange_sim.candles import CandleRequest, Candles, Source, aggregate
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import PERIODS, Period
from dexorder_exchange_sim.trades import RecordedTrades, Trades

_TRADES = "trades"
_TRADE_COLUMNS = ("timestamp", "id", "side", "price", "amount")
_TIME_COLUMNS = ("timestamp", "time", "open_time")
_VALUE_COLUMNS = ("open", "high", "low", "close", "volume")
_NO_CANDLES = Candles(np.array([], np.int64), *(np.array([], np.float64) for _ in range(5)))
_EARLIEST_MS = 10**11
"""1973; a smaller timestamp is in seconds."""


class RecordedMarket:
    """Recorded candles of one symbol, by period. A missing period is aggregated from a finer one."""

    def __init__(self, instrument: SimInstrument, tables: dict[str, Candles]) -> None:
        self.instrument = instrument
        self._tables = tables
        self._sums: dict[str, tuple[int, Candles]] = {}

    def candles(self, period: Period, query: CandleRequest, *, now_ns: int) -> Candles:
        """See `Source.candles`; a recorded candle is visible once it ends by ``now_ns``."""
        return self._finished(period, now_ns // 1_000_000_000).asked(query)

    def newest_s(self, *, now_ns: int) -> int:
        """See `Source.newest_s`: the end of the recording, or now if that is earlier."""
        ends = (int(rows.open_s[-1]) + PERIODS[name].step_s for name, rows in self._tables.items())
        return min(max(ends), now_ns // 1_000_000_000)

    def _finished(self, period: Period, now_s: int) -> Candles:
        recorded = self._tables.get(period.name)
        if recorded is not None:
            return recorded[: _finished_count(recorded, period, now_s)]
        finer = next((base for name, base in PERIODS.items() if name in self._tables and period.nests(base)), None)
        if finer is None:
            return _NO_CANDLES
        base = self._tables[finer.name]
        count = _finished_count(base, finer, now_s)
        kept = self._sums.get(period.name)
        if kept is None or kept[0] != count:
            kept = self._sums[period.name] = (count, aggregate(base[:count], period))
        return kept[1]


def _finished_count(rows: Candles, period: Period, now_s: int) -> int:
    """Return the number of rows that end by now."""
    running = period.open_s(period.index(now_s))
    return int(np.searchsorted(rows.open_s, running))


def load(specs: Iterable[str]) -> list[Source]:
    """Read recorded files.

    Args:
        specs: ``FILE=SYMBOL``, ``FILE=SYMBOL@PERIOD`` or ``FILE=SYMBOL@trades``. FILE is parquet or CSV. Candles have a
            time column in milliseconds, open, high, low, close, volume and, if there are several periods,
            ``timeframe``; several files may name one symbol if their periods differ. Without ``timeframe`` and PERIOD,
            the spacing of the rows decides. Trades have timestamp (milliseconds), id, side, price and amount; the
            candles of all periods are made from them.
    Raises:
        ValueError: A spec or a file can't be served exactly; the message names it.
    """
    tables: dict[str, dict[str, Candles]] = {}
    trades: dict[str, Source] = {}
    for spec in specs:
        file, _, target = spec.rpartition("=")
        symbol, _, period = target.partition("@")
        if not file or symbol.count("/") != 1 or (period and period not in (*PERIODS, _TRADES)):
            raise ValueError(f"recorded {spec!r} is not FILE=BASE/QUOTE, with @PERIOD or @trades behind it")
        if symbol in trades or (period == _TRADES and symbol in tables):
            raise ValueError(f"recorded {spec!r}: {symbol} is already served from another file")
        if period == _TRADES:
            trades[symbol] = _trades_market(symbol, read_trades(Path(file)))
            continue
        held = tables.setdefault(symbol, {})
        for name, rows in read_file(Path(file), period or None).items():
            if name in held:
                raise ValueError(f"recorded {spec!r}: {symbol} {name} is already served from another file")
            held[name] = rows
    return [*(_market(symbol, held) for symbol, held in tables.items()), *trades.values()]


def _trades_market(symbol: str, trades: Trades) -> RecordedTrades:
    base, quote = symbol.split("/")
    return RecordedTrades(SimInstrument(base, quote, listed_s=int(trades.time_ms[0]) // 1000), trades)


def read_trades(path: Path) -> Trades:
    """Return the trades of one file; see `load` for columns and errors."""
    table = _table(path)
    missing = [name for name in _TRADE_COLUMNS if name not in table.column_names]
    if missing or not table.num_rows:
        raise ValueError(f"recorded {path}: needs rows with all of {_TRADE_COLUMNS}")
    ids: NDArray[np.int64] = table["id"].cast(pa.int64()).to_numpy()
    order = np.argsort(ids, kind="stable")
    columns = {name: table[name].to_numpy()[order] for name in ("timestamp", "price", "amount")}
    time_ms = columns["timestamp"].astype(np.int64)
    if (np.diff(ids[order]) != 1).any() or (np.diff(time_ms) < 0).any() or time_ms[0] < _EARLIEST_MS:
        raise ValueError(f"recorded {path}: needs consecutive ids, and times in milliseconds that do not decrease")
    place = np.arange(len(time_ms))
    within = place - np.maximum.accumulate(np.where(np.diff(time_ms, prepend=-1) > 0, place, 0))
    maker = np.array([side == "sell" for side in table["side"].to_pylist()])[order]
    return Trades(
        ids[order],
        time_ms,
        np.minimum(within + 1, 998),
        columns["price"].astype(np.float64),
        columns["amount"].astype(np.float64),
        maker,
    )


def _table(path: Path) -> Any:
    return pyarrow.csv.read_csv(path) if ".csv" in path.suffixes else pq.read_table(path)


def _market(symbol: str, tables: dict[str, Candles]) -> RecordedMarket:
    base, quote = symbol.split("/")
    listed_s = min(int(rows.open_s[0]) for rows in tables.values())
    return RecordedMarket(SimInstrument(base, quote, listed_s=listed_s), tables)


def read_file(path: Path, period: str | None) -> dict[str, Candles]:
    """Return the candles of one file by period name; see `load` for columns and errors."""
    table = _table(path)
    time = next((name for name in _TIME_COLUMNS if name in table.column_names), None)
    missing = [name for name in _VALUE_COLUMNS if name not in table.column_names]
    if time is None or missing or not table.num_rows:
        raise ValueError(f"recorded {path}: needs rows with one of {_TIME_COLUMNS} and all of {_VALUE_COLUMNS}")
    if "timeframe" not in table.column_names:
        return _named(path, period, _rows(path, table, time))
    names = [str(name) for name in pc.unique(table["timeframe"]).to_pylist()]
    unknown = [name for name in names if name not in PERIODS]
    if unknown:
        raise ValueError(f"recorded {path}: unknown timeframe {unknown[0]!r}; known: {', '.join(PERIODS)}")
    parts = {
        name: table.filter(pc.equal(table["timeframe"], pa.scalar(name, table["timeframe"].type)))
        for name in names
        if period in (None, name)
    }
    return {name: _checked(path, PERIODS[name], _rows(path, part, time)) for name, part in parts.items()}


def _named(path: Path, period: str | None, rows: Candles) -> dict[str, Candles]:
    if period is None:
        spacing = int(np.gcd.reduce(np.diff(rows.open_s))) if len(rows) > 1 else 0
        fits = [p for p in PERIODS.values() if p.step_s and spacing % p.step_s == 0] if spacing else []
        if not fits:
            raise ValueError(f"recorded {path}: the rows do not determine the period; use FILE=SYMBOL@PERIOD")
        period = max(fits, key=lambda p: p.step_s).name
    return {period: _checked(path, PERIODS[period], rows)}


def _rows(path: Path, table: Any, time: str) -> Candles:
    """Return the rows of an Arrow table in time order."""
    stamps = table[time]
    if pa.types.is_timestamp(stamps.type):
        stamps = stamps.cast(pa.timestamp("ms")).cast(pa.int64())
    times_ms: NDArray[np.int64] = stamps.to_numpy().astype(np.int64)
    if times_ms.min() < _EARLIEST_MS or (times_ms % 1000).any():
        raise ValueError(f"recorded {path}: {time} must be whole seconds in milliseconds since the epoch")
    order = np.argsort(times_ms, kind="stable")
    values = [table[name].to_numpy().astype(np.float64)[order] for name in _VALUE_COLUMNS]
    if not all(np.isfinite(column).all() for column in values):
        raise ValueError(f"recorded {path}: empty or infinite values")
    return Candles(times_ms[order] // 1000, *values)


def _checked(path: Path, period: Period, rows: Candles) -> Candles:
    if (np.diff(rows.open_s) == 0).any():
        raise ValueError(f"recorded {path}: duplicate {period.name} candle")
    if (period.opens_s(period.indexes(rows.open_s)) != rows.open_s).any():
        raise ValueError(f"recorded {path}: a row opens off the {period.name} grid")
    return rows
