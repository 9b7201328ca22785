"""Comparison of a series' values with the exchange: its coarser candles are fetched, and the rows must add up to them.

Ordinary requests fetch the coarser candles, again if they are covered. So they are rows of the table afterwards, proven
like any other candles, and one call of the exchange checks up to 60,000 rows. docs/decisions/0027 has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from dexorder_common.model.checksum import SETTLED_AFTER_SECONDS, cell_ladder
from dexorder_common.model.errors import NotFound
from dexorder_common.model.history import HistoryRequest, Progress, RequestStatus
from dexorder_common.model.instrument import CandleOffer, Series
from dexorder_common.model.periods import (
    PERIODS,
    ceil_to_grid,
    count_periods,
    floor_to_grid,
    split_by_periods,
    total_periods,
)
from dexorder_common.model.time_range import RangeSet, TimeRange, intersect, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.values import ValueComparison, ValueDifference
from dexorder_common.rpc.identity import Caller
from dexorder_relay.requests.completion import Completion
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.instruments import Instruments
from dexorder_relay.requests.queries import RequestQueries
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.compare import WINDOW_PERIODS
from dexorder_relay.verification.compare_values import compare_values, fetch_ranges, whole_cells

CLOCK_MARGIN_SECONDS = 60
"""Largest difference between the clocks of relay and exchange with which a young cell is left out."""
MAX_FETCHES = 100
"""Requests for cells of one verification."""
MAX_LISTED = 10_000
"""Entries of each list of a result."""


class Waiting(NamedTuple):
    """The request that a verification waits for, and its progress."""

    request_id: str = ""
    progress: Progress | None = None


NOT_WAITING = Waiting()


@dataclass(slots=True)
class ValueCheck:
    """State of one comparison.

    Attributes:
        claimed: Ranges that coverage claims, to be compared.
        fetched: By the cells' period, ranges of cells that the table has as the exchange gives them now.
        compared: By the cells' period, ranges of cells that were compared.
        is_second_look: It is about absences: only the largest cells are compared, and no candle may be smaller than
            the rounding of volumes where one is absent.
    """

    series: Series
    claimed: list[TimeRange] = field(default_factory=list)
    tolerance: float = 0.0
    fetched: dict[int, list[TimeRange]] = field(default_factory=dict)
    compared: dict[int, list[TimeRange]] = field(default_factory=dict)
    is_second_look: bool = False
    differing: list[ValueDifference] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    calls: int = 0

    @property
    def differing_ranges(self) -> list[TimeRange]:
        """The cells that differ, joined."""
        return merge(each.span for each in self.differing)

    def result(self, repaired: Sequence[TimeRange] = ()) -> ValueComparison:
        """Return the result, given the ranges that a repair has fetched again."""
        period, again = self.series.period_seconds, RangeSet(repaired)
        compared = merge(part for parts in self.compared.values() for part in parts)
        uncompared = subtract(self.claimed, compared)
        return ValueComparison(
            tuple(self.fetched),
            total_periods(compared, period),
            tuple(self.differing[:MAX_LISTED]),
            len(self.differing),
            total_periods(self.differing_ranges, period),
            tuple(uncompared[:MAX_LISTED]),
            total_periods(uncompared, period),
            tuple(dict.fromkeys(self.errors)),
            tuple(self.requests),
            self.calls,
            total_periods([part for each in self.differing_ranges for part in again.within(each)], period),
        )


class ValueVerifier:
    """Fetches cells and compares rows with them."""

    def __init__(
        self,
        context: Context,
        submitter: Submitter,
        completion: Completion,
        queries: RequestQueries,
        instruments: Instruments,
    ) -> None:
        self._state = context.state
        self._new_id = context.new_id
        self._reader = context.reader
        self._clock = context.clock
        self._submitter = submitter
        self._completion = completion
        self._queries = queries
        self._instruments = instruments

    async def check(
        self, check: ValueCheck, span: TimeRange | None, suspect: Iterable[TimeRange], caller: Caller | None
    ) -> AsyncGenerator[Waiting, None]:
        """Compare the rows of a range with the exchange, and add the differences to a new ``check``.

        Args:
            suspect: Ranges in which rows are lost or must not be there; they are not compared.
            caller: The cells are fetched for this caller.

        Raises:
            Exhausted: A quota of the caller is used up.
            Unavailable: The table or the store cannot be read or written now.
        """
        offer = await self._offer(check.series)
        if span is None:
            return
        check.claimed = merge(self._state.claims(check.series, span)[0])
        if offer is None:
            check.errors.append(f"no ingestor has reported which candles {check.series.exchange} has")
        if offer is None or offer.volume_tolerance is None:
            return
        check.tolerance = offer.volume_tolerance
        settled_ns = self._clock.wall_ns() - (SETTLED_AFTER_SECONDS + CLOCK_MARGIN_SECONDS) * SECOND_NS
        todo, left = subtract(check.claimed, merge(suspect)), MAX_FETCHES
        ladder = cell_ladder(check.series.period_seconds, offer.period_seconds, offer.call_candles)
        if check.is_second_look:
            ladder = ladder[:1]  # absences start and end within cells
            whole = [TimeRange(floor_to_grid(span.start_ns, s), ceil_to_grid(span.end_ns, s)) for s in ladder]
            todo = [part for each in whole for part in self._state.claims(check.series, each)[0]]
        elif ladder and count_periods(span, ladder[-1]) <= offer.call_candles:
            ladder = ladder[-1:]  # one call brings the smallest cells of all of it
        for seconds in ladder:
            cells = whole_cells(todo, seconds, settled_ns=settled_ns)
            ranges = fetch_ranges(cells, seconds, offer.call_candles, left)
            left -= len(ranges)
            async with aclosing(self._fetch(check, seconds, ranges, caller)) as waits:
                async for waiting in waits:
                    yield waiting
            available = RangeSet(check.fetched[seconds])
            whole = whole_cells(
                [part for each in cells for part in available.within(each)], seconds, settled_ns=settled_ns
            )
            await self._compare(check, seconds, whole)
            todo = subtract(todo, whole)

    async def check_again(self, first: ValueCheck, repaired: Sequence[TimeRange]) -> ValueCheck:
        """Compare the ranges that a repair has fetched again with the cells of the first comparison."""
        again = ValueCheck(first.series, tolerance=first.tolerance, fetched={seconds: [] for seconds in first.fetched})
        left, seconds = merge(repaired), first.series.period_seconds
        for seconds, fetched in first.fetched.items():
            touched = merge(
                TimeRange(floor_to_grid(each.start_ns, seconds), ceil_to_grid(each.end_ns, seconds)) for each in left
            )
            cells = [part for each in fetched for part in intersect(touched, each)]
            covered = self._state.covered(first.series)
            cells = whole_cells([part for each in cells for part in covered.within(each)], seconds, settled_ns=2**63)
            again.claimed = merge([*again.claimed, *cells])
            await self._compare(again, seconds, cells)
            left = subtract(left, cells)
        again.claimed = merge([*again.claimed, *left])
        return again

    async def wait(self, request_id: str) -> AsyncGenerator[Waiting, None]:
        """Yield the progress of a request until it has ended."""
        async with aclosing(self._queries.watch(request_id)) as changes:
            async for progress in changes:
                yield Waiting(request_id, progress)

    async def _offer(self, series: Series) -> CandleOffer | None:
        try:
            return (await self._instruments.listed(series.exchange)).candles
        except NotFound:
            return None

    async def _fetch(
        self, check: ValueCheck, seconds: int, ranges: Sequence[TimeRange], caller: Caller | None
    ) -> AsyncGenerator[Waiting, None]:
        """Fetch cells, all ranges at the same time; requests are cancelled if the verification is abandoned."""
        kind = "cells" if check.is_second_look else "verify"
        verify_id, client_id = self._new_id(f"{kind}-")[: len(kind) + 13], caller.client_id if caller else ""
        check.fetched[seconds] = []
        unfinished: dict[str, TimeRange] = {}
        try:
            for number, each in enumerate(ranges, start=1):
                request = HistoryRequest(
                    f"{verify_id}-{PERIODS[seconds]}-{number:04}",
                    check.series.ticker,
                    each.start_ns,
                    each.end_ns,
                    seconds,
                    client_id=client_id,
                    again=True,
                )
                await self._submitter.submit(request, caller)
                unfinished[request.request_id] = each
                check.requests.append(request.request_id)
            for request_id, each in list(unfinished.items()):
                async for waiting in self.wait(request_id):
                    yield waiting
                del unfinished[request_id]
                record = await self._queries.record(request_id)
                check.calls += record.progress.calls
                if record.status in (RequestStatus.OK, RequestStatus.NOT_FOUND):
                    check.fetched[seconds].append(each)
                else:
                    check.fetched[seconds] += subtract([each], record.missing) if record.missing else []
                    check.errors.append(f"{PERIODS[seconds]} candles: {record.error_message}")
        finally:
            for request_id in unfinished:
                await self._completion.cancel(request_id)

    async def _compare(self, check: ValueCheck, seconds: int, cells: Sequence[TimeRange]) -> None:
        """Compare ranges of whole cells; a difference counts if a second look confirms it."""
        found = await asyncio.to_thread(self._read, check, seconds, cells)
        if found:
            found = await asyncio.to_thread(self._read, check, seconds, merge(each.span for each in found))
        check.differing = sorted([*check.differing, *found], key=lambda each: each.span)
        check.compared[seconds] = merge([*check.compared.get(seconds, ()), *cells])

    def _read(self, check: ValueCheck, seconds: int, cells: Iterable[TimeRange]) -> list[ValueDifference]:
        rows, series, found = self._reader.candles(), check.series, list[ValueDifference]()
        coarse = Series(series.ticker, seconds)
        size = max(1, WINDOW_PERIODS // (seconds // series.period_seconds))
        for window in _windows(cells, seconds, size):
            hull = TimeRange(window[0].start_ns, window[-1].end_ns)
            finer, known = rows.candles(series, hull), rows.candles(coarse, hull)
            periods = seconds // series.period_seconds if check.is_second_look else 0
            found += compare_values(finer, known, window, seconds, check.tolerance, cell_periods=periods)
        return found


def _windows(cells: Iterable[TimeRange], seconds: int, size: int) -> list[list[TimeRange]]:
    """Return ranges of cells in groups that lie within ``size`` cells."""
    step_ns, groups = size * seconds * SECOND_NS, list[list[TimeRange]]()
    for part in (piece for each in cells for piece in split_by_periods(each, seconds, size)):
        if groups and part.end_ns - groups[-1][0].start_ns <= step_ns:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups
