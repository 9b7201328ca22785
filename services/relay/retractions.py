"""Coverage that was taken back, and what a page still claims after it. Pure.

A page claims nothing inside a retraction that was made later than the exchange answered the page. So the table of
coverage, which is only ever added to, and the table of retractions say together what is covered.
"""

from __future__ import annotations

from typing import NamedTuple

from services.common.market import TimeRange, subtract
from services.relay.model import Market


class Retraction(NamedTuple):
    """Coverage of a range taken back at a time, nanoseconds, whole microseconds; two with equal fields are one."""

    market: Market
    span: TimeRange
    retracted_ns: int


class Retractions:
    """All of one market.

    Attributes:
        latest_ns: When the latest one was made; 0 while there is none.
    """

    def __init__(self) -> None:
        self.latest_ns = 0
        self._made: list[tuple[TimeRange, int]] = []

    def add(self, span: TimeRange, retracted_ns: int) -> None:
        """One more, made at any time; what a later one covers whole is forgotten."""
        self.latest_ns = max(self.latest_ns, retracted_ns)
        if not any(later >= retracted_ns and other.contains(span) for other, later in self._made):
            older = [each for each in self._made if each[1] > retracted_ns or not span.contains(each[0])]
            self._made = [*older, (span, retracted_ns)]

    def made(self) -> list[tuple[TimeRange, int]]:
        """Those that still say something, with their times."""
        return list(self._made)

    def claimed(self, span: TimeRange, fetched_ns: int) -> list[TimeRange]:
        """What a page of ``span`` that was fetched then still claims."""
        return subtract([span], [taken for taken, retracted_ns in self._made if retracted_ns > fetched_ns])

    def taken(self, span: TimeRange, fetched_ns: int) -> list[TimeRange]:
        """The rest of it."""
        return subtract([span], self.claimed(span, fetched_ns))
