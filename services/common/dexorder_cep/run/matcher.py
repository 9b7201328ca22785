"""Incremental matcher of MATCH_RECOGNIZE with the rules of Flink's NFA. Pure.

Rows of a match follow one another without a gap, and a variable stands in a pattern once. A partial match is
therefore ``(first, state, bounds)``: the sequence number of its first row, the state of the automaton, and the
sequence number of the first row of each variable so far. The rows of a variable end where the rows of the next one
start; the rows of the last one end before the current row. A partial match does not copy rows.

Rules of Flink that differ from other databases:

- a finished match waits until no older partial match is left (``_emit``);
- of the matches that start at one row, one is emitted; which one depends on the order in java.util.PriorityQueue;
- after each match, partial and finished matches are dropped by AFTER MATCH SKIP, not rows;
- WITHIN drops a partial match as soon as a row, or the watermark, is that far from its first row.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from dexorder_cep.compile.arithmetic import TriggerFailed
from dexorder_cep.compile.plans import MatchPlan, Move
from dexorder_cep.language.refusals import (
    MAX_PARTIAL_MATCHES,
    MAX_SPAN_ROWS,
    MAX_WORK_PER_ROW,
)
from dexorder_cep.run.account import Account
from dexorder_cep.run.java_heap import Heap, pop, push, remove
from dexorder_cep.run.stream import RowsOfTicker

START = sys.maxsize
"""First row of the partial match without rows; Flink orders it last."""
SHORT_SPAN = 128
_LITTLE_WORK = 4_000
"""Rows of a match, and work for a row, below which it is not examined whether a limit is exceeded."""
_LITTLE_MEASURES = MAX_WORK_PER_ROW // MAX_PARTIAL_MATCHES
"""Measures that cost no more are not counted: the most matches that one row can end stay within the limit of a row."""


class Found(NamedTuple):
    """Match: sequence numbers of its first row and of the row after its last one, time of emission, measures."""

    first: int
    after: int
    time_ns: int
    values: tuple[Any, ...]


class Matcher:
    """Partial and waiting matches of one trigger on one ticker."""

    __slots__ = ("_account", "_few", "_plan", "_start_step", "completed", "partials")

    def __init__(self, plan: MatchPlan, account: Account) -> None:
        self._plan = plan
        self._account = account
        self._start_step = plan.steps[plan.automaton.start][0]
        self._few = few_matches(plan)
        self.partials: Heap = [(START, plan.automaton.start, ())]
        self.completed: Heap = []

    @property
    def oldest(self) -> int:
        """Sequence number of the oldest row that a match needs; ``START`` if none does."""
        first: int = self.partials[0][0]
        if self.completed:
            first = min(first, self.completed[0][0])
        return first

    def on_row(self, stream: RowsOfTicker, n: int, row: tuple[Any, ...]) -> list[Found]:
        """Take the row with sequence number ``n``, the newest of ``stream``; return matches in Flink's order.

        Raises:
            TriggerFailed: The trigger needs more than it may use, or Flink would fail here.
        """
        partials, rows, base, ticker = self.partials, stream.rows, stream.base, stream.ticker
        if len(partials) == 1 and not self.completed:
            step = self._start_step
            if not (step if type(step) is int else step(rows, base, n, row, (), ticker, None)):  # type: ignore[operator]
                return []
            found: list[Found] = []
        else:
            found = self.on_time(stream, row[0])
            partials = self.partials
            if len(partials) + len(self.completed) > self._few or n - partials[0][0] > SHORT_SPAN:
                count = len(partials) + len(self.completed)
                check_limits(self._plan, self._account, count, n - self.oldest, row[0])
        new: Heap = []
        potential: Heap = []
        steps, moves = self._plan.steps, self._plan.moves
        size = 0
        for partial in partials:  # this loop is most of a trigger's cost
            first, state, bounds = partial
            known = len(bounds)
            step = steps[state][known]
            mask = step if type(step) is int else step(rows, base, n, row, bounds, ticker, None)  # type: ignore[operator]
            if mask:
                begin = n if first == START else first
                for many, target, completes in moves[state].get(mask) or self._moves(state, mask):
                    longer = bounds if many == known else bounds + (n,) * (many - known)
                    if target is not None:
                        if size and begin < new[(size - 1) >> 1][0]:
                            push(new, (begin, target, longer))
                        else:
                            new.append((begin, target, longer))
                        size += 1
                    if completes:
                        push(potential, (begin, n + 1, longer))
            if first == START:
                new.append(partial)  # as the last of all
                size += 1
        self.partials = new
        if potential:
            for element in potential:
                push(self.completed, element)
        if self.completed:
            found += self._emit(stream, row[0])
        return found

    def _moves(self, state: int, mask: int) -> tuple[Move, ...]:
        """Return the meaning of a bit set of a state's step."""
        found = tuple(
            (take.variable + 1, take.target, take.target is None or bool(mask >> 2 * index & 2))
            for index, take in enumerate(self._plan.automaton.states[state])
            if mask >> 2 * index & 1
        )
        self._plan.moves[state][mask] = found
        return found

    def on_time(self, stream: RowsOfTicker, time_ns: int) -> list[Found]:
        """Drop the partial matches that WITHIN ends at a time; return the matches that waited for them."""
        within = self._plan.within_ns
        first = self.partials[0][0]
        rows, base = stream.rows, stream.base
        if not within or first == START or time_ns - rows[first - base][0] < within:
            return []
        kept: Heap = []
        for element in self.partials:
            if element[0] == START or time_ns - rows[element[0] - base][0] < within:
                push(kept, element)
        self.partials = kept
        return self._emit(stream, time_ns) if self.completed else []

    def _emit(self, stream: RowsOfTicker, time_ns: int) -> list[Found]:
        """Return the finished matches for which no older partial match is left, and skip after each of them."""
        found: list[Found] = []
        completed, partials = self.completed, self.partials
        while completed and completed[0][0] <= partials[0][0]:
            first, after, bounds = pop(completed)
            limit = skip_target(self._plan, first, after, bounds)
            for heap in (partials, completed):
                remove(heap, lambda element: element[0] < limit)  # noqa: B023
            found.append(complete_match(self._plan, self._account, stream, first, after, bounds, time_ns))
        return found

    def dump(self) -> tuple[Heap, Heap]:
        """Return the partial and the waiting matches."""
        return self.partials, self.completed

    def restore(self, partials: Heap, completed: Heap) -> None:
        """Take over matches."""
        self.partials, self.completed = partials, completed


def few_matches(plan: MatchPlan) -> int:
    """Return how many partial matches are little work, whatever their rows are."""
    most = min(_LITTLE_WORK, MAX_WORK_PER_ROW) // (plan.weight + plan.aggregates * SHORT_SPAN)
    return min(most, MAX_PARTIAL_MATCHES)


def check_limits(plan: MatchPlan, account: Account, count: int, span: int, time_ns: int) -> None:
    """Count the work for a row.

    Args:
        count: Number of matches.
        span: Rows from the first one of the oldest match to the newest row.

    Raises:
        TriggerFailed: There are too many matches, or they have too many rows.
    """
    if count > MAX_PARTIAL_MATCHES:
        raise TriggerFailed(f"more than {MAX_PARTIAL_MATCHES} unfinished matches; add WITHIN or a stricter DEFINE")
    if span > MAX_SPAN_ROWS:
        raise TriggerFailed(f"an unfinished match has more than {MAX_SPAN_ROWS} rows; add WITHIN")
    account.spend(
        count * (plan.weight + plan.aggregates * max(span, 0)),
        time_ns,
        because=f"{count} unfinished matches of up to {span} rows",
        remedy="add WITHIN or a stricter DEFINE",
    )


def complete_match(
    plan: MatchPlan,
    account: Account,
    stream: RowsOfTicker,
    first: int,
    after: int,
    bounds: tuple[int, ...],
    time_ns: int,
) -> Found:
    """Return a match with its measures; TriggerFailed if they cost too much. One row may end thousands of matches."""
    steps = plan.measured_weight + plan.measured_aggregates * (after - first)
    if steps > _LITTLE_MEASURES:
        because = f"the measures of a match of {after - first} rows"
        account.spend(steps, time_ns, because=because, remedy="add WITHIN, or take fewer aggregates")
    measure = plan.measures[len(bounds)]
    return Found(first, after, time_ns, measure(stream.rows, stream.base, after, None, bounds, stream.ticker, time_ns))


def skip_target(plan: MatchPlan, first: int, after: int, bounds: tuple[int, ...]) -> int:
    """Return the sequence number from which matches may start after a match."""
    if plan.skip == "next":
        return first + 1
    if plan.skip == "past":
        return after
    variable = plan.skip_variable
    begin = bounds[variable] if variable < len(bounds) else after
    end = bounds[variable + 1] if variable + 1 < len(bounds) else after
    name = plan.variables[variable]
    if begin >= end:
        raise TriggerFailed(f"AFTER MATCH SKIP TO {name}: the match contains no row of {name}")
    target = begin if plan.skip == "first" else end - 1
    if target == first:
        raise TriggerFailed(f"AFTER MATCH SKIP TO {name}: that is the first row of the match")
    return target
