"""Totals of sliding windows in constant time for each window, for any number of slices. Pure.

Slices are in blocks of as many as a window has. A window is the end of one block and the start of the next one: the
totals of all ends of a block are made once, from its last slice backwards, and the total of the start grows by one
slice with each window. So the total of a window depends on the slices alone, to the last digit: a state that is loaded
has the same totals as one that was never dumped.
"""

from __future__ import annotations

from collections.abc import Mapping

from dexorder_cep.compile.aggregates import Accumulator, empty, merge
from dexorder_cep.compile.plans import WindowStep

Totals = list[Accumulator]


class WindowTotals:
    """Totals over slices that the caller owns, for windows in the order of their ends.

    Attributes:
        merges: Accumulators that were merged so far.
    """

    __slots__ = (
        *("_aggregates", "_slices", "_width", "merges"),
        *("_ends", "_ends_of", "_start", "_start_of", "_start_until"),
    )

    def __init__(self, step: WindowStep, slices: Mapping[int, Totals]) -> None:
        self._aggregates = step.aggregates
        self._width = step.slice_ns
        self._slices = slices
        self.merges = 0
        self._forget()

    def _forget(self) -> None:
        self._ends: list[Totals | None] = []
        self._ends_of: int | None = None
        self._start: Totals = []
        self._start_of: int | None = None
        self._start_until = 0

    def changed(self, start: int) -> None:
        """Forget totals that include a slice, to which a late row was added."""
        is_in_ends = self._ends_of is not None and 0 <= start - self._ends_of < len(self._ends) * self._width
        is_in_start = self._start_of is not None and self._start_of <= start < self._start_until
        if is_in_ends or is_in_start:
            self._forget()

    def of(self, first: int, end: int, block: int) -> Totals:
        """Return the totals of the slices from ``first`` up to ``end``.

        Args:
            first: Start of the window.
            end: Its end.
            block: Length of a block: of the window itself where windows slide, of the largest one where they grow.
        """
        border = first - first % block + block
        if first % block == 0:
            return self._copy(self._start_up_to(first, end))
        totals = self._copy(self._ends_from(border - block, first, block))
        self._add(totals, self._start_up_to(border, end))
        return totals

    def _ends_from(self, block_start: int, first: int, block: int) -> Totals | None:
        """Return the total of a block's slices from ``first`` on; None without slices."""
        if self._ends_of != block_start:
            total: Totals | None = None
            ends = []
            for start in range(block_start + block - self._width, block_start - 1, -self._width):
                if (slice_ := self._slices.get(start)) is not None:
                    later, total = total, self._copy(slice_)
                    self._add(total, later)
                ends.append(total)
            self._ends, self._ends_of = ends[::-1], block_start
        return self._ends[(first - block_start) // self._width]

    def _start_up_to(self, block_start: int, end: int) -> Totals:
        """Return the total of a block's slices before ``end``, which is the caller's to read only."""
        if self._start_of != block_start or end < self._start_until:
            self._start, self._start_of, self._start_until = self._copy(None), block_start, block_start
        for start in range(self._start_until, end, self._width):
            self._add(self._start, self._slices.get(start))
        self._start_until = end
        return self._start

    def _copy(self, totals: Totals | None) -> Totals:
        return [empty(each) for each in self._aggregates] if totals is None else [list(each) for each in totals]

    def _add(self, totals: Totals, later: Totals | None) -> None:
        if later is not None:
            self.merges += len(totals)
            for aggregate, total, part in zip(self._aggregates, totals, later, strict=True):
                merge(aggregate, total, part)
