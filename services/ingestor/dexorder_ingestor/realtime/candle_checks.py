"""Closed candles of a realtime job that wait for a comparison with the exchange's own. Pure.

The exchange's candles are checksums of its trades. A candle without volume counts as no candle, as some exchanges fill
gaps. What can't be compared in time is forgotten: the oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_ingestor.realtime.live_candles import ClosedCandles

_MAX_PERIODS = 1_000
_TOLERANCE = 1e-8
"""Relative difference of volumes that rounding explains."""


class CandleChecks:
    """Candles that were not compared yet, by period."""

    def __init__(self, periods: Iterable[int]) -> None:
        self._spans: dict[int, list[TimeRange]] = {period: [] for period in periods}
        self._candles: dict[int, dict[int, Candle]] = {period: {} for period in periods}

    def add(self, closed: ClosedCandles) -> None:
        """Add candles; amended ones replace theirs."""
        period = closed.period_seconds
        self._spans[period] = merge([*self._spans[period], closed.span])
        self._candles[period].update((candle.open_ns, candle) for candle in closed.candles)
        first_ns = next_open(self._spans[period][-1].end_ns, period, -_MAX_PERIODS)
        self._forget(period, TimeRange(0, max(0, first_ns)))

    def due(self, limit: int) -> list[tuple[int, TimeRange]]:
        """Return the spans to compare, with their periods, each of at most ``limit`` candles."""
        return [
            (period, part)
            for period, spans in self._spans.items()
            for span in spans
            for part in split_by_periods(span, period, limit)
        ]

    def compare(self, period_seconds: int, span: TimeRange, theirs: Sequence[Candle] | None) -> list[int]:
        """Compare the candles of a span, and forget them; return the open times of those that differ.

        Args:
            theirs: The exchange's own; None if it has none of this period.
        """
        ours = {t: c for t, c in self._candles[period_seconds].items() if span.start_ns <= t < span.end_ns}
        self._forget(period_seconds, span)
        if theirs is None:
            return []
        real = {candle.open_ns: candle for candle in theirs if candle.volume > 0}
        ours = {open_ns: candle for open_ns, candle in ours.items() if candle.volume > 0}
        return sorted(t for t in ours.keys() | real.keys() if not _equal(ours.get(t), real.get(t)))

    def _forget(self, period: int, span: TimeRange) -> None:
        self._spans[period] = subtract(self._spans[period], [span])
        kept = self._candles[period]
        self._candles[period] = {t: c for t, c in kept.items() if not span.start_ns <= t < span.end_ns}


def _equal(one: Candle | None, other: Candle | None) -> bool:
    if one is None or other is None:
        return False
    near = abs(one.volume - other.volume) <= _TOLERANCE * max(one.volume, other.volume)
    return one[1:5] == other[1:5] and near
