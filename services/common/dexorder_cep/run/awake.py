"""Runs of a stream that its next row can change. Pure.

A run with a guard is quiet while the rows can't change it: it has seen that its guard is false, or, if the guard is its
whole condition, that the guard is as it was. Then only a row for which the guard changes wakes it. All other runs are
awake for every row. Which runs are quiet is no part of the engine's state: restored runs are awake until the first row.
"""

from __future__ import annotations

from dexorder_cep.run.runs import DerivedRun, MatchRun, PlainRun
from dexorder_cep.run.stream import Row
from dexorder_cep.run.thresholds import Thresholds, holds

Run = PlainRun | MatchRun | DerivedRun
OtherRun = MatchRun | DerivedRun
_MANY = 1_000


class AwakeRuns:
    """Runs by the order in which they were added: conditions, and all others."""

    __slots__ = ("_guarded", "_others", "_plain", "_quiet", "_row", "_sorted")

    def __init__(self) -> None:
        self._plain: dict[int, PlainRun] = {}
        self._others: dict[int, OtherRun] = {}
        self._guarded: dict[int, Run] = {}
        self._quiet: Thresholds[Run] = Thresholds()
        self._row: Row = ()
        self._sorted: tuple[list[PlainRun], list[OtherRun]] | None = None

    def add(self, run: Run) -> None:
        """Add a run; its order must be set."""
        self._sorted = None
        if isinstance(run, PlainRun):
            self._plain[run.order] = run
        else:
            self._others[run.order] = run
        if run.guard is not None:
            self._guarded[run.order] = run

    def discard(self, run: Run) -> None:
        """Remove a run."""
        self._sleep(run.order)
        self._quiet.discard(run)

    def _sleep(self, order: int) -> None:
        self._sorted = None
        self._plain.pop(order, None)
        self._others.pop(order, None)
        self._guarded.pop(order, None)

    def wake(self, row: Row) -> None:
        """Wake the runs whose guard a row changes."""
        if self._row:
            for run in self._quiet.changed(self._row, row):
                self.add(run)

    def settle(self, row: Row) -> None:
        """Note that all awake runs have taken a row; those that are quiet now sleep."""
        self._row = row
        new: list[Run] = []
        for order, run in list(self._guarded.items()):
            assert run.guard is not None
            if run.is_quiet(holds(run.guard, row)):
                self._sleep(order)
                if order not in self._quiet:
                    new.append(run)
        if len(new) > _MANY:  # a dict keeps the memory of its deleted entries
            self._plain, self._others, self._guarded = dict(self._plain), dict(self._others), dict(self._guarded)
        self._quiet.add(new)

    def plain(self) -> list[PlainRun]:
        """Return the conditions that are awake, in order."""
        return self._lists()[0]

    def others(self) -> list[OtherRun]:
        """Return the patterns and the runs on derived rows that are awake, in order."""
        return self._lists()[1]

    def _lists(self) -> tuple[list[PlainRun], list[OtherRun]]:
        if self._sorted is None:
            plain, others = self._plain, self._others
            self._sorted = [plain[n] for n in sorted(plain)], [others[n] for n in sorted(others)]
        return self._sorted
