"""A trigger on one ticker: what it remembers between rows, and when it has a result. Pure.

A run knows nothing of delivery (cooldown, limits of an event, end of the trigger): see
``services.common.cep.delivery``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from services.common.cep.compiled import CompiledTrigger, PatternPlan, PlainPlan
from services.common.cep.matcher import START, Matcher
from services.common.cep.stream import Row, Stream


class Result(NamedTuple):
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


class Run(Protocol):
    """A trigger on one ticker."""

    def on_row(self, stream: Stream, n: int, row: Row, silent: bool) -> Result | None:
        """Take the newest row of the stream; ``silent`` for rows before the registration, which must not fire."""

    def on_time(self, stream: Stream, time_ns: int) -> Result | None:
        """Take a watermark."""

    @property
    def oldest(self) -> int:
        """Sequence number of the oldest row that is needed."""

    def dump(self) -> Any:
        """Return the state as JSON values; None if there is nothing to keep."""

    def restore(self, state: Any) -> None:
        """Take over a state that ``dump`` returned."""


class PlainRun:
    """Plain condition: fires when it becomes true (edge, once) or for every row (level).

    ``latch`` is whether the condition holds and was seen to; None before the first row. With ``rearm`` it stays true
    until the value is far enough behind the threshold. With ``level`` it is always false, so that every row that fits
    differs.
    """

    __slots__ = ("_arms", "_plan", "_resolve", "_sticky", "latch", "test")

    def __init__(self, trigger: CompiledTrigger) -> None:
        assert isinstance(trigger.plan, PlainPlan)
        self._plan = trigger.plan
        self.test = trigger.plan.condition
        self._sticky = trigger.parameters.fire != "level"
        self._resolve = trigger.parameters.resolve
        self._arms = self._sticky and trigger.parameters.initial == "arm"
        self.latch: bool | None = None if self._arms else False

    @property
    def oldest(self) -> int:
        """No row is needed."""
        return START

    def on_row(self, stream: Stream, n: int, row: Row, silent: bool) -> Result | None:
        """Take a row."""
        fits = self.test(row, stream.ticker)
        if fits is self.latch:
            return None
        if silent:
            if self._arms:
                self.latch = fits
            return None
        return self.changed(stream, row, fits)

    def changed(self, stream: Stream, row: Row, fits: bool) -> Result | None:
        """Take a row for which the condition is not what the latch says."""
        known = self.latch
        if fits:
            if self._sticky:
                self.latch = True
            return None if known is None else self._result("row", stream, row)
        if known and self._plan.rearmed is not None and not self._plan.rearmed(row, stream.ticker):
            return None
        self.latch = False
        return self._result("resolved", stream, row) if known and self._resolve else None

    def _result(self, kind: str, stream: Stream, row: Row) -> Result:
        values = self._plan.projection.values(row, stream.ticker)
        return Result(kind, row, row, row[0], (values,), "row")

    def on_time(self, stream: Stream, time_ns: int) -> Result | None:
        """Do nothing: a condition depends on rows only."""
        return None

    def dump(self) -> Any:
        """Return the latch."""
        return self.latch

    def restore(self, state: Any) -> None:
        """Take over a latch."""
        self.latch = state


class MatchRun:
    """MATCH_RECOGNIZE."""

    __slots__ = ("_matcher", "_plan")

    def __init__(self, trigger: CompiledTrigger) -> None:
        assert isinstance(trigger.plan, PatternPlan)
        self._plan = trigger.plan
        self._matcher = Matcher(trigger.plan.match)

    @property
    def oldest(self) -> int:
        """First row of the oldest match, and rows before it for PREV."""
        return self._matcher.oldest - self._plan.match.reach if self._matcher.oldest != START else START

    def on_row(self, stream: Stream, n: int, row: Row, silent: bool) -> Result | None:
        """Take a row."""
        found = self._matcher.on_row(stream, n, row)
        return self._result(stream, found, "row") if found and not silent else None

    def on_time(self, stream: Stream, time_ns: int) -> Result | None:
        """Take a watermark."""
        found = self._matcher.on_time(stream, time_ns)
        return self._result(stream, found, "watermark") if found else None

    def _result(self, stream: Stream, found: Iterable[Any], emitted_by: str) -> Result | None:
        ticker, plan = stream.ticker, self._plan
        kept = [match for match in found if plan.keeps is None or plan.keeps(match.values, ticker)]
        if not kept:
            return None
        rows = tuple(plan.projection.values(match.values, ticker) for match in kept)
        first, last = kept[0], kept[-1]
        ring, base = stream.rows, stream.base
        return Result("match", ring[first.first - base], ring[last.after - 1 - base], first.time_ns, rows, emitted_by)

    def dump(self) -> Any:
        """Return the partial and the waiting matches; None if there are none."""
        matcher = self._matcher
        if matcher.oldest == START:
            return None
        return [matcher.partials, matcher.completed]

    def restore(self, state: Any) -> None:
        """Take over matches."""
        partials, completed = state
        self._matcher.partials = [(first, at, tuple(bounds)) for first, at, bounds in partials]
        self._matcher.completed = [(first, after, tuple(bounds)) for first, after, bounds in completed]


def start_run(trigger: CompiledTrigger) -> PlainRun | MatchRun:
    """Return a run without any row."""
    return PlainRun(trigger) if isinstance(trigger.plan, PlainPlan) else MatchRun(trigger)
