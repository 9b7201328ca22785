"""Items by the thresholds of their guards: those whose guard changes from one row to the next one. Pure.

An item is a run, or an alert at rest.

Thresholds with the same column and operator are in one sorted list. For a value, the guards on one side of a place in
it are true, and the others false. From one row to the next one, the guards between two places change, and no others.
So a row costs two binary searches for each list, and a step for each guard that changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import ge, gt, le, lt
from typing import Any, Generic, Protocol, TypeVar

from dexorder_cep.compile.guards import Guard

_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
_FEW = 16
"""Items that are inserted one by one; more are sorted in together."""


class Guarded(Protocol):
    """Item with a guard."""

    @property
    def guard(self) -> Guard | None:
        """The guard."""


ItemT = TypeVar("ItemT", bound=Guarded)


def holds(guard: Guard, row: Sequence[Any]) -> bool:
    """Return whether a guard is true for a row."""
    value = row[guard.slot]
    return value is not None and bool(_COMPARE[guard.operator](value, guard.threshold))


class Thresholds(Generic[ItemT]):
    """Items by column and operator of their guards."""

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        self._lists: dict[tuple[int, str], _Sorted[ItemT]] = {}

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items, in no order."""
        return (item for each in self._lists.values() for item in each)

    def add(self, items: Iterable[ItemT]) -> None:
        """Add items that are not here."""
        for item in items:
            guard = item.guard
            assert guard is not None
            key = guard.slot, guard.operator
            if key not in self._lists:
                self._lists[key] = _Sorted(guard.operator)
            self._lists[key].add(item)

    def discard(self, item: ItemT) -> None:
        """Remove an item that is here."""
        guard = item.guard
        assert guard is not None
        self._lists[guard.slot, guard.operator].remove(item)

    def changed(self, before: Sequence[Any], row: Sequence[Any]) -> list[ItemT]:
        """Return the items whose guard is true for one of two rows, in no order; none without a row before."""
        found: list[ItemT] = []
        for (slot, _), each in self._lists.items() if before else ():
            if before[slot] is not row[slot]:
                found += each.between(before[slot], row[slot])
        return found


class _Sorted(Generic[ItemT]):
    """Items by threshold, ascending. New ones are sorted in when they are needed; removed ones stay until they are as
    many as the others."""

    __slots__ = ("_items", "_keys", "_new", "_place", "_removed", "_starts")

    def __init__(self, operator: str) -> None:
        self._keys: list[Any] = []
        self._items: list[ItemT] = []
        self._new: list[ItemT] = []
        self._removed: dict[int, ItemT] = {}
        # ``k < v`` and ``k <= v`` hold for the first keys, ``k > v`` and ``k >= v`` for the last ones.
        self._place = bisect_left if operator in (">", "<=") else bisect_right
        self._starts = operator in (">", ">=")

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items."""
        self._sort()
        return (each for each in self._items if id(each) not in self._removed)

    def add(self, item: ItemT) -> None:
        """Add an item."""
        if self._removed and id(item) in self._removed:
            self._clean()
        self._new.append(item)

    def _sort(self) -> None:
        new, self._new = self._new, []
        if len(new) > _FEW:
            keys = [*self._keys, *map(_threshold, new)]
            items = [*self._items, *new]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            self._keys, self._items = [keys[n] for n in order], [items[n] for n in order]
            return
        for item in new:
            key = _threshold(item)
            place = bisect_right(self._keys, key)
            self._keys.insert(place, key)
            self._items.insert(place, item)

    def remove(self, item: ItemT) -> None:
        """Remove an item."""
        self._removed[id(item)] = item
        if 2 * len(self._removed) > len(self._items) + len(self._new):
            self._clean()

    def _clean(self) -> None:
        self._sort()
        kept = [n for n, item in enumerate(self._items) if id(item) not in self._removed]
        self._keys, self._items = [self._keys[n] for n in kept], [self._items[n] for n in kept]
        self._removed = {}

    def between(self, before: Any, value: Any) -> list[ItemT]:
        """Return the items whose guard is true for exactly one of two values."""
        self._sort()
        first, last = sorted((self._border(before), self._border(value)))
        found = self._items[first:last]
        return [each for each in found if id(each) not in self._removed] if self._removed and found else found

    def _border(self, value: Any) -> int:
        """Return the place between true and false guards."""
        if value is None or value != value:
            return 0 if self._starts else len(self._keys)
        return self._place(self._keys, value)


def _threshold(item: Guarded) -> Any:
    guard = item.guard
    assert guard is not None
    return guard.threshold
