"""Fetch of one dispatch of a dataset with rows known by their time alone: queries until `evidence` settles it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from dexorder_common.model.datasets import DATASETS, Dataset, JobType
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.dispatch_runner import DispatchRun
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.venue import CcxtSession
from dexorder_ingestor.points.evidence import Cell, PointAnswer, PointEvidence, Values

MAX_PAGE_ROWS = 1_000
PART_NS = 120 * 86_400 * SECOND_NS
"""Part of a range that is settled and published as a whole: later answers still count until then."""
MAX_ANSWERS = 20
"""Answers after which a cell that is still not settled is given up."""
LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause between two queries of a cell; it grows from ``hole_spacing_seconds`` on."""


@dataclass(frozen=True, slots=True)
class SettledPoint:
    """A settled row.

    Attributes:
        interval_seconds: Time since the row before; None if that is not known.
    """

    time_ns: int
    values: Values
    interval_seconds: int | None


@dataclass(frozen=True, slots=True)
class PointPage:
    """A settled part of a range, with all of its rows."""

    span: TimeRange
    points: tuple[SettledPoint, ...]


class PointSource(Protocol):
    """The ingestor's knowledge of one dataset: how it is queried, and how its rows are written to a record."""

    dataset: Dataset

    async def fetch(self, session: CcxtSession, symbol: str, window: TimeRange) -> PointAnswer:
        """Query the rows of a window; ExchangeFailure without a valid answer in all attempts."""

    async def settled_before_ns(self, session: CcxtSession, symbol: str) -> int:
        """Return the end of the known rows by the exchange's own statement: the time of the next one, or its clock."""

    def encode(self, points: tuple[SettledPoint, ...]) -> bytes:
        """Return the value of a page's record."""


def sources() -> dict[Dataset, PointSource]:
    """Return the source of each dataset that is fetched here: ``SOURCE`` of the module with the dataset's name."""
    found = (each for each in DATASETS if each.job_type is JobType.DATASET)
    return {each: import_module(f"dexorder_ingestor.points.{each.name}").SOURCE for each in found}


async def publish_points(source: PointSource, run: DispatchRun) -> DispatchEnd | None:
    """Fetch and publish one dispatch; return how it ended, or None if the relay no longer wants it."""
    async with run.session() as session:
        symbol = Instrument.parse(run.dispatch.series.ticker).symbol
        fetcher = PointFetcher(source, session, symbol, run.dispatch.span)
        try:
            async with aclosing(fetcher.pages()) as pages:  # type: ignore[type-var]
                async for page in pages:
                    if not await run.publish_page(page.span, source.encode(page.points), len(page.points)):
                        return None
            missing = fetcher.missing
        except ExchangeFailure as error:
            missing = str(error)
    return await run.publish_final(missing)


class PointFetcher:
    """Fetches one range."""

    def __init__(self, source: PointSource, session: CcxtSession, symbol: str, span: TimeRange) -> None:
        self._source = source
        self._session = session
        self._symbol = symbol
        self._span = span
        self._asked: Cell | None = None
        self._fruitless = 0
        self.missing = ""
        """Reason why part of the range is not settled, once `pages` has ended; empty if all is."""

    async def pages(self) -> AsyncIterator[PointPage]:
        """Yield the settled parts of the range in time order.

        Raises:
            ExchangeFailure: A query got no valid answer in all attempts.
        """
        session, venue = self._session, self._session.venue
        await venue.know(session, self._symbol)
        now_ns = await session.now_ns()
        end_ns = min(self._span.end_ns, await self._source.settled_before_ns(session, self._symbol))
        if end_ns <= self._span.start_ns:
            self.missing = self._unknown(self._span.start_ns)
            return
        for start_ns in range(self._span.start_ns, end_ns, PART_NS):
            part = TimeRange(start_ns, min(start_ns + PART_NS, end_ns))
            evidence = PointEvidence(part, now_ns=now_ns)
            if not await self._settle(evidence):
                return
            for page in pages_of(evidence, part):
                yield page
        if end_ns < self._span.end_ns:
            self.missing = self._unknown(end_ns)

    async def _settle(self, evidence: PointEvidence) -> bool:
        """Query until a part is settled; return False, and set ``missing``, if some of it never is."""
        while (window := evidence.next_window()) is not None:
            if await self._is_hopeless(evidence):
                cell = self._describe(evidence.first_unsettled)
                self.missing = f"{cell} are not settled after {evidence.answers} answers"
                return False
            evidence.add(await self._source.fetch(self._session, self._symbol, window))
            evidence.now_ns = await self._session.now_ns(evidence.span.end_ns)
        return True

    async def _is_hopeless(self, evidence: PointEvidence) -> bool:
        """Note a query of the first cell that is not settled; pause before the third query and each later one."""
        if evidence.first_unsettled != self._asked:
            self._asked, self._fruitless = evidence.first_unsettled, 0
        self._fruitless += 1
        if self._fruitless > 2:
            self._session.renew_connection()
            first_seconds = self._session.venue.settings.hole_spacing_seconds
            await self._session.venue.sleep(min(first_seconds * 2 ** (self._fruitless - 3), LONGEST_PAUSE_SECONDS))
        return self._fruitless > MAX_ANSWERS

    def _unknown(self, time_ns: int) -> str:
        return f"{self._source.dataset.rows} from {iso(time_ns)} on are not known to {self._session.venue.name} yet"

    def _describe(self, cell: Cell | None) -> str:
        before_ns, after_ns = cell or (None, None)
        since = f" after {iso(before_ns)}" if before_ns is not None else ""
        until = f" before {iso(after_ns)}" if after_ns is not None else ""
        return f"{self._source.dataset.rows} of {self._symbol}{since}{until}"


def pages_of(evidence: PointEvidence, span: TimeRange) -> list[PointPage]:
    """Return a settled part of the range as pages; the last one also has the time after its last row."""
    if not span:
        return []
    points = [
        SettledPoint(time_ns, values, None if before_ns is None else round(before_ns / SECOND_NS))
        for time_ns, values in evidence.points(span).items()
        for before_ns in [evidence.interval_before(time_ns)]
    ]
    parts = [points[first : first + MAX_PAGE_ROWS] for first in range(0, len(points) or 1, MAX_PAGE_ROWS)]
    starts_ns = [span.start_ns, *(part[0].time_ns for part in parts[1:]), span.end_ns]
    return [
        PointPage(TimeRange(start_ns, end_ns), tuple(part))
        for part, start_ns, end_ns in zip(parts, starts_ns, starts_ns[1:], strict=False)
    ]
