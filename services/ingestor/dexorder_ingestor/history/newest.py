"""The newest candles: exchanges publish them late, and a replica that is behind has them half-finished. Pure.

A candle is absent only after a later one exists and a delay has passed. A candle counts as closed once an answer holds
it together with a later one, or once the delay has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import next_open, open_times
from dexorder_common.model.proof import ProofKind
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.history.paging import CandlePage

QUIET_AFTER_SECONDS = 600
"""Age from which on a candle may be absent although no later one exists: the market may be quiet, or no longer traded.
Such an absence is provisional."""
REASON = "not settled yet: the exchange may still publish or change candles there"


@dataclass(slots=True)
class Newest:
    """Knowledge of an exchange's newest candles.

    Attributes:
        period_seconds: Period of the candles.
        delay_seconds: Time after a candle's close in which the exchange publishes it.
        is_marked: The exchange marks candles that are still open, so others are closed.
        now_ns: The time by which candles are closed.
        open_ns: Open time of the newest candle that the exchange is known to have; it may still be open.
    """

    period_seconds: int
    delay_seconds: float
    is_marked: bool
    now_ns: int = 0
    open_ns: int = 0
    _followed: dict[int, Candle] = field(default_factory=dict)

    def note(self, candles: Sequence[Candle]) -> None:
        """Note the candles of one answer."""
        self.open_ns = max(self.open_ns, candles[-1].open_ns if candles else 0)
        for candle in reversed(candles[:-1]):
            if not self._is_young(self._end_ns(candle.open_ns)):
                break
            self._followed[candle.open_ns] = candle

    def settled_end_ns(self, page: CandlePage) -> int:
        """Return the time up to which the candles of a page are closed, and its absent ones absent."""
        by_ids = [proof.span for proof in page.proofs if proof.kind is ProofKind.TRADE_IDS]
        absent = (self._first_unsettled(part) for part in subtract(page.empty, by_ids))
        young = takewhile(lambda c: self._is_young(self._end_ns(c.open_ns)), reversed(page.candles))
        running = (c.open_ns for c in young if not self._is_closed(c, by_ids))
        return min([page.span.end_ns, *(t for t in absent if t is not None), *running])

    def _first_unsettled(self, part: TimeRange) -> int | None:
        if self._is_absent(part.end_ns):
            return None
        times = open_times(part, self.period_seconds)
        return next(t for t in times if not self._is_absent(self._end_ns(t)))

    def _is_absent(self, end_ns: int) -> bool:
        """Return whether a candle with this end that no answer holds counts as absent."""
        quiet_ns = QUIET_AFTER_SECONDS * SECOND_NS
        return not self._is_young(end_ns) and (end_ns <= self.open_ns or self.now_ns - end_ns >= quiet_ns)

    def _is_closed(self, candle: Candle, by_ids: Sequence[TimeRange]) -> bool:
        """Return whether a young candle is closed."""
        if self.is_marked or self._followed.get(candle.open_ns) == candle:
            return True
        return any(span.start_ns <= candle.open_ns < span.end_ns for span in by_ids)

    def _is_young(self, end_ns: int) -> bool:
        return self.now_ns - end_ns < self.delay_seconds * SECOND_NS

    def _end_ns(self, open_ns: int) -> int:
        return next_open(open_ns, self.period_seconds)
