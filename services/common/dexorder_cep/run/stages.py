"""Derived rows: WHERE, OVER and windows before a trigger's own condition or pattern. Pure.

A derived row is a tuple of its time, its identity (the id of the newest trade, or the end of its window), and its
columns. A stage is the state of one step of a trigger on one ticker.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Any, TypeAlias

from dexorder_cep.compile.aggregates import Accumulator, add, empty, of_values, result
from dexorder_cep.compile.plans import OverColumn, RowStep, Step, WindowStep
from dexorder_cep.run.account import Account, value_size
from dexorder_cep.run.stream import MILLISECOND_NS, Row
from dexorder_cep.run.window_totals import WindowTotals

_UNCOUNTED = 4
"""Values of OVER that are not counted as work: the counters take more memory than CROSSES, which has two or four."""
_ACCUMULATOR_BYTES = 240
"""Memory of an accumulator, and of the total of a window that is kept for it."""


class RowStage:
    """State of a SELECT over rows: the values that OVER looks back at."""

    def __init__(self, step: RowStep, account: Account) -> None:
        self._step = step
        self._account = account
        self._history: list[list[Any]] = [[] for _ in step.over]

    def push(self, row: Row, ticker: str) -> Row | None:
        """Return the derived row, or None if WHERE drops it."""
        return self._derive(row, ticker, self._history)

    def peek(self, row: Row, ticker: str) -> Row | None:
        """Return the result of ``push`` without its effects: the row may still change."""
        held = self._account.state_bytes
        derived = self._derive(row, ticker, [list(each) for each in self._history])
        self._account.state_bytes = held
        return derived

    def _derive(self, row: Row, ticker: str, history: list[list[Any]]) -> Row | None:
        step = self._step
        if step.keeps is not None and not step.keeps(row, ticker):
            return None
        identity = row[step.identity] if step.identity is not None else None
        if step.over:
            account = self._account
            row = row + tuple(_over(*each, row, ticker, account) for each in zip(step.over, history, strict=True))
            steps = sum(map(len, history))
            if steps > _UNCOUNTED:
                account.spend(steps, row[0], because="values of OVER")
        return row if step.values is None else (row[0], identity, *step.values(row, ticker))

    def close(self, watermark_ns: int) -> list[Row]:
        """Return no row: rows do not wait."""
        return []

    def dump(self) -> Any:
        """Return the state as JSON values."""
        return self._history

    def restore(self, state: Any) -> None:
        """Take over a state that ``dump`` returned."""
        self._history = state
        self._account.hold(sum(value_size(value) for history in state for value in history))


def _over(column: OverColumn, history: list[Any], row: Row, ticker: str, account: Account) -> Any:
    """Add a row to the values that a column looks back at; return the column's value."""
    argument = column.aggregate.argument
    value = 1 if argument is None else argument(row, ticker)
    history.append(value)
    size = value_size(value)
    if len(history) > column.rows + column.lag:
        size -= value_size(history.pop(0))
    if size:
        account.hold(size)
    if column.lag:
        return history[0] if len(history) > column.rows else None
    return of_values(column.aggregate, history)


class WindowStage:
    """State of windows: an accumulator for each aggregate and slice, by the start of the slice.

    A row is in one slice. A window is read when the watermark passes its end, and a slice is dropped after the last of
    its windows.
    """

    def __init__(self, step: WindowStep, account: Account) -> None:
        self._step = step
        self._account = account
        self._texts = tuple(number for number, each in enumerate(step.aggregates) if each.type.is_text)
        self._slices: dict[int, list[Accumulator]] = {}
        self._starts: list[int] = []
        self._totals = WindowTotals(step, self._slices)
        self._closed_ns = -(2**63) // step.slice_ns * step.slice_ns

    def push(self, row: Row, ticker: str) -> None:
        """Add a row to its slice."""
        step = self._step
        if step.keeps is not None and not step.keeps(row, ticker):
            return
        start = row[0] - row[0] % step.slice_ns
        if self._last_end(start) <= self._closed_ns:
            return  # a late row: its windows have ended
        self._totals.changed(start)
        accumulators = self._slices.get(start)
        if accumulators is None:
            accumulators = self._slices[start] = [empty(each) for each in step.aggregates]
            insort(self._starts, start)
            self._account.hold(self._size(accumulators))
        before = self._size(accumulators) if self._texts else 0
        for aggregate, state in zip(step.aggregates, accumulators, strict=True):
            add(aggregate, state, 1 if aggregate.argument is None else aggregate.argument(row, ticker))
        if self._texts:
            self._account.hold(self._size(accumulators) - before)

    def _size(self, accumulators: list[Accumulator]) -> int:
        texts = sum(value_size(accumulators[number][1]) for number in self._texts)
        return _ACCUMULATOR_BYTES * len(accumulators) + texts

    def close(self, watermark_ns: int) -> list[Row]:
        """Return the windows that end by a watermark and were not returned before, oldest first."""
        width = self._step.slice_ns
        limit = (watermark_ns + MILLISECOND_NS) // width * width
        if limit <= self._closed_ns or not self._slices:
            return []
        found = [self._window(end) for end in self._ends(limit)]
        self._closed_ns = limit
        while self._starts and self._last_end(self._starts[0]) <= limit:
            self._account.hold(-self._size(self._slices.pop(self._starts.pop(0))))
        return found

    def _ends(self, limit: int) -> Iterator[int]:
        """Yield the ends of windows with a slice that were not returned before, up to a time."""
        width, starts, place = self._step.slice_ns, self._starts, 0
        end = max(starts[0], self._closed_ns) + width
        while end <= limit:
            while place < len(starts) and self._last_end(starts[place]) < end:
                place += 1
            if place == len(starts):
                return
            end = max(end, starts[place] + width)
            if end <= limit:
                yield end
            end += width

    def _last_end(self, start: int) -> int:
        """Return the end of the last window that has a slice."""
        step = self._step
        if step.kind == "CUMULATE":
            return start - start % step.size_ns + step.size_ns
        return start + step.size_ns

    def _window(self, end: int) -> Row:
        step = self._step
        first = end - step.size_ns
        if step.kind == "CUMULATE":
            first = (end - 1) - (end - 1) % step.size_ns
        merges = self._totals.merges
        totals = self._totals.of(first, end, step.size_ns)
        spent = self._totals.merges - merges + len(totals)
        self._account.spend(spent, end - 1, because="slices of a window", remedy="take fewer aggregates")
        values = (result(each, total) for each, total in zip(step.aggregates, totals, strict=True))
        return (end - MILLISECOND_NS, str(end), first, end, *values)

    def dump(self) -> Any:
        """Return the state as JSON values."""
        return [self._closed_ns, [(start, self._slices[start]) for start in self._starts]]

    def restore(self, state: Any) -> None:
        """Take over a state that ``dump`` returned."""
        self._closed_ns, slices = state
        self._slices.update(slices)
        self._starts = sorted(self._slices)
        self._account.hold(sum(map(self._size, self._slices.values())))


Stage: TypeAlias = RowStage | WindowStage


def start_stage(step: Step, account: Account) -> Stage:
    """Return a stage without any row."""
    return WindowStage(step, account) if isinstance(step, WindowStep) else RowStage(step, account)
