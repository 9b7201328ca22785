"""Coverage of a series by days: which share of each is proven, provisional, missing or was never asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dexorder_common.model.coverage import Coverage, CoverageKind, html_table
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import floor_to_grid
from dexorder_common.model.time_range import RangeSet, TimeRange, intersect, merge, subtract
from dexorder_common.model.times import SECOND_NS, iso

DAY_SECONDS = 86_400
MAX_DAYS = 40_000
"""Days of one answer: a hundred years."""


class DayState(StrEnum):
    """State of a day, or of a part of it. A day has the worst state of its parts: the one that comes last here.

    Attributes:
        PROVEN: Every row is there, or proven not to exist.
        PROVISIONAL: Settled, but a row may still turn up: the exchange is queried again.
        NOT_ASKED: No request or subscription has asked for it, and its rows are unknown.
        MISSING: It was asked for, and is not settled.
    """

    PROVEN = "proven"
    PROVISIONAL = "provisional"
    NOT_ASKED = "not asked"
    MISSING = "missing"


_STATES = {
    CoverageKind.ROWS: DayState.PROVEN,
    CoverageKind.EMPTY: DayState.PROVEN,
    CoverageKind.PROVISIONAL: DayState.PROVISIONAL,
    CoverageKind.PROVISIONAL_ROWS: DayState.PROVISIONAL,
}


@dataclass(frozen=True, slots=True)
class CoverageDay:
    """One day in UTC, or the part of it inside the range.

    Attributes:
        shares: By state, the part of ``span`` that has it; together 1.
    """

    span: TimeRange
    shares: dict[DayState, float]

    @property
    def state(self) -> DayState:
        """The worst state of its parts."""
        return [state for state in DayState if self.shares.get(state)][-1]

    @property
    def day(self) -> str:
        """Its date."""
        return iso(self.span.start_ns)[:10]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values, which are the columns of a table of days as well."""
        shares = {state.name.lower(): round(self.shares.get(state, 0.0), 6) for state in DayState}
        return {"day": self.day, "state": str(self.state), **shares}


@dataclass(frozen=True, slots=True)
class CoverageDays:
    """The days of a range of a series, in time order, without gaps."""

    ticker: str
    period: str
    days: tuple[CoverageDay, ...]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {state}" for state, count in self.count().items() if count)
        return f"CoverageDays of {self.ticker} {self.period}: {len(self.days):,} days: {counts or 'none'}"

    def _repr_html_(self) -> str:
        """Return the days that are not proven as HTML, for a notebook."""
        rows = [(each.day, str(each.state)) for each in self.unproven]
        return html_table(("day", "state"), rows, repr(self))

    @property
    def unproven(self) -> tuple[CoverageDay, ...]:
        """The days that are not proven as a whole; a backtest that must not use them refuses if there are any."""
        return tuple(day for day in self.days if day.state is not DayState.PROVEN)

    def as_json(self) -> list[dict[str, Any]]:
        """Return a row for each day: ticker, period, day, state, and the share of each state."""
        return [{"ticker": self.ticker, "period": self.period, **day.as_json()} for day in self.days]

    def count(self) -> dict[DayState, int]:
        """Return the number of days by state."""
        counts = dict.fromkeys(DayState, 0)
        for day in self.days:
            counts[day.state] += 1
        return counts


def coverage_days(found: Coverage, period: str, span: TimeRange | None, asked: Iterable[TimeRange]) -> CoverageDays:
    """Return the days of a range, from the first to the last known time without one.

    Args:
        asked: Ranges that requests and subscriptions have asked for.

    Raises:
        InvalidRequest: The range has too many days.
    """
    asked = merge(asked)
    known = [*(each.span for each in found.known), *asked]
    if span is None:
        if not known:
            return CoverageDays(found.ticker, period, ())
        span = TimeRange(min(each.start_ns for each in known), max(each.end_ns for each in known))
    if span.end_ns - span.start_ns > MAX_DAYS * DAY_SECONDS * SECOND_NS:
        raise InvalidRequest(f"the range has more than {MAX_DAYS:,} days; give since and until")
    unknown = subtract([span], [each.span for each in found.known])
    parts = {state: [each.span for each in found.known if _STATES[each.kind] is state] for state in DayState}
    parts[DayState.MISSING] = [part for each in asked for part in intersect(unknown, each)]
    parts[DayState.NOT_ASKED] = subtract(unknown, asked)
    sets = {state: RangeSet(merge(spans)) for state, spans in parts.items()}
    return CoverageDays(found.ticker, period, tuple(_day(day, sets) for day in _days(span)))


def _days(span: TimeRange) -> list[TimeRange]:
    step_ns, first_ns = DAY_SECONDS * SECOND_NS, floor_to_grid(span.start_ns, DAY_SECONDS)
    days = (TimeRange(start_ns, start_ns + step_ns) for start_ns in range(first_ns, span.end_ns, step_ns))
    return [part for day in days if (part := day.intersect(span))]


def _day(day: TimeRange, sets: Mapping[DayState, RangeSet]) -> CoverageDay:
    whole = day.end_ns - day.start_ns
    shares = {state: sum(part.end_ns - part.start_ns for part in spans.within(day)) for state, spans in sets.items()}
    return CoverageDay(day, {state: share / whole for state, share in shares.items() if share})
