"""Is an exchange's answer a set of candles? Pure.

ccxt turns text, HTML and cut JSON into rows of garbage without an error, so nothing in an answer is taken on trust.
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

MS_NS = 1_000_000
_COLUMNS = 6
_DAY_SECONDS = 86_400
_EXACT_MS = 2**43
"""Milliseconds below this are whole floats, and nanoseconds that fit 64 bits."""
_MOST = 1e300
"""Larger values are no prices; below it an int is a finite float."""


class BadAnswer(Exception):
    """An answer that is no set of candles of the asked window; ask again.

    Attributes:
        kind: What is wrong, in a word, for metrics.
        open_ns: Open time of the candle at fault, when the answer is sound but for this candle's values.
    """

    def __init__(self, reason: str, *, kind: str = "shape", open_ns: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.open_ns = open_ns


def read_candles(rows: Any, window: TimeRange, period_seconds: int) -> list[Candle]:
    """Candles of ccxt's OHLCV rows, ``[open ms, open, high, low, close, volume]``.

    Args:
        window: What was asked, half open; the exchange was told its last nanosecond too.
    Raises:
        BadAnswer: Not rows, not six finite numbers, an open off the grid, outside the window, twice or out of order,
            prices not low <= open, close <= high, a volume below 0.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise BadAnswer(f"the answer is a {type(rows).__name__}, not a list of candles")
    if (sound := _all_sound(rows, window, period_seconds)) is not None:
        return sound
    candles: list[Candle] = []
    invalid: BadAnswer | None = None
    last_ns = -1
    step_ns, fixed = period_seconds * 1_000_000_000, period_seconds <= 86_400
    for row in rows:
        open_ns = _open_time(row)
        if not window.start_ns <= open_ns < window.end_ns:
            raise BadAnswer(f"candle {row!r} opens outside the asked {window}", kind="window")
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
    if invalid is not None:  # only now: a fault of the whole answer counts for more than one of a candle
        raise invalid
    return candles


def _all_sound(rows: Sequence[Any], window: TimeRange, period_seconds: int) -> list[Candle] | None:
    """The candles of rows without any fault, checked by columns; None where a closer look is needed."""
    if period_seconds > _DAY_SECONDS or not all(type(row) is list and len(row) == _COLUMNS for row in rows):
        return None
    if not rows or not set(map(type, chain.from_iterable(rows))) <= {int, float}:
        return None
    try:
        table = np.array(rows, np.float64)
    except OverflowError:
        return None
    times_ms, opened, high, low, close, volume = table.T
    if not (np.abs(table) <= _MOST).all() or not (times_ms < _EXACT_MS).all():  # NaN is not <= anything
        return None
    whole_ms = times_ms.astype(np.int64)
    first_ms, step_ms = -(-window.start_ns // MS_NS), period_seconds * 1_000
    good = (
        (whole_ms == times_ms).all()
        and whole_ms[0] >= first_ms
        and whole_ms[-1] * MS_NS < window.end_ns
        and (whole_ms % step_ms == 0).all()
        and (np.diff(whole_ms) > 0).all()
        and (low <= np.minimum(opened, close)).all()
        and (high >= np.maximum(opened, close)).all()
        and (volume >= 0).all()
    )
    return list(map(Candle, (whole_ms * MS_NS).tolist(), *(c.tolist() for c in table.T[1:]))) if good else None


def _open_time(row: Any) -> int:
    if not isinstance(row, (list, tuple)) or len(row) != 6:
        raise BadAnswer(f"row {str(row)[:80]!r} is not six numbers")
    time_ms = row[0]
    if isinstance(time_ms, bool) or not isinstance(time_ms, (int, float)) or time_ms != time_ms // 1 or time_ms < 0:
        raise BadAnswer(f"row {row!r} has no open time in milliseconds")
    return int(time_ms) * MS_NS


def _is_sound(_: Any, opened: Any, high: Any, low: Any, close: Any, volume: Any) -> bool:
    """The quick answer for candles as they nearly always come; False may still be sound, if a value is an int."""
    return (
        type(opened) is type(high) is type(low) is type(close) is type(volume) is float
        and -_MOST <= low <= opened <= high <= _MOST
        and low <= close <= high
        and 0 <= volume <= _MOST
    )


def _fault(row: Sequence[Any]) -> str | None:
    """What is wrong with a candle's values; None if nothing is."""
    if _is_sound(*row):
        return None
    for value in row[1:]:
        # NaN differs from itself.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _MOST or value != value:
            return "is not six finite numbers"
    _, opened, high, low, close, volume = row
    if not (low <= opened <= high and low <= close <= high):
        return "breaks low <= open, close <= high"
    if volume < 0:
        return "has a volume below 0"
    return None
