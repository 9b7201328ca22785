"""Runs by the thresholds of their guards: those whose guard changes from one row to the next one. Pure.

Thresholds with the same column and operator are in one sorted list. For a value, the guards on one side of a place in
it are true, and the others false. From one row to the next one, the guards between two places change, and no others.
So a row costs two binary searches for each list, and a step for each guard that changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import ge, gt, le, lt
from typing import Any, Generic, Protocol, TypeVar

from dexorder_cep.compile.guards import Guard

_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
_FEW = 16
"""Runs that are inserted one by one; more are sorted in together."""


class Guarded(Protocol):
    """Run with a guard."""

    @property
    def guard(self) -> Guard | None:
        """The guard."""

    @property
    def order(self) -> int:
        """Number that no other run of the stream has."""


RunT = TypeVar("RunT", bound=Guarded)


def holds(guard: Guard, row: Sequence[Any]) -> bool:
    """Return whether a guard is true for a row."""
    value = row[guard.slot]
    return value is not None and bool(_COMPARE[guard.operator](value, guard.threshold))


class Thresholds(Generic[RunT]):
    """Runs by column and operator of their guards."""

    __slots__ = ("_lists", "_of")

    def __init__(self) -> None:
        self._lists: dict[tuple[int, str], _Sorted[RunT]] = {}
        self._of: set[int] = set()

    def __contains__(self, order: int) -> bool:
        """Return whether a run is here, by its number."""
        return order in self._of

    def add(self, runs: Iterable[RunT]) -> None:
        """Add runs that are not here."""
        new: dict[tuple[int, str], list[tuple[Any, RunT]]] = {}
        for run in runs:
            guard = run.guard
            assert guard is not None
            self._of.add(run.order)
            new.setdefault((guard.slot, guard.operator), []).append((guard.threshold, run))
        for key, several in new.items():
            if key not in self._lists:
                self._lists[key] = _Sorted(key[1])
            self._lists[key].add(several)

    def discard(self, run: RunT) -> None:
        """Remove a run, if it is here."""
        guard = run.guard
        if guard is not None and run.order in self._of:
            self._of.discard(run.order)
            self._lists[guard.slot, guard.operator].remove(run.order)

    def changed(self, before: Sequence[Any], row: Sequence[Any]) -> list[RunT]:
        """Return the runs whose guard is true for one of two rows, in no order."""
        found: list[RunT] = []
        for (slot, _), each in self._lists.items():
            if before[slot] is not row[slot]:
                found += each.between(before[slot], row[slot])
        return found


class _Sorted(Generic[RunT]):
    """Runs by threshold, ascending. Removed runs stay until they are as many as the others."""

    __slots__ = ("_keys", "_place", "_removed", "_runs", "_starts")

    def __init__(self, operator: str) -> None:
        self._keys: list[Any] = []
        self._runs: list[RunT] = []
        self._removed: set[int] = set()
        # ``k < v`` and ``k <= v`` hold for the first keys, ``k > v`` and ``k >= v`` for the last ones.
        self._place = bisect_left if operator in (">", "<=") else bisect_right
        self._starts = operator in (">", ">=")

    def add(self, new: list[tuple[Any, RunT]]) -> None:
        """Add runs with their thresholds."""
        if self._removed and not self._removed.isdisjoint(run.order for _, run in new):
            self._clean()
        if len(new) > _FEW:
            pairs = [*zip(self._keys, self._runs, strict=True), *new]
            pairs.sort(key=lambda pair: pair[0])
            self._keys, self._runs = [key for key, _ in pairs], [run for _, run in pairs]
            return
        for key, run in new:
            place = bisect_right(self._keys, key)
            self._keys.insert(place, key)
            self._runs.insert(place, run)

    def remove(self, order: int) -> None:
        """Remove a run by its number."""
        self._removed.add(order)
        if 2 * len(self._removed) > len(self._runs):
            self._clean()

    def _clean(self) -> None:
        pairs = zip(self._keys, self._runs, strict=True)
        kept = [(key, run) for key, run in pairs if run.order not in self._removed]
        self._keys, self._runs = [key for key, _ in kept], [run for _, run in kept]
        self._removed = set()

    def between(self, before: Any, value: Any) -> list[RunT]:
        """Return the runs whose guard is true for exactly one of two values."""
        first, last = sorted((self._border(before), self._border(value)))
        found = self._runs[first:last]
        return [run for run in found if run.order not in self._removed] if self._removed and found else found

    def _border(self, value: Any) -> int:
        """Return the place between true and false guards."""
        if value is None or value != value:
            return 0 if self._starts else len(self._keys)
        return self._place(self._keys, value)
