"""Second look at the absences of a thin market: its coarser candles are fetched again, and the rows compared with them.

A first look compares candles with coarser ones of the same minutes. An exchange that computes these at each call, from
candles that it does not show for a while, agrees with itself. Ten minutes later it does not agree with the rows. A call
for 1,000 hours looks at 60,000 minutes, where fetching them again would take 60.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog

from dexorder_common.model.errors import SuiteError
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import floor_to_grid
from dexorder_common.model.proof import SETTLED_AFTER_NS
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.requests.context import Context
from dexorder_relay.state.changes import AbsencesChanged, Changes
from dexorder_relay.state.provisional import MANY_RANGES
from dexorder_relay.verification.compare_values import whole_cells
from dexorder_relay.verification.value_verification import ValueCheck, ValueVerifier

log = structlog.get_logger(__name__)


class Judgement(NamedTuple):
    """Result of a second look at the provisional ranges of a series.

    Attributes:
        doubtful: To be fetched again: cells differ, or were not compared.
        repeated: The exchange has repeated the absence, of a whole cell or within the last hour.
        final: The rest: cells agree with the rows, of which there are some.
    """

    doubtful: list[TimeRange]
    repeated: list[TimeRange]
    final: list[TimeRange]


def judge(
    provisional: Sequence[TimeRange],
    empty: Sequence[TimeRange],
    compared: Sequence[TimeRange],
    differing: Sequence[TimeRange],
    cell_seconds: int,
    *,
    now_ns: int,
) -> Judgement:
    """Judge provisional ranges by a comparison with cells of one period. Pure.

    Args:
        empty: The verified-empty ranges among them.
        compared: Ranges of whole cells that were compared.
        differing: Those of them that differ.
    """
    uncompared = subtract(empty, compared)
    doubtful = merge([*uncompared, *(each for each in differing if any(map(each.overlaps, empty)))])
    bare = whole_cells(empty, cell_seconds, settled_ns=now_ns)
    young = TimeRange(floor_to_grid(max(0, now_ns - SETTLED_AFTER_NS), cell_seconds), MAX_TIME_NS)
    repeated = subtract([part for each in (*bare, young) for part in intersect(empty, each)], doubtful)
    return Judgement(doubtful, repeated, subtract(provisional, [*doubtful, *repeated]))


class SecondLook:
    """Looks at provisional ranges again."""

    def __init__(self, context: Context, values: ValueVerifier) -> None:
        self._context = context
        self._values = values

    def is_worthwhile(self, series: Series, span: TimeRange) -> bool:
        """Return whether a range has so many absences that the market is thin."""
        coverage = self._context.state.coverage.get(series)
        return coverage is not None and len(coverage.empty.within(span)) > MANY_RANGES

    async def look(self, series: Series, span: TimeRange) -> list[TimeRange]:
        """Compare a range with its cells, note what they show, and return the parts to fetch again."""
        state, clock, asked_ns = self._context.state, self._context.clock, self._context.clock.wall_ns()
        check = ValueCheck(series, is_second_look=True)
        try:
            async with aclosing(self._values.check(check, span, (), None)) as waits:
                async for _ in waits:
                    pass
        except SuiteError as error:
            check.errors.append(str(error))
        seconds, compared = next(iter(check.compared.items()), (series.period_seconds, []))
        provisional = state.provisional.due_within(series, span, now_ns=asked_ns)
        coverage = state.coverage[series]
        empty = [part for each in provisional for part in coverage.empty.within(each)]
        now_ns = clock.wall_ns()
        found = judge(provisional, empty, compared, check.differing_ranges, seconds, now_ns=now_ns)
        log.info(
            "looked at absences again",
            ticker=series.ticker,
            span=str(span),
            calls=check.calls,
            doubtful=len(found.doubtful),
            errors=check.errors,
        )
        changes = Changes()
        changes.append(AbsencesChanged(series, state.provisional.remove(series, found.final)))
        for part in found.repeated:
            change = state.provisional.queried(series, part, asked_ns=asked_ns, now_ns=now_ns, answered=True)
            changes.append(AbsencesChanged(series, change))
        await self._context.store.commit(changes)
        return found.doubtful
