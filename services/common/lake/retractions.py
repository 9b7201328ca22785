"""Coverage that was taken back, and what a page still claims after it. Pure.

A page, or a line of the ledger, claims nothing inside a retraction that was made later than it was fetched. So the
table of coverage, which is only ever added to, and the table of retractions say together what is covered.
"""

from __future__ import annotations

from services.common.model.time_range import RangeSet, TimeRange, merge, subtract


class Retractions:
    """All of one market.

    Attributes:
        latest_ns: When the latest one was made; 0 while there is none.
    """

    def __init__(self) -> None:
        self.latest_ns = 0
        self._taken: dict[int, RangeSet] = {}

    def add(self, span: TimeRange, retracted_ns: int) -> None:
        """One more, made at any time; of two that meet the later one holds."""
        self.latest_ns = max(self.latest_ns, retracted_ns)
        for part in self.claimed(span, retracted_ns):
            for older in [each for each in self._taken if each < retracted_ns]:
                self._taken[older].remove(part)
                if not self._taken[older]:
                    del self._taken[older]
            self._taken.setdefault(retracted_ns, RangeSet()).add(part)

    def made(self) -> dict[int, tuple[TimeRange, ...]]:
        """By time, the ranges of which no later one holds."""
        return {retracted_ns: tuple(taken) for retracted_ns, taken in self._taken.items()}

    def claimed(self, span: TimeRange, fetched_ns: int) -> list[TimeRange]:
        """What a page of ``span`` that was fetched then still claims."""
        return subtract([span], self.taken(span, fetched_ns))

    def taken(self, span: TimeRange, fetched_ns: int) -> list[TimeRange]:
        """The rest of it."""
        later = (taken for retracted_ns, taken in self._taken.items() if retracted_ns > fetched_ns)
        return merge(part for taken in later for part in taken.within(span))
