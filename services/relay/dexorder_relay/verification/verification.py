"""Verification of the table against coverage, window by window, and its repair.

Rows are committed just before they are reported, so each window reads coverage first and then the table: a commit in
between may add rows but never removes any. A difference is reported only if a second look confirms it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from dexorder_common.model.coverage import VerificationProgress, VerificationResult
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.periods import floor_to_grid, next_open, split_by_periods, total_periods
from dexorder_common.model.time_range import TimeRange, intersect, merge
from dexorder_common.rpc.identity import Caller
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.reading.rows import RowSummary
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.compare import COUNTS, RANGES, WINDOW_PERIODS, CoverageComparison, compare, repair_ranges
from dexorder_relay.verification.mending import TableMender
from dexorder_relay.verification.value_verification import MAX_LISTED, NOT_WAITING, ValueCheck, ValueVerifier, Waiting

T = TypeVar("T")
log = structlog.get_logger(__name__)
MAX_REPAIR_PERIODS = 1_000_000
MAX_REPAIRED_RANGES = 1_000
"""Ranges, and requests for them, of one repair."""
MAX_PAUSE_SECONDS = 5.0
DIFFERENCES = "table and coverage differ"


@dataclass(frozen=True, slots=True)
class VerificationState:
    """State of a verification: ``checked`` of ``windows``; ``span`` is None until known, and for an empty range.

    Attributes:
        waiting: The request that the verification waits for.
        values: Comparison of the values with the exchange, if it was requested.
        after_repair: The same for ranges that a repair has fetched again.
        repair: The repair, if it was requested and has started.
    """

    series: Series
    windows: int = 0
    checked: int = 0
    found: CoverageComparison = field(default_factory=CoverageComparison)
    span: TimeRange | None = None
    waiting: Waiting = NOT_WAITING
    values: ValueCheck | None = None
    after_repair: ValueCheck | None = None
    repair: Repair = field(default_factory=lambda: Repair())

    def progress(self) -> VerificationProgress:
        """Return the progress of the verification."""
        lost_periods = total_periods(self.found.lost, self.series.period_seconds)
        return VerificationProgress(self.windows, self.checked, self.found.rows, lost_periods, *self.waiting)

    def result(self) -> VerificationResult:
        """Return the result, if this is the last step."""
        found, period, repair = self.found, self.series.period_seconds, self.repair
        listed: dict[str, Any] = {name: tuple(getattr(found, name)[:MAX_LISTED]) for name in RANGES}
        return VerificationResult(
            self.series.ticker,
            period,
            checked=self.span,
            **{name: getattr(found, name) for name in COUNTS},
            **listed,
            lost_periods=total_periods(found.lost, period),
            unexpected_periods=total_periods(found.unexpected, period),
            repairs=tuple(each.request_id for each in repair.requests),
            repaired_periods=total_periods(
                [part for each in repair.spans for part in intersect(found.lost, each)], period
            ),
            removed_rows=repair.removed_rows,
            values=self.values.result(repair.spans) if self.values else None,
            values_after_repair=self.after_repair.result() if self.after_repair else None,
        )


@dataclass(frozen=True, slots=True)
class Repair:
    """Requests that fetch ``spans`` again, and how many of the wrong rows that were found have been removed."""

    requests: tuple[HistoryRequest, ...] = ()
    spans: tuple[TimeRange, ...] = ()
    removed_rows: int = 0

    def followed_by(self, other: Repair) -> Repair:
        """Return this repair and the repair of its leftovers; a newer request replaces older ones of the same range."""
        ended = [each for each in self.requests if not any(each.span.overlaps(part) for part in other.spans)]
        return replace(self, requests=(*ended, *other.requests))


class Verifier:
    """Verifies and repairs. Callers take turns, a window at a time, so that threads are left for others."""

    def __init__(self, context: Context, submitter: Submitter, mender: TableMender, values: ValueVerifier) -> None:
        self._state = context.state
        self._reader = context.reader
        self._attempts = context.settings.count_attempts
        self._max_periods = min(context.settings.max_request_periods, MAX_REPAIR_PERIODS)
        self._submitter = submitter
        self._mender = mender
        self._values = values
        self._one_window = FairSemaphore(1)

    async def run(
        self, series: Series, requested: TimeRange, caller: Caller | None, *, values: bool, repair: bool
    ) -> AsyncGenerator[VerificationState, None]:
        """Verify everything that coverage or the table has in a range; the last step has the result.

        Args:
            caller: Ranges are fetched for this caller.
            values: Compare the values with the exchange as well.
            repair: Repair the findings. With ``values`` the last step follows when all is fetched, and compared again.

        Raises:
            Exhausted: A quota of the caller is used up.
            InvalidRequest: A request of the repair exceeds a quota by itself.
            Unavailable: A table or the store cannot be read or written now.
        """
        current = VerificationState(series)
        async with aclosing(self._check(series, requested)) as states:
            async for current in states:
                yield current
        check, found = ValueCheck(series), current.found
        if values:
            suspect = merge([*found.lost, *found.wrong])
            async with aclosing(self._values.check(check, current.span, suspect, caller)) as waits:
                async for waiting in waits:
                    yield replace(current, waiting=waiting)
            current = replace(current, values=check)
            yield current
        if repair:
            current = replace(current, repair=await self.repair(series, found, caller, check.differing_ranges))
            yield current
        if check.fetched and current.repair.spans:
            async with aclosing(self._wait(current.repair)) as waits:
                async for waiting in waits:
                    yield replace(current, waiting=waiting)
            left = await self._left(series, current.repair.spans)
            if left.unexpected:
                more = await self.repair(series, left, caller)
                async with aclosing(self._wait(more)) as waits:
                    async for waiting in waits:
                        yield replace(current, waiting=waiting)
                current = replace(current, repair=current.repair.followed_by(more))
            yield replace(current, after_repair=await self._values.check_again(check, current.repair.spans))

    async def _wait(self, repair: Repair) -> AsyncGenerator[Waiting, None]:
        """Yield the progress of a repair's requests until all have ended."""
        for request in repair.requests:
            async with aclosing(self._values.wait(request.request_id)) as waits:
                async for waiting in waits:
                    yield waiting

    async def _left(self, series: Series, spans: Sequence[TimeRange]) -> CoverageComparison:
        """Return the rows for which, according to a repair, the exchange has no candle (any more)."""
        found = CoverageComparison()
        for window in (
            part for each in spans for part in split_by_periods(each, series.period_seconds, WINDOW_PERIODS)
        ):
            found.add(await self._compare_window(series, window))
        return CoverageComparison(unexpected=found.unexpected)

    async def _check(self, series: Series, requested: TimeRange) -> AsyncGenerator[VerificationState, None]:
        current = VerificationState(series)
        yield current
        span = await self._extent(series, requested)
        if span is None:
            return
        windows = split_by_periods(span, series.period_seconds, WINDOW_PERIODS)
        current = VerificationState(series, len(windows), 0, CoverageComparison(), span)
        yield current
        found = []
        for number, window in enumerate(windows, start=1):
            found.append(await self._compare_window(series, window))
            current.found.add(found[-1])
            current = replace(current, checked=number)
            yield current
        for attempt in range(1, self._attempts):
            if not any(each.suspect for each in found):
                break
            await asyncio.sleep(min(0.1 * 2**attempt, MAX_PAUSE_SECONDS))
            for index, window in enumerate(windows):
                if found[index].suspect:
                    found[index] = await self._compare_window(series, window)
            current = replace(current, found=CoverageComparison())
            for each in found:
                current.found.add(each)
            yield current

    async def repair(
        self, series: Series, found: CoverageComparison, caller: Caller | None, differing: Sequence[TimeRange] = ()
    ) -> Repair:
        """Remove rows that the table must not have; fetch lost, unsure and differing ranges again.

        Coverage is retracted first, then rows are removed, then requests are accepted: a kill in between leaves ranges
        missing or rows for the next repair. It is completed even if the caller is cancelled. Ranges that another call
        has retracted since are left to it. Beyond ``MAX_REPAIRED_RANGES`` ranges the rest stays as it is.

        Args:
            caller: Ranges are fetched for this caller.
            differing: Ranges with values that differ from the exchange's.

        Raises:
            Exhausted: A quota of the caller is used up; the table is unchanged.
            InvalidRequest: A request exceeds a quota by itself; the table is unchanged.
            Unavailable: A table or the store cannot be read or written now.
        """
        look = await self._one_window.in_thread(lambda: self._mender.look(series, found.wrong, found.unexpected))
        covered = self._state.covered(series)
        claimed = [part for each in (*found.lost, *found.unexpected, *differing) for part in covered.within(each)]
        again = merge([*claimed, *look.unsure])[:MAX_REPAIRED_RANGES]
        ranges = repair_ranges(again, covered, series.period_seconds, self._max_periods)[:MAX_REPAIRED_RANGES]
        spans = [part for each in ranges for part in intersect(again, each)]
        if not spans and not look.windows:
            return Repair()
        ticker, period = series.ticker, series.period_seconds
        verify_id, client_id = f"verify-{uuid.uuid4().hex[:12]}", caller.client_id if caller else ""
        requests = [
            HistoryRequest(f"{verify_id}-{n:04}", ticker, each.start_ns, each.end_ns, period, client_id=client_id)
            for n, each in enumerate(ranges, start=1)
        ]
        removed = 0

        async def remove() -> None:
            nonlocal removed
            removed = await self._one_window.in_thread(lambda: self._mender.mend(look, spans, verify_id))

        log.error(DIFFERENCES, verify_id=verify_id, **series.encode(), again=len(spans), windows=len(look.windows))
        await self._submitter.refetch(series, spans, f"{verify_id}: {DIFFERENCES}", requests, caller, remove)
        replaced = total_periods([part for each in spans for part in intersect(look.unsure, each)], period)
        return Repair(tuple(requests), tuple(spans), max(removed - replaced, 0))

    async def _extent(self, series: Series, requested: TimeRange) -> TimeRange | None:
        """Return the range from the first to the last period that coverage or the table has, on the grid."""
        covered, _ = self._state.claims(series, requested)
        ends = [time for each in (*covered[:1], *covered[-1:]) for time in (each.start_ns, each.end_ns)]
        around = (
            [TimeRange(requested.start_ns, min(ends)), TimeRange(max(ends), requested.end_ns)] if ends else [requested]
        )
        for part in filter(None, around):
            found = await self._one_window.in_thread(partial(self._summary_of, series, part))
            if found.rows:
                first_ns, last_ns = (floor_to_grid(time, series.period_seconds) for time in found[1:])
                ends += [first_ns, next_open(last_ns, series.period_seconds)]
        return TimeRange(min(ends), max(ends)) if ends else None

    def _summary_of(self, series: Series, part: TimeRange) -> RowSummary:
        return self._reader.candles().summary(series, part)

    async def _compare_window(self, series: Series, window: TimeRange) -> CoverageComparison:
        covered, empty = self._state.claims(series, window)

        def read() -> CoverageComparison:
            times = self._reader.candles(anew=True).times(series, window)
            return compare(times, covered, empty, series.period_seconds)

        return await self._one_window.in_thread(read)
