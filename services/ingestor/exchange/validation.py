"""Validation of an exchange's answer to a query for candles. Pure.

ccxt turns text, HTML and truncated JSON into rows of garbage without an error. It also drops rows before ``since`` or
over the limit, and accepts rows under another market's name. So an answer is checked twice: the raw answer by
`check_rows`, and the rows that ccxt made of it by `read_candles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from services.common.model.page import Candle
from services.common.model.periods import is_on_grid
from services.common.model.time_range import TimeRange
from services.common.model.times import iso
from services.ingestor.exchange.dialects.table import MARKET, Dialect, at

MS_NS = 1_000_000
_COLUMNS = 6
_DAY_SECONDS = 86_400
_EXACT_MS = 2**43
"""Milliseconds below this are exact as floats, and fit 64 bits as nanoseconds."""
_MAX_VALUE = 1e300
"""Larger values are not prices; an int below it is a finite float."""


class BadAnswer(Exception):
    """Answer that is not a valid list of candles of the queried window; the query is worth repeating.

    Attributes:
        kind: Kind of fault in one word, for metrics.
        open_ns: Open time of the faulty candle, if the answer is valid except for the values of this candle.
    """

    def __init__(self, reason: str, *, kind: str = "shape", open_ns: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.open_ns = open_ns


def check_rows(dialect: Dialect, raw: Any, rows: Any, market_id: str) -> list[Any] | None:
    """Return the raw rows of an answer, or None if their place in it is not known.

    Args:
        raw: The decoded answer, or None if it was not JSON.
        rows: The rows that ccxt made of it.
        market_id: The exchange's id of the queried market.
    Raises:
        BadAnswer: The answer is not JSON, has no rows in their place, is another market's, or holds a candle that is
            still open; or ccxt has dropped rows.
    """
    if not isinstance(raw, (list, dict)):
        raise BadAnswer("the answer is not JSON", kind="not_json")
    check_market(dialect, raw, market_id)
    found = _find_rows(dialect, raw, market_id)
    if found is None:
        return None
    if dialect.running:
        index, mark = dialect.running
        if any(isinstance(row, list) and at(row, (index,)) == mark for row in found):
            raise BadAnswer("the answer holds a candle that is still open", kind="running")
    if isinstance(rows, list) and len(found) != len(rows):
        dropped = len(found) - len(rows)
        raise BadAnswer(f"{dropped} of {len(found)} rows are outside the queried window or duplicates", kind="window")
    return found


def check_market(dialect: Dialect, raw: Any, market_id: str) -> None:
    """Raise BadAnswer if an answer names another market than the queried one."""
    if dialect.symbol_at is not None:
        named = at(raw, dialect.symbol_at)
        if named != market_id:
            raise BadAnswer(f"the answer is for {str(named)[:40]!r}, not {market_id!r}", kind="other_symbol")
    if dialect.rows_at and dialect.rows_at[-1] == MARKET:
        holder = at(raw, dialect.rows_at[:-1])
        others = [key for key, value in holder.items() if isinstance(value, list)] if isinstance(holder, dict) else []
        if others and others != [market_id]:
            raise BadAnswer(f"the answer is for {str(others)[:80]}, not {market_id!r}", kind="other_symbol")


def _find_rows(dialect: Dialect, raw: Any, market_id: str) -> list[Any] | None:
    if dialect.rows_at is None:
        return raw if isinstance(raw, list) else None
    path = tuple(market_id if key == MARKET else key for key in dialect.rows_at)
    found = at(raw, path)
    if not isinstance(found, list):
        place = ".".join(map(str, path)) or "its top"
        raise BadAnswer(f"the answer lacks a list at {place}: {str(raw)[:80]}", kind="shape")
    return found


def read_candles(rows: Any, window: TimeRange, period_seconds: int) -> list[Candle]:
    """Return the candles of ccxt's OHLCV rows, ``[open ms, open, high, low, close, volume]``.

    Raises:
        BadAnswer: A row is not six finite numbers; an open time is off the grid, outside the window, a duplicate or out
            of order; or a candle breaks low <= open, close <= high, or has a price of 0 or below or a negative volume.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise BadAnswer(f"the answer is a {type(rows).__name__}, not a list of candles")
    if (valid := _read_valid(rows, window, period_seconds)) is not None:
        return valid
    candles: list[Candle] = []
    invalid: BadAnswer | None = None
    last_ns = -1
    step_ns, fixed = period_seconds * 1_000_000_000, period_seconds <= _DAY_SECONDS
    for row in rows:
        open_ns = _open_time(row)
        if not window.start_ns <= open_ns < window.end_ns:
            raise BadAnswer(f"candle {row!r} opens outside the queried window {window}", kind="window")
        on_grid = open_ns % step_ns == 0 if fixed else is_on_grid(open_ns, period_seconds)
        if not on_grid:
            raise BadAnswer(f"candle {row!r} opens off the grid of {period_seconds} s", kind="grid")
        if open_ns <= last_ns:
            raise BadAnswer(f"candle {row!r} comes after one that opens at {iso(last_ns)}", kind="order")
        last_ns = open_ns
        fault = _fault(row)
        if fault is None:
            _, opened, high, low, close, volume = row
            candles.append(Candle(open_ns, float(opened), float(high), float(low), float(close), float(volume)))
        elif invalid is None:
            invalid = BadAnswer(f"candle {row!r} at {iso(open_ns)} {fault}", kind="values", open_ns=open_ns)
    if invalid is not None:  # raised last, as a fault of the whole answer outweighs a fault of one candle
        raise invalid
    return candles


def _read_valid(rows: Sequence[Any], window: TimeRange, period_seconds: int) -> list[Candle] | None:
    """Return the candles of faultless rows, checked column by column; None if the rows need a closer look."""
    if period_seconds > _DAY_SECONDS or not all(type(row) is list and len(row) == _COLUMNS for row in rows):
        return None
    if not rows or not set(map(type, chain.from_iterable(rows))) <= {int, float}:
        return None
    try:
        table = np.array(rows, np.float64)
    except OverflowError:
        return None
    times_ms, opened, high, low, close, volume = table.T
    if not (np.abs(table) <= _MAX_VALUE).all() or not (times_ms < _EXACT_MS).all():  # false for NaN
        return None
    whole_ms = times_ms.astype(np.int64)
    first_ms, step_ms = -(-window.start_ns // MS_NS), period_seconds * 1_000
    valid = (
        (whole_ms == times_ms).all()
        and whole_ms[0] >= first_ms
        and whole_ms[-1] * MS_NS < window.end_ns
        and (whole_ms % step_ms == 0).all()
        and (np.diff(whole_ms) > 0).all()
        and (low <= np.minimum(opened, close)).all()
        and (high >= np.maximum(opened, close)).all()
        and (low > 0).all()
        and (volume >= 0).all()
    )
    return list(map(Candle, (whole_ms * MS_NS).tolist(), *(c.tolist() for c in table.T[1:]))) if valid else None


def _open_time(row: Any) -> int:
    if not isinstance(row, (list, tuple)) or len(row) != _COLUMNS:
        raise BadAnswer(f"row {str(row)[:80]!r} is not six numbers")
    time_ms = row[0]
    if isinstance(time_ms, bool) or not isinstance(time_ms, (int, float)) or time_ms != time_ms // 1 or time_ms < 0:
        raise BadAnswer(f"row {row!r} lacks an open time in milliseconds")
    return int(time_ms) * MS_NS


def _fault(row: Sequence[Any]) -> str | None:
    """Return the fault in a candle's values, or None if there is none."""
    for value in row[1:]:
        is_nan = value != value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _MAX_VALUE or is_nan:
            return "is not six finite numbers"
    _, opened, high, low, close, volume = row
    if not (low <= opened <= high and low <= close <= high):
        return "breaks low <= open, close <= high"
    if low <= 0:
        return "has a price of 0 or below"
    if volume < 0:
        return "has a negative volume"
    return None
