"""Matcher of patterns in which each row of a match has one place. Pure.

A partial match of such a pattern is the sequence number of its first row, which says how many rows it has, and so its
state and where each variable starts. No two of them start at one row, and a complete match is the oldest one, so it is
emitted at once. Places without a condition cost nothing. Results, limits and the dumped state are those of
``dexorder_cep.run.matcher``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from dexorder_cep.compile.plans import MatchPlan
from dexorder_cep.run.account import Account
from dexorder_cep.run.java_heap import Heap
from dexorder_cep.run.matcher import SHORT_SPAN, START, Found, check_limits, complete_match, few_matches, skip_target
from dexorder_cep.run.stream import RowsOfTicker


class LinearMatcher:
    """Partial matches of one trigger on one ticker."""

    __slots__ = ("_account", "_few", "_firsts", "_next", "_plan")

    def __init__(self, plan: MatchPlan, account: Account) -> None:
        """Start without a match. The pattern has places."""
        self._plan = plan
        self._account = account
        self._few = few_matches(plan)
        self._firsts: list[int] = []
        self._next = 0

    @property
    def oldest(self) -> int:
        """Sequence number of the oldest row that a match needs; ``START`` if none does."""
        return self._firsts[0] if self._firsts else START

    def on_row(self, stream: RowsOfTicker, n: int, row: tuple[Any, ...]) -> list[Found]:
        """Take the row with sequence number ``n``, the newest of ``stream``; return matches.

        Raises:
            TriggerFailed: The trigger needs more than it may use, or Flink would fail here.
        """
        rows, base, ticker = stream.rows, stream.base, stream.ticker
        firsts, places = self._firsts, self._plan.places
        start, last = places[0].step, len(places) - 1
        if firsts:
            self.on_time(stream, row[0])
            if len(firsts) >= self._few or (firsts and n - firsts[0] > SHORT_SPAN):
                check_limits(self._plan, self._account, len(firsts) + 1, n - self.oldest, row[0])
        begins = start if type(start) is int else start(rows, base, n, row, (), ticker, None)  # type: ignore[operator]
        if not firsts and not begins:
            return []
        self._next = n + 1
        complete: int | None = None
        for number, _, starts, step in self._plan.tested:
            first = n - number
            if not firsts or first < firsts[0]:
                continue
            index = 0 if first == firsts[0] else bisect_left(firsts, first)
            if index == len(firsts) or firsts[index] != first:
                continue
            fits: Any = step
            if type(step) is not int:
                fits = step(rows, base, n, row, tuple([first + each for each in starts]), ticker, None)  # type: ignore[operator]
            if number == last or not fits:
                del firsts[index]
                complete = first if fits else complete
        if begins:
            if last:
                firsts.append(n)
            else:
                complete = n
        return [] if complete is None else [self._complete(stream, complete, n + 1, row[0])]

    def _complete(self, stream: RowsOfTicker, first: int, after: int, time_ns: int) -> Found:
        """Return the match that starts at a row, and skip after it."""
        plan = self._plan
        starts, last = plan.places[-1].starts, len(plan.places) - 1
        starts += (last,) * (len(plan.variables) - len(starts))
        bounds = tuple([first + each for each in starts])
        limit = skip_target(plan, first, after, bounds)
        del self._firsts[: bisect_left(self._firsts, limit)]
        return complete_match(plan, self._account, stream, first, after, bounds, time_ns)

    def on_time(self, stream: RowsOfTicker, time_ns: int) -> list[Found]:
        """Drop the partial matches that WITHIN ends at a time; no match waits for them."""
        within, firsts = self._plan.within_ns, self._firsts
        while within and firsts and time_ns - stream.rows[firsts[0] - stream.base][0] >= within:
            del firsts[0]
        return []

    def dump(self) -> tuple[Heap, Heap]:
        """Return the partial and the waiting matches, as `Matcher` does."""
        places = self._plan.places
        partials: Heap = []
        for first in self._firsts:
            place = places[self._next - first]
            partials.append((first, place.state, tuple([first + each for each in place.starts])))
        return [*partials, (START, places[0].state, ())], []

    def restore(self, partials: Heap, completed: Heap) -> None:
        """Take over matches."""
        numbers = {each.state: each.number for each in self._plan.places}
        for first, state, _ in partials:
            if first != START:
                self._firsts.append(first)
                self._next = first + numbers[state]
