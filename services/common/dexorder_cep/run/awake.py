"""Runs of a stream that its next row can change. Pure.

A run with a guard is quiet while the rows can't change it: it has seen that its guard is false, or, if the guard is its
whole condition, that the guard is as it was. Then only a row for which the guard changes wakes it. All other runs are
awake for every row. Which runs are quiet is no part of the engine's state: restored runs are awake until the first row.

A quiet run of an alert is dropped: its latch is what its guard says for the newest row. The alert is at rest then, and
has a run again when a row changes the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dexorder_cep.run.delivery import Registration
from dexorder_cep.run.runs import DerivedRun, MatchRun, PlainRun
from dexorder_cep.run.stream import Row
from dexorder_cep.run.thresholds import Thresholds, holds

Run = PlainRun | MatchRun | DerivedRun
OtherRun = MatchRun | DerivedRun
MANY = 1_000
"""Entries removed from a dict at once after which it is copied: it keeps the memory of deleted entries."""


class AwakeRuns:
    """Runs by the order in which they were added: conditions, and all others."""

    __slots__ = ("_alerts", "_guarded", "_listed", "_others", "_plain", "_quiet", "_sorted")

    def __init__(self) -> None:
        self._plain: dict[int, PlainRun] = {}
        self._others: dict[int, OtherRun] = {}
        self._guarded: dict[int, Run] = {}
        self._alerts: dict[int, Registration] = {}
        self._quiet: Thresholds[Run | Registration] = Thresholds()
        self._listed: set[int] = set()
        self._sorted: tuple[list[PlainRun], list[OtherRun]] | None = None

    def add(self, run: Run, alert: Registration | None = None) -> None:
        """Add a run; its order must be set. An alert rests when the run is quiet."""
        self._sorted = None
        if isinstance(run, PlainRun):
            self._plain[run.order] = run
        else:
            self._others[run.order] = run
        if run.guard is not None:
            self._guarded[run.order] = run
        if alert is not None:
            self._alerts[run.order] = alert

    def discard(self, run: Run) -> None:
        """Remove a run."""
        self._sleep(run.order)
        self._alerts.pop(run.order, None)
        if run.order in self._listed:
            self._listed.discard(run.order)
            self._quiet.discard(run)

    def _sleep(self, order: int) -> None:
        self._sorted = None
        self._plain.pop(order, None)
        self._others.pop(order, None)
        self._guarded.pop(order, None)

    def rest(self, alerts: Iterable[tuple[int, Registration]]) -> None:
        """Let alerts without a run rest at their places."""
        new = []
        for place, alert in alerts:
            alert.place = place
            new.append(alert)
        self._quiet.add(new)

    def rouse(self, alert: Registration) -> None:
        """End the rest of an alert."""
        if alert.place:
            self._quiet.discard(alert)
            alert.place = 0

    def resting(self) -> Iterator[Registration]:
        """Yield the alerts at rest; between two rows, they have no run."""
        return (each for each in self._quiet if isinstance(each, Registration))

    def wake(self, before: Row, row: Row) -> list[Registration]:
        """Wake the runs whose guard a row changes; return the alerts at rest for which it does."""
        found = []
        for each in self._quiet.changed(before, row):
            if isinstance(each, Registration):
                found.append(each)
            else:
                self.add(each)
        return found

    def settle(self, row: Row) -> list[Registration]:
        """Note that all awake runs have taken a row; those that are quiet now sleep. Return the alerts that rest."""
        rested, new = list[Registration](), list[Run | Registration]()
        for order, run in list(self._guarded.items()):
            assert run.guard is not None
            if not run.is_quiet(holds(run.guard, row)):
                continue
            self._sleep(order)
            alert = self._alerts.pop(order, None)
            if alert is not None:
                rested.append(alert)
                if not alert.place:
                    alert.place = order
                    new.append(alert)
            elif order not in self._listed:
                self._listed.add(order)
                new.append(run)
        if len(rested) + len(new) > MANY:
            self._plain, self._others, self._guarded = dict(self._plain), dict(self._others), dict(self._guarded)
            self._alerts = dict(self._alerts)
        self._quiet.add(new)
        return rested

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
