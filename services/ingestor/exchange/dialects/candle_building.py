"""Candles from trades. Pure.

A period without a trade has no candle. Volumes are added up as decimals, so that the same trades give the same candle
to the last bit, in whatever pages they came.
"""

from __future__ import annotations

from decimal import Decimal

from services.common.model.page import Candle
from services.common.model.periods import floor_to_grid, next_open


class CandleBuilder:
    """Takes trades in time order and keeps nothing of them but their candles."""

    def __init__(self, period_seconds: int) -> None:
        self._period = period_seconds
        self._closed: list[Candle] = []
        self._end_ns = -1
        self._count = 0

    def __len__(self) -> int:
        """Candles so far, the one that is being built among them."""
        return len(self._closed) + bool(self._count)

    def add(self, time_ns: int, price: Decimal, amount: Decimal) -> None:
        """Take the next trade, which is not before the last one's candle."""
        if time_ns >= self._end_ns:
            self._close()
            self._open_ns = floor_to_grid(time_ns, self._period)
            self._end_ns = next_open(self._open_ns, self._period)
            self._open = self._high = self._low = price
            self._volume = Decimal()
            self._value = Decimal()
            self._count = 0
        assert time_ns >= self._open_ns, "trades come in time order"
        self._close_price = price
        self._high, self._low = max(self._high, price), min(self._low, price)
        self._volume += amount
        self._value += price * amount
        self._count += 1

    def candles(self) -> list[Candle]:
        """All candles, as the trades so far make them, in time order."""
        return [*self._closed, self._candle()] if self._count else list(self._closed)

    def _close(self) -> None:
        if self._count:
            self._closed.append(self._candle())

    def _candle(self) -> Candle:
        return Candle(
            self._open_ns,
            float(self._open),
            float(self._high),
            float(self._low),
            float(self._close_price),
            float(self._volume),
            quote_volume=float(self._value),
            trade_count=self._count,
        )
