"""A matcher that keeps whole rows of whole matches and asks the rules one by one: slow, and easy to check by reading.

It shares nothing with the engine but the rules of docs/cep.md: no automaton, no heap, no generated code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Numbers = list[float]
Taken = dict[int, Numbers]
"""Closes taken by each variable so far, by its index."""
Condition = Callable[[Taken, int, float], bool]
"""Whether a row with a close fits a variable, given what is taken; the row is not in ``taken``."""


class Variable(NamedTuple):
    """Variable of a pattern."""

    name: str
    least: int
    most: int | None
    greedy: bool
    condition: Condition


@dataclass(frozen=True)
class Partial:
    """Rows of a match so far: the variable of each, from the row with number ``start``."""

    start: int
    variables: tuple[int, ...]

    def count(self) -> int:
        """Return the rows of the newest variable."""
        return self.variables.count(self.variables[-1]) if self.variables else 0


@dataclass(frozen=True)
class Complete:
    """A finished match."""

    start: int
    variables: tuple[int, ...]


class NaiveMatcher:
    """Every reading of the rows, and which starts may be emitted."""

    def __init__(self, pattern: list[Variable], within: int | None, skip: str, skip_variable: int) -> None:
        self.pattern = pattern
        self.within = within
        self.skip = skip
        self.skip_variable = skip_variable
        self.closes: Numbers = []
        self.times: list[int] = []
        self.partials: list[Partial] = []
        self.completed: list[Complete] = []

    def expire(self, time: int) -> None:
        """Drop partial matches whose first row is too old."""
        if self.within is not None:
            self.partials = [each for each in self.partials if time - self.times[each.start] < self.within]

    def take(self, time: int, close: float) -> None:
        """Extend every partial match by a row in every way, and begin new ones."""
        number = len(self.closes)
        self.closes.append(close)
        self.times.append(time)
        grown: list[Partial] = []
        for partial in [*self.partials, Partial(number, ())]:
            taken: Taken = {}
            for offset, variable in enumerate(partial.variables):
                taken.setdefault(variable, []).append(self.closes[partial.start + offset])
            for variable in range(len(self.pattern)):
                if self._may_take(partial, variable, taken, close):
                    longer = Partial(partial.start, (*partial.variables, variable))
                    if self._may_continue(longer):
                        grown.append(longer)
                    if self._is_complete(longer, taken, close):
                        self.completed.append(Complete(longer.start, longer.variables))
        self.partials = grown

    def _fits(self, variable: int, taken: Taken, close: float) -> bool:
        return self.pattern[variable].condition(taken, variable, close)

    def _not_kept_by_a_loop(self, left: int, entered: int, taken: Taken, close: float) -> bool:
        """Tell whether no greedy variable between two keeps the row: a greedy loop never gives back a row."""
        return not any(
            self.pattern[each].greedy and self._fits(each, taken, close) for each in range(max(left, 0), entered)
        )

    def _may_take(self, partial: Partial, variable: int, taken: Taken, close: float) -> bool:
        current = partial.variables[-1] if partial.variables else -1
        if variable == current:
            most = self.pattern[variable].most
            return (most is None or partial.count() < most) and self._fits(variable, taken, close)
        if variable < current:
            return False
        left = current >= 0 and partial.count() < self.pattern[current].least
        skipped = any(self.pattern[each].least > 0 for each in range(current + 1, variable))
        if left or skipped or not self._fits(variable, taken, close):
            return False
        return self._not_kept_by_a_loop(current, variable, taken, close)

    def _may_continue(self, partial: Partial) -> bool:
        last = partial.variables[-1]
        most = self.pattern[last].most
        return last < len(self.pattern) - 1 or most is None or partial.count() < most

    def _is_complete(self, partial: Partial, taken: Taken, close: float) -> bool:
        last = partial.variables[-1]
        if partial.count() < self.pattern[last].least or any(each.least for each in self.pattern[last + 1 :]):
            return False
        return self._not_kept_by_a_loop(last, len(self.pattern) - 1, taken, close)

    def may_emit(self) -> int | None:
        """Return the start of the match that is to be emitted next, or None: no older partial match may be left."""
        start = min((each.start for each in self.completed), default=None)
        if start is None or any(each.start < start for each in self.partials):
            return None
        return start

    def emitted(self, start: int, variables: tuple[int, ...]) -> None:
        """Take note of the match that the engine chose among those with this start, and skip."""
        assert Complete(start, variables) in self.completed, "the engine emitted what is no match"
        if self.skip == "next":
            limit = start + 1
        elif self.skip == "past":
            limit = start + len(variables)
        else:
            rows = [start + n for n, variable in enumerate(variables) if variable == self.skip_variable]
            limit = rows[0] if self.skip == "first" else rows[-1]
        self.partials = [each for each in self.partials if each.start >= limit]
        self.completed = [each for each in self.completed if each.start >= limit]
