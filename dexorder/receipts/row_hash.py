"""Hash of the rows of a series, which depends only on their values. Pure.

The rows of each day (UTC) are written as text and hashed with SHA-256; the hash of all rows is the hash of the list of
days. docs/receipts.md has the recipe, and the same in DuckDB. Another program must compute the same hash from the
table, so files, their order, bookkeeping columns and this library do not affect it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from arro3.core import DataType

from dexorder.errors import ReceiptFailed
from dexorder.rows.columns import Column, int64_values
from dexorder.rows.table import Rows, times_ns
from dexorder_common.model.datasets import CANDLES, FUNDING, TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import is_on_grid, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import DAY_NS, iso

COLUMNS = {
    CANDLES: ("open_time", "open", "high", "low", "close", "volume", "quote_volume", "trades"),
    TRADES: ("time", "trade_id", "price", "amount", "side"),
    FUNDING: ("funding_time", "rate", "mark_price", "interval_seconds"),
}
"""Columns that are hashed, by dataset; the first is the time."""
SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class RowHash:
    """Hash of the rows of a range.

    Attributes:
        days: Hash of each day (UTC, ``2024-01-31``) that has rows, in order.
        holes: Ranges without a row; none for a dataset without periods, of which a range without rows says nothing.
    """

    count: int
    days: dict[str, str]
    holes: tuple[TimeRange, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of all rows: of the lines ``day hash``."""
        return _hex("\n".join(f"{day} {found}" for day, found in self.days.items()))

    def differing_days(self, other: RowHash) -> list[str]:
        """Return the days with different rows, ascending."""
        return sorted(day for day in {*self.days, *other.days} if self.days.get(day) != other.days.get(day))


def hash_rows(batches: Iterable[Rows], series: Series, span: TimeRange) -> RowHash:
    """Return the hash of rows, which come ascending, in bounded memory.

    Raises:
        ReceiptFailed: Two candles have one time, one is off the grid, rows do not ascend, or a text would make the
            hash ambiguous.
    """
    names, has_periods = COLUMNS[series.dataset], series.dataset.has_periods
    days, lines, holes = dict[str, str](), list[str](), list[TimeRange]()
    count, day, last_ns, expected_ns = 0, -1, -1, span.start_ns
    for batch in batches:
        times = times_ns(batch, names[0])
        texts = [[str(each // 1_000) for each in times], *(_texts(batch[name], name) for name in names[1:])]
        for time_ns, *cells in zip(times, *texts, strict=True):
            if time_ns < last_ns or (
                has_periods and (time_ns == last_ns or not is_on_grid(time_ns, series.period_seconds))
            ):
                raise ReceiptFailed(
                    f"{series.dataset.table} has rows of {series.ticker} that it must not have, at {iso(time_ns)}; "
                    "`dexorder verify --repair` removes them"
                )
            if time_ns // DAY_NS != day:
                _end_day(days, day, lines)
                day = time_ns // DAY_NS
            if has_periods:
                if time_ns > expected_ns:
                    holes.append(TimeRange(expected_ns, time_ns))
                expected_ns = next_open(time_ns, series.period_seconds)
            last_ns, count = time_ns, count + 1
            lines.append(SEPARATOR.join(cells))
    _end_day(days, day, lines)
    if has_periods and expected_ns < span.end_ns:
        holes.append(TimeRange(expected_ns, span.end_ns))
    return RowHash(count, days, tuple(holes))


def _end_day(days: dict[str, str], day: int, lines: list[str]) -> None:
    """Add the hash of a day's lines, and forget them."""
    if lines:
        days[datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()] = _hex("\n".join(lines))
        lines.clear()


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _texts(column: Column, name: str) -> list[str]:
    """Return the values as text: a double with 17 digits, which distinguish any two values; null becomes empty text."""
    if DataType.is_integer(column.type) and not column.null_count:
        return list(map(str, int64_values(column)))
    write: Callable[[Any], str] = "%.17g".__mod__ if DataType.is_floating(column.type) else str
    texts = ["" if value is None else write(value) for value in column.to_pylist()]
    if not (DataType.is_integer(column.type) or DataType.is_floating(column.type)):
        for text in texts:
            if SEPARATOR in text or "\n" in text:
                raise ReceiptFailed(f"{name} {text[:64]!r} contains {SEPARATOR!r} or a line end, which can't be hashed")
    return texts
