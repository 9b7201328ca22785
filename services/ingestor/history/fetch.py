"""Fetch of one dispatch: where the exchange has coarser candles, these are checksums; elsewhere answers must agree."""

from __future__ import annotations

from services.common.model.page import Candle
from services.common.model.periods import ceil_to_grid, count_periods, floor_to_grid, open_times, split_by_periods
from services.common.model.proof import Proof, ProofKind, join_proofs
from services.common.model.time_range import TimeRange, subtract
from services.common.model.times import SECOND_NS
from services.ingestor.broker.slots import Dispatch
from services.ingestor.exchange.failures import ExchangeFailure
from services.ingestor.exchange.venue import Session, Venue
from services.ingestor.history.agreement import Agreement
from services.ingestor.history.checksum import SETTLED_AFTER_SECONDS, CellStream, CheckedCell, cell_seconds
from services.ingestor.history.evidence import Query
from services.ingestor.history.job import Job, Missing, Put, Unproven
from services.ingestor.history.paging import Page, Windows, page_periods

_MAX_RETRIES = 7
"""Queries about a cell that does not tally before agreeing answers decide about it."""
_MAX_UNCHECKED = 4
"""Cells in a row that never tally from which on the exchange's coarser candles count as no checksums."""
_LONG_CALLS = 2
"""Calls that a range without coarser candles is worth; of longer ones only the ends are queried."""


class Fetcher:
    """Fetches one dispatch through one session."""

    def __init__(self, dispatch: Dispatch, venue: Venue, session: Session, agreement: Agreement) -> None:
        self._dispatch = dispatch
        self._venue = venue
        self._session = session
        self._agreement = agreement

    async def run(self, put: Put) -> list[Missing]:
        """Hand every verified page to ``put`` in time order; return the missing parts in time order."""
        job = Job(self._dispatch, self._venue, self._session, self._agreement, put)
        span, period_seconds = self._dispatch.span, self._dispatch.period_seconds
        try:
            await job.start()
        except ExchangeFailure as error:
            return [Missing(span, str(error))]
        closed = TimeRange(span.start_ns, max(span.start_ns, min(span.end_ns, job.closed_end_ns)))
        end_ns = closed.start_ns
        if self._venue.dialect.volume_tolerance is not None:
            periods = min(count_periods(closed, period_seconds), job.limits.candles)
            if seconds := cell_seconds(period_seconds, self._venue.offered, periods):
                end_ns = await _CheckedFetch(job, closed, seconds).run()
        await job.settle(TimeRange(end_ns, closed.end_ns))
        job.add_rest(TimeRange(closed.end_ns, span.end_ns), "not closed yet")
        return sorted(job.missing, key=lambda m: m.span)


class _CheckedFetch:
    """Fetches the part of a range that whole coarser candles, the cells, cover."""

    def __init__(self, job: Job, span: TimeRange, seconds: int) -> None:
        self._job = job
        self._span = span
        self._cell_seconds = seconds
        self._period = job.dispatch.period_seconds
        self._windows = Windows(self._period, job.limits, closed_end_ns=job.closed_end_ns)
        self._pending: list[CheckedCell] = []
        self._proofs: list[Proof] = []
        self._done_ns = span.start_ns
        self._unchecked = 0
        self._left_seconds = job.venue.settings.recheck_seconds

    async def run(self) -> int:
        """Settle the range from its start on; return the end of the settled part."""
        seconds, job = self._cell_seconds, self._job
        settled_ns = floor_to_grid(max(0, job.closed_end_ns - SETTLED_AFTER_SECONDS * SECOND_NS), seconds)
        start_ns = floor_to_grid(self._span.start_ns, seconds)
        whole = TimeRange(start_ns, max(start_ns, min(ceil_to_grid(self._span.end_ns, seconds), settled_ns)))
        evidence = job.evidence(whole, seconds, settled_ns)
        try:
            for page in split_by_periods(whole, seconds, page_periods(job.venue.settings.page_candles, job.limits)):
                if job.is_over or self._unchecked == _MAX_UNCHECKED:
                    break
                try:
                    await job.prove(page, evidence, seconds)
                except (ExchangeFailure, Unproven):
                    await self._settle_unchecked(page)
                    evidence.start_anew(page.end_ns)
                else:
                    await self._check(evidence.settle(page))
        finally:
            evidence.close()
        return self._done_ns

    async def _check(self, coarse: Page) -> None:
        """Settle the range of a page of cells."""
        longest = _LONG_CALLS * self._job.limits.candles
        absent = [] if self._job.limits.wide else [e for e in coarse.empty if count_periods(e, self._period) > longest]
        for part in sorted([*absent, *subtract([coarse.span], absent)]):
            if self._job.is_over:
                return
            if part in absent and await self._has_empty_ends(part):
                cells = split_by_periods(part, self._cell_seconds, 1)
                self._pending += [CheckedCell(cell, ()) for cell in cells]
                self._proofs += [proof._replace(span=part) for proof in coarse.proofs]
            elif part in absent:
                await self._settle_unchecked(part)
            else:
                await self._stream(part, coarse)
            await self._hand_on(all_pages=True)

    async def _has_empty_ends(self, part: TimeRange) -> bool:
        """Return whether queries about the start and the end of a range have no candle."""
        windows, size = self._windows, self._job.limits.candles
        first = TimeRange(part.start_ns, windows.after(part.start_ns, size))
        last = TimeRange(windows.before(part.end_ns, size), part.end_ns)
        try:
            return not any([(await self._job.query(Query(window), self._period))[0] for window in (last, first)])
        except ExchangeFailure:
            return False

    async def _stream(self, span: TimeRange, coarse: Page) -> None:
        """Settle a range cell by cell; cells that never tally are settled without them."""
        cells = {c.open_ns: c for c in coarse.candles}
        tolerance = self._job.venue.dialect.volume_tolerance or 0.0
        stream = CellStream(span, self._cell_seconds, cells, self._windows, tolerance)
        while (cell := stream.cell) and not self._job.is_over:
            if self._unchecked == _MAX_UNCHECKED:
                await self._settle_unchecked(TimeRange(cell.start_ns, span.end_ns))
                return
            window = stream.next_window()
            if not await self._wait(stream.retries):
                await self._settle_unchecked(stream.give_up())
                self._unchecked += 1
                continue
            try:
                candles, fetched_ns = await self._job.query(Query(window, shifted=stream.retries > 0), self._period)
            except ExchangeFailure:
                await self._settle_unchecked(
                    stream.give_up(min(window.end_ns, self._windows.after(cell.start_ns, self._job.limits.candles)))
                )
                continue
            stream.add(window, candles)
            self._take(stream.take(), cells, coarse, fetched_ns)
            await self._hand_on()

    async def _wait(self, retries: int) -> bool:
        """Wait before a retry, longer each time; return False if no more waiting is worth it."""
        seconds = self._job.venue.settings.hole_spacing_seconds * 2 ** (retries - 1) if retries > 2 else 0.0
        if retries > _MAX_RETRIES or seconds > self._left_seconds:
            return False
        self._left_seconds -= seconds
        if seconds:
            await self._job.venue.sleep(seconds)
        return True

    def _take(self, checked: list[CheckedCell], cells: dict[int, Candle], coarse: Page, fetched_ns: int) -> None:
        for each in checked:
            self._unchecked = 0
            self._pending.append(each)
            if each.span.start_ns in cells:
                times_ns = sorted([coarse.fetched_ns, fetched_ns])
                self._proofs.append(Proof(each.span, ProofKind.CHECKSUM, 2, times_ns[0], times_ns[1]))
            else:
                self._proofs += [proof._replace(span=each.span) for proof in coarse.proofs]

    async def _hand_on(self, *, all_pages: bool = False) -> None:
        """Hand on the full pages of what is checked, or all of it."""
        while self._pending and not self._job.is_over:
            span = TimeRange(self._pending[0].span.start_ns, self._pending[-1].span.end_ns)
            rest = span.intersect(TimeRange(self._done_ns, self._span.end_ns))
            if rest is None:
                break
            part = split_by_periods(rest, self._period, self._job.venue.settings.page_candles)[0]
            if part.end_ns == rest.end_ns and not all_pages:
                return
            await self._job.hand_on(self._page(part))
            self._done_ns = part.end_ns
            self._pending = [cell for cell in self._pending if cell.span.end_ns > part.end_ns]
            self._proofs = [proof for proof in self._proofs if proof.span.end_ns > part.end_ns]

    def _page(self, span: TimeRange) -> Page:
        inside = (c for cell in self._pending for c in cell.candles)
        candles = tuple(c for c in inside if span.start_ns <= c.open_ns < span.end_ns)
        present = {c.open_ns for c in candles}
        empty = tuple(self._windows.ranges(t for t in open_times(span, self._period) if t not in present))
        proofs = [p._replace(span=part) for p in self._proofs if (part := p.span.intersect(span))]
        return Page(span, candles, empty, max(p.last_ns for p in proofs), tuple(join_proofs(proofs)))

    async def _settle_unchecked(self, part: TimeRange) -> None:
        """Settle a part by agreeing answers, after what is checked."""
        await self._hand_on(all_pages=True)
        if inside := part.intersect(self._span):
            await self._job.settle(inside)
            self._done_ns = inside.end_ns
