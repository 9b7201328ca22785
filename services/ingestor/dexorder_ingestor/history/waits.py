"""Waits before the repeated queries of one dispatch. Pure.

Exchanges are untrue for a while, not once in so many answers: a replica lags, a cache is stale. So each repetition
waits twice as long as the one before it. All waits of a dispatch have one budget, as a market with a thousand holes
would otherwise take days.
"""

from __future__ import annotations


class Waits:
    """Waits that a dispatch has left."""

    def __init__(self, first_seconds: float, total_seconds: float) -> None:
        self._first = first_seconds
        self._left = total_seconds

    def take(self, repetition: int) -> float | None:
        """Return the wait before a repetition, counted from 1; None if it is longer than what is left.

        >>> waits = Waits(0.2, 2.0)
        >>> [waits.take(n) for n in (1, 2, 3, 4, 3, 1)]
        [0.2, 0.4, 0.8, None, None, 0.2]
        """
        seconds = float(self._first * 2 ** (min(repetition, 60) - 1))
        if seconds > self._left:
            return None
        self._left -= seconds
        return seconds

    def take_or_first(self, repetition: int) -> float:
        """Return the same, or the first wait once the budget is used up."""
        seconds = self.take(repetition)
        return self._first if seconds is None else seconds
