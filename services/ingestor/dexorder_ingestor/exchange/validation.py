"""Validation of an exchange's answer to a query for candles. Pure.

ccxt turns text, HTML and truncated JSON into rows of garbage without an error. It also drops rows before ``since`` or
over the limit, and accepts rows under another market's name. So an answer is checked twice: the raw answer by
`check_rows`, and the rows that ccxt made of it by `read_candles`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np
import orjson

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import floor_to_grid, next_open, open_times
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso
from dexorder_ingestor.exchange.answers import MARKET, MS_NS, BadAnswer, at
from dexorder_ingestor.exchange.dialect import CandleFacts, Columns

_COLUMNS = 6
_CCXT_COLUMNS: Columns = (0, 1, 2, 3, 4, 5, None, None)
_DAY_SECONDS = 86_400
_EXACT_MS = 2**43
"""Milliseconds below this are exact as floats, and fit 64 bits as nanoseconds."""
_MAX_VALUE = 1e300
"""Larger values are not prices; an int below it is a finite float."""


def check_rows(facts: CandleFacts, raw: Any, rows: Any, market_id: str) -> list[Any] | None:
    """Return the raw rows of an answer, or None if their place in it is not known.

    Args:
        raw: The decoded answer, or None if it was not JSON.
        rows: The rows that ccxt made of it.
        market_id: The exchange's id of the queried market.
    Raises:
        BadAnswer: The answer is not JSON, lacks rows in their place, is another market's, or holds a candle that is
            still open; or ccxt has dropped rows.
    """
    if not isinstance(raw, (list, dict)):
        raise BadAnswer("the answer is not JSON", kind="not_json")
    check_market(facts, raw, market_id)
    found = _find_rows(facts, raw, market_id)
    if found is None:
        return None
    if facts.running:
        index, mark = facts.running
        if any(isinstance(row, list) and at(row, (index,)) == mark for row in found):
            raise BadAnswer("the answer holds a candle that is still open", kind="running")
    if isinstance(rows, list) and len(found) != len(rows) and not facts.reaches_back:
        dropped = len(found) - len(rows)
        raise BadAnswer(f"{dropped} of {len(found)} rows are outside the queried window or duplicates", kind="window")
    return found


def rows_from(start_ns: int, rows: Iterable[Any], reach: TimeRange) -> list[Any]:
    """Return the raw rows that do not open before a time; BadAnswer unless all open in the queried range."""
    found = []
    for row in rows:
        time_ns = _open_time([_number(row[0])]) if isinstance(row, list) and row else None
        if time_ns is None or not reach.start_ns <= time_ns < reach.end_ns:
            raise BadAnswer(f"row {str(row)[:80]} opens outside the queried range {reach}", kind="window")
        if time_ns >= start_ns:
            found.append(row)
    return found


def check_market(facts: CandleFacts, raw: Any, market_id: str) -> None:
    """Raise BadAnswer if an answer names another market than the queried one."""
    if facts.symbol_at is not None:
        named = at(raw, facts.symbol_at)
        if named != market_id:
            raise BadAnswer(f"the answer is for {str(named)[:40]!r}, not {market_id!r}", kind="other_symbol")
    if facts.rows_at and facts.rows_at[-1] == MARKET:
        holder = at(raw, facts.rows_at[:-1])
        others = [key for key, value in holder.items() if isinstance(value, list)] if isinstance(holder, dict) else []
        if others and others != [market_id]:
            raise BadAnswer(f"the answer is for {str(others)[:80]}, not {market_id!r}", kind="other_symbol")


def _find_rows(facts: CandleFacts, raw: Any, market_id: str) -> list[Any] | None:
    if facts.rows_at is None:
        return raw if isinstance(raw, list) else None
    path = tuple(market_id if key == MARKET else key for key in facts.rows_at)
    found = at(raw, path)
    if not isinstance(found, list):
        place = ".".join(map(str, path)) or "its top"
        raise BadAnswer(f"the answer lacks a list at {place}: {str(raw)[:80]}", kind="shape")
    return found


def read_candles(
    rows: Any,
    window: TimeRange,
    period_seconds: int,
    *,
    columns: Columns | None = None,
    time_unit_ms: int = 1,
    skip: Collection[int] = (),
) -> list[Candle]:
    """Return the candles of OHLCV rows. Equal duplicates are dropped.

    Args:
        columns: Where a row has its open time, open, high, low, close, volume, and perhaps quote volume and number of
            trades; None for rows that ccxt has made.
        time_unit_ms: Milliseconds of the unit of open times.
        skip: Open times of candles that are known to be faulty, and left out.
    Raises:
        BadAnswer: The answer as a whole is not a list of candles of the window; or, with ``opens``, some rows are not
            finite numbers, open off the grid, come twice with different values, break low <= open, close <= high, or
            have a price of 0 or below or a negative volume.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise BadAnswer(f"the answer is a {type(rows).__name__}, not a list of candles")
    if not skip and (valid := _read_valid(rows, window, period_seconds, columns, time_unit_ms)) is not None:
        return valid
    return _Reader(window, period_seconds, columns, time_unit_ms, skip).read(rows)


def _read_valid(
    rows: Sequence[Any], window: TimeRange, period_seconds: int, columns: Columns | None, time_unit_ms: int
) -> list[Candle] | None:
    """Return the candles of faultless rows, checked column by column; None if the rows need a closer look."""
    if not rows or period_seconds > _DAY_SECONDS:
        return None
    of_ccxt, columns = columns is None, columns or _CCXT_COLUMNS
    try:
        given = _columns_of(rows, columns)
        if given is None or (of_ccxt and len(rows[0]) != _COLUMNS):
            return None
        numbers = [_numbers(column, texts=not of_ccxt) for column in given]
        if any(len(column) != len(rows) for column in numbers):  # a text was "1,2"
            return None
        table = np.array(numbers)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None
    times_ms, opened, high, low, close, *_ = table
    times_ms *= time_unit_ms
    if not (np.abs(table) <= _MAX_VALUE).all() or not (times_ms < _EXACT_MS).all():  # false for NaN
        return None
    whole_ms = times_ms.astype(np.int64)
    if len(whole_ms) > 1 and whole_ms[0] > whole_ms[-1] and not of_ccxt:  # ccxt sorts its rows
        return _read_valid(rows[::-1], window, period_seconds, columns, time_unit_ms)
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
        and (table[5:] >= 0).all()
    )
    if not valid:
        return None
    rest = iter(numbers[_COLUMNS:])
    quotes = next(rest) if columns[6] is not None else repeat(None)
    trades = map(int, next(rest)) if columns[7] is not None else repeat(None)
    return list(map(Candle, (whole_ms * MS_NS).tolist(), *numbers[1:_COLUMNS], quotes, trades))


def _columns_of(rows: Sequence[Any], columns: Columns) -> list[Sequence[Any]] | None:
    """Return the columns of rows that are all lists of one length, or all objects; None if they are not."""
    kinds = set(map(type, rows))
    if kinds == {list}:
        given = list(zip(*rows, strict=True))
        return [given[place] for place in columns if isinstance(place, int)]
    if kinds == {dict}:
        return [[row[place] for row in rows] for place in columns if place is not None]
    return None


def _numbers(values: Sequence[Any], *, texts: bool) -> list[float]:
    """Return a column as floats; TypeError or ValueError if they are not numbers or, with ``texts``, texts of these."""
    kinds = set(map(type, values))
    if texts and kinds == {str}:  # JSON's parser takes a third of the time of ``float``
        values = orjson.loads(f"[{','.join(values)}]")
        kinds = set(map(type, values))
    if not kinds <= {int, float}:
        raise TypeError
    return list(map(float, values))


class _Reader:
    """Reads rows one by one and finds the faulty ones."""

    def __init__(
        self, window: TimeRange, period_seconds: int, columns: Columns | None, time_unit_ms: int, skip: Collection[int]
    ) -> None:
        self._window = window
        self._period = period_seconds
        self._columns = columns
        self._time_unit_ms = time_unit_ms
        self._skip = skip
        self._faults: dict[int, str] = {}

    def read(self, rows: Sequence[Any]) -> list[Candle]:
        candles: dict[int, Candle] = {}
        readable: list[tuple[int, list[Any], Any]] = []
        unreadable: list[tuple[int, Any]] = []  # with the number of readable rows before it
        for row in rows:
            values = self._values(row)
            time_ns = _open_time(values)
            if time_ns is None:
                unreadable.append((len(readable), row))
            elif not self._window.start_ns <= time_ns < self._window.end_ns:
                raise BadAnswer(f"candle {row!r} opens outside the queried window {self._window}", kind="window")
            else:
                readable.append((time_ns, values, row))
        for place, row in unreadable:
            self._note_unreadable(place, row, [time_ns for time_ns, *_ in readable])
        if len(readable) > 1 and readable[0][0] > readable[-1][0] and self._columns is not None:
            readable.reverse()
        last_ns = -1
        for time_ns, values, row in readable:
            if time_ns < last_ns:
                raise BadAnswer(f"candle {row!r} comes after one that opens at {iso(last_ns)}", kind="order")
            last_ns = time_ns
            self._add(time_ns, values, row, candles)
        self._raise_faults(len(rows))
        return [candle for open_ns, candle in candles.items() if open_ns not in self._skip]

    def _values(self, row: Any) -> list[Any]:
        """Return the eight values of a row; none if it is not a row."""
        if self._columns is None:
            return [*row, None, None] if isinstance(row, (list, tuple)) and len(row) == _COLUMNS else []
        if not isinstance(row, (list, tuple, dict)):
            return []
        places: Any = row
        try:
            values = [None if place is None else _number(places[place]) for place in self._columns]
        except (IndexError, KeyError, TypeError):
            return []
        if isinstance(values[0], bool) or not isinstance(values[0], (int, float)):
            return []
        return [values[0] * self._time_unit_ms, *values[1:]]

    def _add(self, time_ns: int, values: list[Any], row: Any, candles: dict[int, Candle]) -> None:
        open_ns = floor_to_grid(time_ns, self._period)
        fault = None if open_ns == time_ns else f"opens off the grid of {self._period} s"
        fault = fault or _fault(values[1:_COLUMNS])
        if fault:
            self._note(open_ns, row, fault)
            return
        opened, high, low, close, volume = map(float, values[1:_COLUMNS])
        quote, trades = map(_extra, values[_COLUMNS:])
        candle = Candle(open_ns, opened, high, low, close, volume, quote, None if trades is None else int(trades))
        if candles.setdefault(open_ns, candle) != candle:
            self._note(open_ns, row, "comes twice with different values")

    def _note_unreadable(self, place: int, row: Any, times_ns: list[int]) -> None:
        """Note every candle that a row without a time can be: those between its neighbours."""
        ends = [times_ns[place - 1] if place else None, times_ns[place] if place < len(times_ns) else None]
        low, high = sorted(t for t in ends if t is not None) if None not in ends else (None, None)
        if low is None or high is None:
            raise BadAnswer(f"row {str(row)[:80]!r} is not a candle")
        start_ns, end_ns = next_open(floor_to_grid(low, self._period), self._period), floor_to_grid(high, self._period)
        for open_ns in open_times(TimeRange(start_ns, max(start_ns, end_ns)), self._period):
            self._note(open_ns, row, "is not a candle")

    def _note(self, open_ns: int, row: Any, fault: str) -> None:
        if open_ns not in self._skip:
            self._faults.setdefault(open_ns, f"candle {str(row)[:600]} at {iso(open_ns)} {fault}")

    def _raise_faults(self, rows: int) -> None:
        if not self._faults:
            return
        first = next(iter(self._faults.values()))
        located = len(self._faults) <= max(1, rows // 2)
        kind = "grid" if "off the grid" in first else "values"
        more = f", and {len(self._faults) - 1} more" if len(self._faults) > 1 else ""
        raise BadAnswer(first + more, kind=kind, opens=self._faults if located else ())


def _number(value: Any) -> Any:
    """Return the number that a text holds, or the value unchanged."""
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value) if value.isdecimal() else float(value)
    return value


def _extra(value: Any) -> float | None:
    """Return an optional value if it is a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_VALUE:
        return None
    return float(value)


def _open_time(values: list[Any]) -> int | None:
    """Return the open time of a row in nanoseconds, or None."""
    time_ms = values[0] if values else None
    if isinstance(time_ms, bool) or not isinstance(time_ms, (int, float)) or time_ms != time_ms // 1 or time_ms < 0:
        return None
    return int(time_ms) * MS_NS


def _fault(values: Sequence[Any]) -> str | None:
    """Return the fault in a candle's values, or None."""
    for value in values:
        is_nan = value != value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _MAX_VALUE or is_nan:
            return "is not six finite numbers"
    opened, high, low, close, volume = values
    if not (low <= opened <= high and low <= close <= high):
        return "breaks low <= open, close <= high"
    if low <= 0:
        return "has a price of 0 or below"
    if volume < 0:
        return "has a negative volume"
    return None
