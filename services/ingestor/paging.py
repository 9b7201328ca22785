"""Which sub-ranges a job is settled in, and how many candles one call of an exchange returns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.common.market import TimeRange, split_by_periods, subtract


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one OHLCV call of an exchange returns.

    Attributes:
        candles: Most candles.
        wide: The window may span more periods than that; the exchange then returns the oldest ``candles`` of it. Only
            for exchanges known to do so: one that returns the newest, or cuts the window, would make holes look empty.
        names_symbol: Its answers say whose candles they are, and that is checked.
    """

    candles: int
    wide: bool = False
    names_symbol: bool = False


KNOWN_LIMITS: dict[str, CallLimits] = {
    "binance": CallLimits(1_000, wide=True),
    "binanceus": CallLimits(1_000, wide=True),
    "bybit": CallLimits(1_000),
    "coinbase": CallLimits(300),
    "okx": CallLimits(100),  # 300 for recent candles; its history endpoint returns 100
}
"""By ccxt id; answers that come out shorter are caught by the evidence, they only cost calls."""
UNKNOWN_LIMIT = 500
NO_HISTORY = {"kraken": "its candles ignore the asked start and return the newest 720; build history from trades"}
"""Exchanges whose OHLCV call can't serve history, and why (ccxt id)."""


def call_limits(ccxt_id: str, features: Mapping[str, Any] | None) -> CallLimits:
    """Limits of an exchange: our table, else what ccxt says of its spot markets, else a cautious guess."""
    if ccxt_id in KNOWN_LIMITS:
        return KNOWN_LIMITS[ccxt_id]
    spot = (features or {}).get("spot") or {}
    limit = (spot.get("fetchOHLCV") or {}).get("limit")
    return CallLimits(min(limit, 1_000) if isinstance(limit, int) and limit > 0 else UNKNOWN_LIMIT)


def link_periods(candles: int) -> int:
    """Periods by which a question reaches back to known candles, of calls that return so many."""
    return min(4, max(1, candles // 50))


def page_periods(most: int, limits: CallLimits) -> int:
    """Periods of a page, at most ``most``: as many calls as go into one, each less its link."""
    call = max(1, limits.candles - link_periods(limits.candles))
    return most // call * call or most


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
