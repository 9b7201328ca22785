"""Result of comparing the values of a series with the exchange's coarser candles. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dexorder_common.model.history import range_json
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.time_range import TimeRange

_VALUES = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A cell of the exchange that the table's rows do not add up to.

    Attributes:
        exchange: The exchange's candle; may be None.
        table: The table's rows as one candle; None without rows.
    """

    span: TimeRange
    exchange: Candle | None
    table: Candle | None

    def __str__(self) -> str:
        if self.table is None or self.exchange is None:
            where, other = ("the table", "the exchange") if self.exchange is None else ("the exchange", "the table")
            return f"{where} has candles, {other} has none"
        table, exchange = self.table, self.exchange
        differing = [name for name in _VALUES if getattr(table, name) != getattr(exchange, name)]
        return ", ".join(
            f"{name} {getattr(table, name)!r}, {getattr(exchange, name)!r} at the exchange" for name in differing
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**range_json(self.span), "exchange": _json(self.exchange), "table": _json(self.table)}


def _json(candle: Candle | None) -> dict[str, float] | None:
    return {name: getattr(candle, name) for name in _VALUES} if candle else None


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """Rows of a series compared with the exchange's coarser candles, the cells.

    ``differing`` and ``uncompared`` have at most 10,000 entries; the counts cover all of them.

    Attributes:
        cell_seconds: Periods of the cells, the largest first; empty if this period has no cells.
        compared_periods: Periods in cells that were compared.
        differing: Cells to which their rows do not add up.
        differing_periods: Periods in these.
        uncompared: Covered ranges that were not compared: parts of cells, cells that closed less than ten minutes ago,
            rows that are lost or must not be there, and cells that could not be fetched.
        errors: Reasons why cells could not be fetched.
        requests: Ids of the requests that fetched the cells.
        calls: Calls of the exchange for them.
        repaired_periods: Periods of ``differing`` that a repair fetched again.
    """

    cell_seconds: tuple[int, ...] = ()
    compared_periods: int = 0
    differing: tuple[ValueDifference, ...] = ()
    differing_cells: int = 0
    differing_periods: int = 0
    uncompared: tuple[TimeRange, ...] = ()
    uncompared_periods: int = 0
    errors: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    calls: int = 0
    repaired_periods: int = 0

    @property
    def cells(self) -> str:
        """Names of the cells' periods, for example ``1h and 5m``."""
        return " and ".join(PERIODS.get(each, f"{each} s") for each in self.cell_seconds)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "cell_seconds": list(self.cell_seconds),
            "compared_periods": self.compared_periods,
            "differing_cells": self.differing_cells,
            "differing_periods": self.differing_periods,
            "differing": [each.as_json() for each in self.differing],
            "uncompared_periods": self.uncompared_periods,
            "uncompared": list(map(range_json, self.uncompared)),
            "errors": list(self.errors),
            "requests": list(self.requests),
            "calls": self.calls,
            "repaired_periods": self.repaired_periods,
        }
