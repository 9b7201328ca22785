"""Which sub-ranges a job is settled in, and how many candles one call of an exchange returns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.common.model.periods import count_periods, split_by_periods
from services.common.model.time_range import TimeRange, subtract
from services.ingestor.exchange.dialects.table import dialect_of


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one OHLCV call of an exchange returns; from its `Dialect`.

    Attributes:
        candles: Most candles.
        wide: The window may span more periods than that; the exchange then returns the oldest ``candles`` of it.
        names_symbol: The answer says which symbol it is for, and has been compared with the asked one.
    """

    candles: int
    wide: bool = False
    names_symbol: bool = False


def limits_for(ccxt_id: str, features: Mapping[str, Any] | None) -> CallLimits:
    """Limits of an exchange: the table of dialects, else what ccxt says, else a cautious guess."""
    dialect = dialect_of(ccxt_id, features)
    return CallLimits(dialect.candles, dialect.wide, dialect.names_symbol)


def link_periods(candles: int) -> int:
    """Periods by which a question reaches back to known candles, and beyond its own, of calls that return so many."""
    return min(4, max(1, candles // 50))


def question_periods(candles: int) -> int:
    """Periods a question settles, of calls that return so many: without those it reaches back to, and beyond."""
    return max(1, candles - 2 * link_periods(candles))


def page_periods(most: int, limits: CallLimits) -> int:
    """Periods of a page, at most ``most``: as many questions as go into one."""
    question = question_periods(limits.candles)
    return most // question * question or most


def is_one_call(span: TimeRange, period_seconds: int, limits: CallLimits) -> bool:
    """Whether a call returns all of a job, whose first question reaches back to nothing."""
    return count_periods(span, period_seconds) <= limits.candles


def plan_pages(
    span: TimeRange, period_seconds: int, page_candles: int, skip: tuple[TimeRange, ...] = ()
) -> list[TimeRange]:
    """Pages of a span in time order.

    Args:
        span: Half open, nanoseconds; both ends on the period's grid.
        page_candles: Most periods in a page.
        skip: Parts that no page may hold.
    Returns:
        Ranges that cover ``span`` less ``skip``; page borders stay where they are without ``skip``.
    """
    pages = split_by_periods(span, period_seconds, page_candles)
    return [part for page in pages for part in subtract([page], skip)]
