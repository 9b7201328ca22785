"""A trigger on one ticker: its memory between rows, and its results. Pure.

Every run has ``on_row`` for the newest row of a stream (``silent`` for rows before the registration, which must not
fire), ``on_time`` for a watermark if it is ``timed`` (``at_ns`` is the time of the registration), ``oldest``, the
sequence number of the oldest row that it needs, and ``dump`` and ``restore`` of its state as JSON values.

A run has the ``guard`` of its condition or pattern, ``is_quiet`` (whether no row can change it while the guard stays as
it is for the newest one), and the ``trigger_id`` and ``order`` that its stream gives it.

Delivery (cooldown, limits of an event, end of the trigger) is in ``dexorder_cep.run.delivery``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dexorder_cep.compile.guards import Guard
from dexorder_cep.compile.plans import PatternPlan, PlainPlan, WindowStep
from dexorder_cep.compile.trigger import CompiledTrigger
from dexorder_cep.language.refusals import MAX_OFFSET
from dexorder_cep.run.account import Account, size_of
from dexorder_cep.run.linear import LinearMatcher
from dexorder_cep.run.matcher import START, Matcher
from dexorder_cep.run.stages import WindowStage, start_stage
from dexorder_cep.run.stream import Row, RowsOfTicker

TRIM_ROWS = 2 * MAX_OFFSET
"""Derived rows that are kept before the oldest ones are looked at."""


class RunResult(NamedTuple):
    """Rows that a trigger has at one moment.

    Attributes:
        kind: ``match``, ``row`` (a condition holds) or ``resolved`` (it no longer does).
        first: First row of the result, for the event's id.
        last: Last row.
        time_ns: Time of the result in the scale of ``ts``.
        rows: Values of the columns.
        emitted_by: ``row``, or ``watermark`` if the passing of time gave the result.
    """

    kind: str
    first: Row
    last: Row
    time_ns: int
    rows: tuple[tuple[Any, ...], ...]
    emitted_by: str


class PlainRun:
    """Plain condition: fires when it becomes true (edge, once) or for every row (level).

    ``latch`` is whether the condition holds and was seen to; None before the first row. With ``rearm`` it stays true
    until the value is far enough behind the threshold. With ``level`` it is always false, so that every row that fits
    differs.
    """

    __slots__ = ("_arms", "_plan", "_resolve", "_sticky", "latch", "order", "test", "timed", "trigger_id")

    def __init__(self, trigger: CompiledTrigger) -> None:
        assert isinstance(trigger.plan, PlainPlan)
        self.trigger_id, self.order = "", 0
        self._plan = trigger.plan
        self.test = trigger.plan.condition
        self.timed = False
        self._sticky = trigger.parameters.fire != "level"
        self._resolve = trigger.parameters.resolve
        self._arms = self._sticky and trigger.parameters.initial == "arm"
        self.latch: bool | None = None if self._arms else False

    @property
    def oldest(self) -> int:
        """No row is needed."""
        return START

    @property
    def guard(self) -> Guard | None:
        """Comparison without which the condition does not hold."""
        return self._plan.guard

    def is_quiet(self, holds: bool) -> bool:
        """Return whether no row can change it while its guard, which holds or not, does not."""
        guard = self._plan.guard
        if guard is not None and guard.exact and self._sticky:
            return self.latch is holds
        return self.latch is False and not holds

    def on_row(self, stream: RowsOfTicker, n: int, row: Row, silent: bool) -> RunResult | None:
        """Take a row."""
        fits = self.test(row, stream.ticker)
        if fits is self.latch:
            return None
        if silent:
            if self._arms:
                self.latch = fits
            return None
        return self.changed(stream, row, fits)

    def changed(self, stream: RowsOfTicker, row: Row, fits: bool) -> RunResult | None:
        """Take a row for which the condition differs from the latch."""
        known = self.latch
        if fits:
            if self._sticky:
                self.latch = True
            return None if known is None else self._result("row", stream, row)
        if known and self._plan.rearmed is not None and not self._plan.rearmed(row, stream.ticker):
            return None
        self.latch = False
        return self._result("resolved", stream, row) if known and self._resolve else None

    def _result(self, kind: str, stream: RowsOfTicker, row: Row) -> RunResult:
        values = self._plan.projection.values(row, stream.ticker)
        return RunResult(kind, row, row, row[0], (values,), "row")

    def missed(self, stream: RowsOfTicker, row: Row, silent: bool) -> RunResult | None:
        """Take a row that does not fit because a step before has dropped it."""
        if self.latch is False:
            return None
        if silent:
            self.latch = False
            return None
        return self.changed(stream, row, fits=False)

    def take_over(self, latch: bool | None, stream: RowsOfTicker, newest: tuple[Row | None, bool] | None) -> None:
        """Continue after the condition of an edited trigger, as if this one had been in its place.

        Args:
            latch: The latch of the one before.
            newest: The row that it has seen last, or None if that was dropped, and whether silently; None without one.
        """
        if self._plan.rearmed is not None:
            self.latch = latch
        elif newest is not None and self._sticky:
            row, silent = newest
            if row is not None:
                self.on_row(stream, 0, row, silent)
            elif self._arms or not silent:
                self.latch = False

    def on_time(self, stream: RowsOfTicker, time_ns: int, at_ns: int) -> list[RunResult]:
        """Do nothing: a condition depends on rows only."""
        return []

    def dump(self) -> Any:
        """Return the latch."""
        return self.latch

    def restore(self, state: Any) -> None:
        """Take over a latch."""
        self.latch = state


class MatchRun:
    """MATCH_RECOGNIZE."""

    __slots__ = ("_matcher", "_plan", "order", "timed", "trigger_id")

    def __init__(self, trigger: CompiledTrigger, account: Account) -> None:
        assert isinstance(trigger.plan, PatternPlan)
        self.trigger_id, self.order = "", 0
        self._plan = trigger.plan
        match = trigger.plan.match
        self._matcher = LinearMatcher(match, account) if match.places else Matcher(match, account)
        self.timed = trigger.plan.match.within_ns > 0

    @property
    def oldest(self) -> int:
        """First row of the oldest match, and rows before it for PREV."""
        return self._matcher.oldest - self._plan.match.reach if self._matcher.oldest != START else START

    @property
    def guard(self) -> Guard | None:
        """Comparison without which no match starts."""
        return self._plan.match.guard

    def is_quiet(self, holds: bool) -> bool:
        """Return whether no row can change it while its guard, which holds or not, does not."""
        return not holds and self._matcher.oldest == START

    def on_row(self, stream: RowsOfTicker, n: int, row: Row, silent: bool) -> RunResult | None:
        """Take a row."""
        found = self._matcher.on_row(stream, n, row)
        return self._result(stream, found, "row") if found and not silent else None

    def on_time(self, stream: RowsOfTicker, time_ns: int, at_ns: int) -> list[RunResult]:
        """Take a watermark."""
        found = self._matcher.on_time(stream, time_ns)
        result = self._result(stream, found, "watermark") if found else None
        return [result] if result is not None else []

    def _result(self, stream: RowsOfTicker, found: Iterable[Any], emitted_by: str) -> RunResult | None:
        ticker, plan = stream.ticker, self._plan
        kept = [match for match in found if plan.keeps is None or plan.keeps(match.values, ticker)]
        if not kept:
            return None
        rows = tuple(plan.projection.values(match.values, ticker) for match in kept)
        first, last = kept[0], kept[-1]
        ring, base = stream.rows, stream.base
        return RunResult(
            "match", ring[first.first - base], ring[last.after - 1 - base], first.time_ns, rows, emitted_by
        )

    def dump(self) -> Any:
        """Return the partial and the waiting matches; None without any."""
        matcher = self._matcher
        if matcher.oldest == START:
            return None
        return [*matcher.dump()]

    def restore(self, state: Any) -> None:
        """Take over matches."""
        partials, completed = state
        self._matcher.restore(
            [(first, at, tuple(bounds)) for first, at, bounds in partials],
            [(first, after, tuple(bounds)) for first, after, bounds in completed],
        )


class DerivedRun:
    """Condition or pattern on derived rows: stages, and a run on their rows."""

    __slots__ = ("_account", "_filtered", "_inner", "_newest", "_rows", "_stages", "order", "timed", "trigger_id")

    def __init__(self, trigger: CompiledTrigger, ticker: str, account: Account) -> None:
        self.trigger_id, self.order = "", 0
        self._account = account
        self._stages = [start_stage(step, account) for step in trigger.plan.steps]
        self._inner = PlainRun(trigger) if isinstance(trigger.plan, PlainPlan) else MatchRun(trigger, account)
        self._filtered = isinstance(trigger.plan, PlainPlan) and trigger.plan.filtered
        self._rows = RowsOfTicker(ticker)
        self._newest: tuple[bool, bool] | None = None  # whether the newest row was dropped, and was silent
        self.timed = self._inner.timed or any(isinstance(step, WindowStep) for step in trigger.plan.steps)

    @property
    def oldest(self) -> int:
        """No row of the table is needed: the stages keep the rows that they need."""
        return START

    @property
    def guard(self) -> Guard | None:
        """None: it takes every row."""
        return None

    def is_quiet(self, holds: bool) -> bool:
        """Return False: it takes every row."""
        return False

    def on_row(self, stream: RowsOfTicker, n: int, row: Row, silent: bool) -> RunResult | None:
        """Take a row of the table."""
        derived = self._derive(row, 0)
        if derived is not None:
            return self._step(derived, silent)
        if self._filtered and isinstance(self._inner, PlainRun):
            self._newest = True, silent
            return self._inner.missed(self._rows, row, silent)
        return None

    def on_late(self, row: Row) -> None:
        """Take a row that is late: windows that it belongs to and that have not ended count it, as in Flink."""
        first = self._stages[0]
        if isinstance(first, WindowStage):
            first.push(row, self._rows.ticker)

    def on_time(self, stream: RowsOfTicker, time_ns: int, at_ns: int) -> list[RunResult]:
        """Take a watermark: windows end, WITHIN ends matches."""
        found: list[RunResult] = []
        for number, stage in enumerate(self._stages):
            for window in stage.close(time_ns):
                derived = self._derive(window, number + 1)
                if derived is None:
                    continue
                result = self._step(derived, derived[0] <= at_ns)
                if result is not None:
                    found.append(result._replace(emitted_by="watermark"))
        return found + self._inner.on_time(self._rows, time_ns, at_ns)

    def _derive(self, row: Row, first: int) -> Row | None:
        for stage in self._stages[first:]:
            derived = stage.push(row, self._rows.ticker)
            if derived is None:
                return None
            row = derived
        return row

    def _step(self, row: Row, silent: bool) -> RunResult | None:
        rows = self._rows
        n = rows.base + len(rows.rows)
        rows.rows.append(row)
        self._newest = False, silent
        self._account.hold(size_of(row))
        result = self._inner.on_row(rows, n, row, silent)
        if isinstance(self._inner, PlainRun):
            self._drop(len(rows.rows) - 1)  # it needs the newest row, for an edit
        elif len(rows.rows) > TRIM_ROWS:
            cut = min(len(rows.rows) - 1, self._inner.oldest - rows.base)
            if cut > TRIM_ROWS // 2:
                self._drop(cut)
        return result

    def _drop(self, count: int) -> None:
        rows = self._rows
        self._account.hold(-sum(map(size_of, rows.rows[:count])))
        del rows.rows[:count]
        rows.base += count

    def dump(self) -> Any:
        """Return the state of the stages and of the run."""
        rows = self._rows
        return [[stage.dump() for stage in self._stages], self._inner.dump(), rows.base, rows.rows, self._newest]

    def take_over(self, old: DerivedRun) -> None:
        """Continue after the run of an edited trigger with the same rows."""
        fresh = self._inner.latch if isinstance(self._inner, PlainRun) else None
        self.restore(old.dump())
        if isinstance(self._inner, PlainRun):
            latch, self._inner.latch = self._inner.latch, fresh
            rows, newest = self._rows, self._newest
            seen = None if newest is None else (None if newest[0] else rows.rows[-1], newest[1])
            self._inner.take_over(latch, rows, seen)

    def restore(self, state: Any) -> None:
        """Take over a state."""
        stages, inner, self._rows.base, rows, *more = state
        self._newest = tuple(more[0]) if more and more[0] else ((False, False) if rows else None)
        for stage, kept in zip(self._stages, stages, strict=True):
            stage.restore(kept)
        if inner is not None:
            self._inner.restore(inner)
        self._rows.rows = [tuple(row) for row in rows]
        self._account.hold(sum(map(size_of, self._rows.rows)))


def start_run(trigger: CompiledTrigger, ticker: str, account: Account) -> PlainRun | MatchRun | DerivedRun:
    """Return a run without any row."""
    if trigger.plan.steps:
        return DerivedRun(trigger, ticker, account)
    return PlainRun(trigger) if isinstance(trigger.plan, PlainPlan) else MatchRun(trigger, account)
