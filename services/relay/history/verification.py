"""The table checked against coverage, window by window, and what is lost fetched again.

Rows are committed just before they are reported, so each window looks at coverage first and then at the table: what is
committed in between may add rows, never take some away. What still seems wrong is looked at again before it is said.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import structlog

from services.common.lake.catalog import OHLC_TABLE
from services.common.model.errors import Unavailable
from services.common.model.history import Submission
from services.common.model.instrument import Series
from services.common.model.periods import floor_to_grid, next_open, split_by_periods
from services.common.model.time_range import TimeRange, intersect
from services.common.rpc.identity import Caller
from services.relay.config import RelaySettings
from services.relay.history.compare import Finding, compare, repairs
from services.relay.history.engine import Engine
from services.relay.history.state import HistoryState
from services.relay.history.table_reader import TableReader

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)
WINDOW_PERIODS = 500_000
"""Periods looked at together: their open times take 4 MB."""
MOST_REPAIR_PERIODS = 1_000_000
MOST_LOST = 1_000
"""Ranges, and requests for them, of one repair."""
LONGEST_PAUSE_SECONDS = 5.0
LOST = "the table lacks rows that coverage claims"


@dataclass(frozen=True, slots=True)
class Step:
    """How far a check is: of ``span``, None before it is known and where there is nothing, in ``windows``."""

    windows: int = 0
    checked: int = 0
    finding: Finding = field(default_factory=Finding)
    span: TimeRange | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """Requests that fetch lost ranges again; what is not among ``spans`` stays lost."""

    request_ids: tuple[str, ...] = ()
    spans: tuple[TimeRange, ...] = ()


class Verifier:
    """Checks and repairs; one window at a time, whoever asks, so that threads are left for others."""

    def __init__(self, engine: Engine, state: HistoryState, reader: TableReader, settings: RelaySettings) -> None:
        self._engine = engine
        self._state = state
        self._reader = reader
        self._looks = settings.count_attempts
        self._most_periods = min(settings.max_request_periods, MOST_REPAIR_PERIODS)
        self._turn = asyncio.Semaphore(1)

    async def check(self, series: Series, asked: TimeRange) -> AsyncGenerator[Step, None]:
        """Check what coverage or the table have inside ``asked``; the last step is the result.

        Raises:
            Unavailable: The table can't be read now.
        """
        step = Step()
        yield step
        span = await self._extent(series, asked)
        if span is None:
            return
        windows = split_by_periods(span, series.period_seconds, WINDOW_PERIODS)
        step = Step(len(windows), 0, Finding(), span)
        yield step
        findings = []
        for number, window in enumerate(windows, start=1):
            findings.append(await self._look(series, window))
            step.finding.add(findings[-1])
            step = replace(step, checked=number)
            yield step
        for look in range(1, self._looks):
            if not any(each.suspect for each in findings):
                break
            await asyncio.sleep(min(0.1 * 2**look, LONGEST_PAUSE_SECONDS))
            for number, window in enumerate(windows):
                if findings[number].suspect:
                    findings[number] = await self._look(series, window)
            step = replace(step, finding=_sum(findings))
            yield step

    async def repair(self, series: Series, lost: Sequence[TimeRange], caller: Caller | None) -> Repair:
        """Take coverage of what is lost back and submit requests for it, as the caller's.

        What others have taken back meanwhile is theirs to fetch; beyond ``MOST_LOST`` ranges the rest stays lost.

        Raises:
            Exhausted, InvalidRequest: A quota of the caller; nothing was changed.
            Unavailable: A table or the store can't be written now.
        """
        covered = self._state.coverage[series].covered
        lost = [part for each in lost for part in covered.within(each)][:MOST_LOST]
        asked = repairs(lost, covered, series.period_seconds, self._most_periods)[:MOST_LOST]
        if not asked:
            return Repair()
        verify_id, client_id = f"verify-{uuid.uuid4().hex[:12]}", caller.client_id if caller else None
        submissions = [
            Submission(
                f"{verify_id}-{n:04}",
                series.ticker,
                each.start_ns,
                each.end_ns,
                series.period_seconds,
                client_id=client_id,
            )
            for n, each in enumerate(asked, start=1)
        ]
        spans = [part for each in asked for part in intersect(lost, each)]
        log.error(LOST, verify_id=verify_id, ticker=series.ticker, period=series.period_seconds, ranges=len(spans))
        await self._engine.submitter.refetch(spans, f"{verify_id}: {LOST}", submissions, caller)
        return Repair(tuple(each.request_id for each in submissions), tuple(spans))

    async def _extent(self, series: Series, asked: TimeRange) -> TimeRange | None:
        """From the first to the last of what coverage or the table have; on the grid."""
        coverage = self._state.coverage.get(series)
        covered = coverage.covered.within(asked) if coverage else []
        ends = [time for each in (*covered[:1], *covered[-1:]) for time in (each.start_ns, each.end_ns)]
        around = [TimeRange(asked.start_ns, min(ends)), TimeRange(max(ends), asked.end_ns)] if ends else [asked]
        for part in filter(None, around):
            if (reach := await self._read(self._reader.reach, series, part)) is not None:
                first_ns, last_ns = (floor_to_grid(time, series.period_seconds) for time in reach)
                ends += [first_ns, next_open(last_ns, series.period_seconds)]
        return TimeRange(min(ends), max(ends)) if ends else None

    async def _look(self, series: Series, window: TimeRange) -> Finding:
        coverage = self._state.coverage.get(series)
        covered = coverage.covered.within(window) if coverage else []
        empty = coverage.empty.within(window) if coverage else []
        return await self._read(self._compare, series, window, covered, empty)

    def _compare(self, series: Series, window: TimeRange, covered: list[TimeRange], empty: list[TimeRange]) -> Finding:
        return compare(self._reader.times(series, window), covered, empty, series.period_seconds)

    async def _read(self, read: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        try:
            async with self._turn:
                return await asyncio.to_thread(read, *arguments, **named)
        except Exception as error:  # catalog, object store, file system: each has errors of its own
            raise Unavailable(f"{OHLC_TABLE} can't be read: {error}") from error


def _sum(findings: Sequence[Finding]) -> Finding:
    whole = Finding()
    for each in findings:
        whole.add(each)
    return whole
