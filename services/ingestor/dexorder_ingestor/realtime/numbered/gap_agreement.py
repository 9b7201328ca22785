"""Answers that agree that an exchange has left out numbers. Pure."""

from __future__ import annotations

from dexorder_ingestor.realtime.numbered.side_queries import pause_ns
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap


class GapAgreement:
    """The answers in a row about the first missing numbers."""

    def __init__(self, answers: int) -> None:
        """Take the number of answers that have to agree."""
        self._wanted = answers
        self._gap: Gap | None = None
        self._answers = 0

    def is_reached(self, gap: Gap) -> bool:
        """Count an answer without the first missing number; return whether it was the last one that is wanted."""
        self._answers = self._answers + 1 if gap == self._gap else 1
        self._gap = gap
        if self._answers < self._wanted:
            return False
        self._gap = None
        return True

    def retry_ns(self, gap: Gap | None) -> int:
        """Return the time until the next query for missing numbers, which grows with the answers that lack them."""
        if gap is None:
            return 0
        return pause_ns(self._answers if gap == self._gap else 0)
