"""Fetch of one dispatch.

Where candles come from trades, the trades' ids are the proof. Where the exchange has coarser candles, these are
checksums. Elsewhere answers must agree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

import structlog

from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.checksum import cell_ladder, scan_periods
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import Dispatch
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import (
    ceil_to_grid,
    count_periods,
    floor_to_grid,
    open_times,
    split_by_periods,
)
from dexorder_common.model.proof import Proof, ProofKind, join_proofs
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.dispatch_runner import DispatchRun
from dexorder_ingestor.exchange.absences import ProvenAbsence
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.history.checksum import CellStream, CheckedCell, ValueSample, sampled
from dexorder_ingestor.history.evidence import CandleQuery, Evidence
from dexorder_ingestor.history.job import FetchJob, Missing, Put, Unproven
from dexorder_ingestor.history.paging import CandlePage, QueryWindows, chunk_periods, page_periods
from dexorder_ingestor.history.scan import Scan, settled_end_ns
from dexorder_ingestor.history.trade_walk import settle_by_trades

log = structlog.get_logger(__name__)
_MAX_ROUNDS = 7
"""Queries of each host about a cell that does not tally before smaller cells or agreeing answers decide about it."""
_UNKNOWN = Agreement()
"""Agreement that an unknown exchange needs: ten answers, or more if some disagree."""
_MIN_FAILED = 4
"""Number of cells that do not tally. Unless more cells do, the exchange's coarser candles do not count as checksums."""


async def publish_candles(run: DispatchRun) -> DispatchEnd | None:
    """Fetch and publish one dispatch; return how it ended, or None if the relay no longer wants it."""
    queue: asyncio.Queue[CandlePage | list[Missing]] = asyncio.Queue(run.settings.prefetch_pages)
    async with asyncio.TaskGroup() as group:
        fetching = group.create_task(_fetch(run, queue))
        try:
            end = await _publish(run, queue)
        except Unavailable as error:  # not out of the group, which would wrap it
            end = run.hand_back(str(error))
        fetching.cancel()  # still runs if the dispatch is fenced or the gateway is unavailable
    return end


async def _fetch(run: DispatchRun, queue: asyncio.Queue[CandlePage | list[Missing]]) -> None:
    learnt, clock = run.venue.learnt, run.venue.clock
    learnt.share(now_ns=clock.wall_ns())
    async with run.session() as session:
        try:
            missing = await fetch_candles(run.dispatch, run.venue, session, learnt.agreement, queue.put)
        finally:
            learnt.share(now_ns=clock.wall_ns())
    run.fetched()
    await queue.put(missing)


async def _publish(run: DispatchRun, queue: asyncio.Queue[CandlePage | list[Missing]]) -> DispatchEnd | None:
    while isinstance(page := await queue.get(), CandlePage):
        value, count = page_value(run.dispatch.request_id, page.candles), len(page.candles)
        is_wanted = await run.publish_page(
            page.span, value, count, fetched_ns=page.fetched_ns, empty=page.empty, proofs=page.proofs
        )
        run.venue.metrics.candles.labels(run.venue.name).inc(count)
        if not is_wanted:
            return None
    return await run.publish_final("; ".join(map(str, page)))


async def fetch_candles(
    dispatch: Dispatch, venue: CcxtVenue, session: CcxtSession, agreement: Agreement, put: Put
) -> list[Missing]:
    """Hand every verified page of a dispatch to ``put`` in time order; return the missing parts in time order."""
    job, span = FetchJob(dispatch, venue, session, agreement, put), dispatch.span
    try:
        await job.start()
    except ExchangeFailure as error:
        return [Missing(span, str(error))]
    closed = TimeRange(span.start_ns, max(span.start_ns, min(span.end_ns, job.closed_end_ns)))
    if venue.dialect.history == "trades":
        await settle_by_trades(job, closed)
    else:
        ladder = []
        if venue.dialect.candles.volume_tolerance is not None:
            ladder = cell_ladder(dispatch.period_seconds, venue.offered, job.limits.candles)
        await _CheckedFetch(job, agreement).settle(closed, ladder)
        await job.wait_for_newest()
    await job.finish()
    job.add_rest(TimeRange(closed.end_ns, span.end_ns), "not closed yet")
    return sorted(job.missing, key=lambda m: m.span)


class _CheckedFetch:
    """State of a dispatch that all its cells share."""

    def __init__(self, job: FetchJob, agreement: Agreement) -> None:
        self.job = job
        self.agreement = agreement
        self.period = job.dispatch.period_seconds
        self.windows = QueryWindows(self.period, job.limits, closed_end_ns=job.closed_end_ns)
        self.scan = Scan(job)
        self.tolerance = job.venue.dialect.candles.volume_tolerance or 0.0
        self.drawn = crc32(job.dispatch.dispatch_id.encode())
        self.tallied: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()

    def is_hopeless(self, seconds: int) -> bool:
        """Return whether cells of this period are no checksums."""
        return self.failed[seconds] >= max(_MIN_FAILED, self.tallied[seconds])

    async def settle(self, span: TimeRange, ladder: Sequence[int]) -> None:
        """Settle a range by the cells of a ladder; by agreeing answers elsewhere."""
        end_ns = span.start_ns
        ladder = [each for each in ladder if not self.is_hopeless(each) and floor_to_grid(span.start_ns, each) >= 0]
        smallest = None
        if len(ladder) > 1 and self._is_one_call(span, ladder[-1]):
            smallest = _Cells(self, span, ladder[-1:], larger=ladder[:-1])
            end_ns = await smallest.settle()
        if ladder and (smallest is None or smallest.is_left):
            known = smallest.answer if smallest else None
            end_ns = await _Cells(self, TimeRange(end_ns, span.end_ns), ladder, sample=known).settle()
        await self.job.settle(TimeRange(end_ns, span.end_ns))

    def _is_one_call(self, span: TimeRange, seconds: int) -> bool:
        """Return whether one call brings all cells of a period that a range needs, as one page."""
        job, cells = self.job, TimeRange(floor_to_grid(span.start_ns, seconds), ceil_to_grid(span.end_ns, seconds))
        page = page_periods(job.venue.settings.page_candles, job.limits)
        return count_periods(cells, seconds) <= min(page, chunk_periods(job.limits.candles))

    async def wait(self, retries: int) -> bool:
        """Wait before a round of retries, longer each time; return False if no more waiting is worth it.

        A round asks each host once, so that a bad host uses up no try of another.
        """
        before, turn = divmod(retries - 1, self.job.hosts)
        seconds = self.job.waits.take(before + 1) if before >= 2 and not turn else 0.0
        if before >= _MAX_ROUNDS or seconds is None:
            return False
        if seconds:
            await self.job.venue.sleep(seconds)
        return True


class _Cells:
    """Fetches the part of a range that whole cells cover.

    Of a short range, one call brings the smallest cells of all of it. They prove more than larger ones, so they are
    the checksums if none is absent. The absence of a small cell costs more calls to prove than that of a large one.
    Then the range is left to larger cells, and the answer is the sample that contradicts them.
    """

    def __init__(
        self,
        fetch: _CheckedFetch,
        span: TimeRange,
        ladder: Sequence[int],
        *,
        larger: Sequence[int] = (),
        sample: tuple[TimeRange, Sequence[Candle]] | None = None,
    ) -> None:
        """Start with the first period of a ladder.

        Args:
            larger: Periods of larger cells, to which a range is left in which a cell is absent.
            sample: Smallest cells that are known, and their range.
        """
        self._fetch = fetch
        self._larger = larger
        self._known_sample = sample
        self.is_left = False
        """The range is left to larger cells; ``answer`` has its smallest ones."""
        self.answer: tuple[TimeRange, Sequence[Candle]] | None = None
        self._job = fetch.job
        self._span = span
        self._seconds, *self._smaller = ladder
        self._pending: list[CheckedCell] = []
        self._proofs: list[Proof] = []
        self._unsettled: TimeRange | None = None
        self._done_ns = span.start_ns
        self._cells: Sequence[Candle] = ()
        self._agreeing = self._foreign = self._counted = 0
        self._sample: ValueSample | None = None

    async def settle(self) -> int:
        """Settle the range in time order; return the end of the settled part."""
        seconds, job = self._seconds, self._job
        settled_ns = settled_end_ns(job, seconds)
        start_ns = floor_to_grid(self._span.start_ns, seconds)
        rest = TimeRange(start_ns, max(start_ns, min(ceil_to_grid(self._span.end_ns, seconds), settled_ns)))
        evidence = job.evidence(rest, seconds, settled_ns)
        periods = page_periods(job.venue.settings.page_candles, job.limits)
        try:
            while rest and not job.is_over and not self._fetch.is_hopeless(seconds):
                page, absence = split_by_periods(rest, seconds, periods)[0], None
                try:
                    page, absence = await self._cut(page, evidence)
                    if self._larger and (absence or not self._is_whole(page)):
                        self.is_left = True
                        break
                    if page:
                        await job.prove(page, evidence, seconds)
                except (ExchangeFailure, Unproven):
                    if self._larger and not self.answer:
                        self.is_left = True
                        break
                    await self._settle_otherwise(page)
                    evidence.start_anew(page.end_ns)
                    self._agreeing = self._foreign = self._counted = 0
                else:
                    if page:
                        await self._check(evidence.settle(page))
                if absence := absence and absence.part(rest):
                    await self._take_absent(absence)
                rest = TimeRange(absence.span.end_ns if absence else page.end_ns, rest.end_ns)
        finally:
            evidence.close()
            if self._fetch.agreement.is_lead(self._agreeing, self._foreign):
                noted = min(self._foreign, 1)  # by `_note_foreign`
                self._fetch.agreement.foreign.note(true=self._agreeing - self._counted, untrue=self._foreign - noted)
        return self._done_ns

    async def _cut(self, page: TimeRange, evidence: Evidence) -> tuple[TimeRange, ProvenAbsence | None]:
        """Return a page up to the start of a long absence, and this; the first call without a cell looks for one."""
        scan, periods = self._fetch.scan, scan_periods(self._seconds, self._job.venue.offered)
        if known := scan.known_at(page.start_ns):
            return TimeRange(page.start_ns, page.start_ns), known
        while (query := evidence.next_own_query(page)) and (chunk := query.chunk):
            cells, _ = await self._job.ask(evidence, query, self._seconds)
            self.answer = chunk, cells
            if not any(c.open_ns >= chunk.start_ns for c in cells) and scan.is_long(chunk):
                found = await scan.find(chunk.start_ns, periods)
                return TimeRange(page.start_ns, chunk.start_ns) if found else page, found
        return page, None

    def _is_whole(self, page: TimeRange) -> bool:
        """Return whether the answer has every cell of a page."""
        opens = {cell.open_ns for cell in self.answer[1]} if self.answer else set()
        return all(open_ns in opens for open_ns in open_times(page, self._seconds))

    async def _take_absent(self, absence: ProvenAbsence) -> None:
        """Settle a range without cells and without finer candles."""
        self._pending += [CheckedCell(cell, ()) for cell in split_by_periods(absence.span, self._seconds, 1)]
        self._proofs += absence.proofs
        await self._hand_on(all_pages=True)

    async def _check(self, coarse: CandlePage) -> None:
        """Settle the range of a page of cells."""
        self._cells = coarse.candles
        self._agreeing += 1
        self._counted += 1  # by the evidence
        absent = [] if self._job.limits.wide else [e for e in coarse.empty if self._fetch.scan.is_long(e)]
        for part in sorted([*absent, *subtract([coarse.span], absent)]):
            if self._job.is_over:
                return
            if part not in absent:
                await self._stream(part, coarse)
            elif await self._fetch.scan.has_empty_ends(part):
                await self._take_absent(ProvenAbsence(part, tuple(p._replace(span=part) for p in coarse.proofs)))
            else:
                await self._settle_otherwise(part)
            await self._hand_on(all_pages=True)

    async def _stream(self, span: TimeRange, coarse: CandlePage) -> None:
        """Settle a range cell by cell; adjacent cells that do not tally are settled together by smaller ones."""
        job, windows = self._job, self._fetch.windows
        cells = {c.open_ns: c for c in coarse.candles}
        if self._smaller and not self._fetch.is_hopeless(self._smaller[-1]):
            window = sampled(span, self._seconds, self._smaller[-1], job.limits.candles, self._fetch.drawn)
            known = self._known_sample
            self._sample = ValueSample(known[0] if known else window, self._smaller[-1], self._fetch.tolerance)
            if known:
                self._sample.add(known[1])
        stream = CellStream(span, self._seconds, cells, windows, job.venue.shapes, self._fetch.tolerance)
        fetched_ns = coarse.fetched_ns
        while (cell := stream.cell) and not self._is_enough():
            if self._fetch.is_hopeless(self._seconds):
                self._leave(stream.give_up(span.end_ns), cells)
                break
            if stream.is_undecided:
                self._leave(stream.give_up(), cells)
                await self._take(stream.take(), coarse, fetched_ns)
                continue
            if await self._add_file(stream, coarse):
                continue
            window = stream.next_window()
            if job.is_impossible(cell) or not await self._fetch.wait(stream.retries):
                self._leave(stream.give_up(), cells)
                self._fetch.failed[self._seconds] += 1
            else:
                try:
                    candles, fetched_ns = await job.query(
                        CandleQuery(window, shifted=stream.retries > 0), windows.period
                    )
                    self._note_foreign(stream.add(window, candles))
                except ExchangeFailure as error:
                    if isinstance(error, ImpossibleCandle) and job.leave_out(error):
                        continue
                    reach_ns = windows.after(cell.start_ns, job.limits.candles)
                    self._leave(stream.give_up(min(window.end_ns, reach_ns)), cells)
            await self._take(stream.take(), coarse, fetched_ns)
        await self._settle_left()

    async def _add_file(self, stream: CellStream, coarse: CandlePage) -> bool:
        """Add a whole day from the exchange's files, if that saves a query; return whether one was added.

        A file proves nothing: its candles count where they tally with cells that a query has brought, and absent
        candles are left to queries.
        """
        day = stream.next_day()
        found = await self._job.day_file(day) if day else None
        if day is None or found is None:
            return False
        candles, fetched_ns = found
        self._job.judge_file(tallies=stream.add_day(day, candles))
        await self._take(stream.take(), coarse, fetched_ns, are_queried=False)
        return True

    async def _take(
        self, checked: list[CheckedCell], coarse: CandlePage, fetched_ns: int, *, are_queried: bool = True
    ) -> None:
        """Take cells that tally, after all before them.

        Args:
            are_queried: Their candles answered a query; otherwise they show nothing about later answers.
        """
        times_ns, agreeing = sorted([coarse.fetched_ns, fetched_ns]), False
        for each in checked:
            if await self._is_doubtful(each):
                self._leave(each.span, {c.open_ns: c for c in coarse.candles})
                continue
            await self._settle_left()
            self._fetch.tallied[self._seconds] += 1
            agreeing |= bool(each.candles)
            self._pending.append(each)
            if each.candles:
                self._proofs.append(Proof(each.span, ProofKind.CHECKSUM, 2, times_ns[0], times_ns[1]))
            else:
                self._proofs += [proof._replace(span=each.span) for proof in coarse.proofs]
        self._agreeing += agreeing
        self._counted += agreeing and not are_queried
        if checked:
            await self._hand_on()

    async def _is_doubtful(self, checked: CheckedCell) -> bool:
        """Return whether smaller cells contradict the candles of a cell; the first in the sample has them queried."""
        sample = self._sample
        if sample is None or not sample.window.contains(checked.span):
            return False
        if not sample.is_queried:
            try:
                cells, _ = await self._job.query(CandleQuery(sample.window), sample.seconds)
            except ExchangeFailure:
                cells = []
            sample.add(cells)
        if not sample.contradicts(checked):
            return False
        self._job.venue.metrics.contradictions.labels(self._job.venue.name).inc()
        log.warning("smaller cells contradict candles that tally", span=str(checked.span))
        return True

    async def _hand_on(self, *, all_pages: bool = False) -> None:
        """Hand on the full pages of checked cells, or all of them, once they are known to be the queried market's.

        As long as answers come that are needed anyway, earlier jobs vouch for nothing: an exchange that was good may
        answer for another market now.
        """
        if not all_pages and not self._is_trusted(_UNKNOWN):
            return
        if not self._is_trusted(self._fetch.agreement):
            await self._confirm()
        while self._pending and not self._job.is_over:
            span = TimeRange(self._pending[0].span.start_ns, self._pending[-1].span.end_ns)
            rest = span.intersect(TimeRange(self._done_ns, self._span.end_ns))
            if rest is None:
                break
            part = split_by_periods(rest, self._fetch.period, self._job.venue.settings.page_candles)[0]
            if part.end_ns == rest.end_ns and not all_pages:
                return
            await self._job.hand_on(self._page(part))
            self._done_ns = part.end_ns
            self._pending = [cell for cell in self._pending if cell.span.end_ns > part.end_ns]
            self._proofs = [proof for proof in self._proofs if proof.span.end_ns > part.end_ns]

    def _is_enough(self) -> bool:
        inside = sum(c.open_ns >= self._done_ns for cell in self._pending for c in cell.candles)
        return self._job.is_over or self._job.is_limit_reached(inside)

    def _is_trusted(self, agreement: Agreement) -> bool:
        """Return whether enough answers tally, each about other candles, to be the queried market's."""
        if self._job.limits.names_symbol or not any(cell.candles for cell in self._pending):
            return True
        return agreement.is_lead(self._agreeing, self._foreign)

    def _note_foreign(self, is_foreign: bool) -> None:
        """Count an answer of another market; all learn of the first at once: earlier answers no longer vouch."""
        if is_foreign and not self._foreign:
            self._fetch.agreement.foreign.note(untrue=1)
        self._foreign += is_foreign

    async def _confirm(self) -> None:
        """Query the first cells again until enough answers agree; otherwise settle all that tallies without them."""
        job = self._job
        first = self._cells[: job.limits.candles]
        windows = QueryWindows(self._seconds, job.limits, closed_end_ns=job.closed_end_ns)
        window = TimeRange(first[0].open_ns, windows.after(first[-1].open_ns))
        if not job.limits.wide:
            window = TimeRange(window.start_ns, min(window.end_ns, windows.after(window.start_ns, job.limits.candles)))
        known = {c.open_ns: c for c in first if c.open_ns < window.end_ns}
        for query in range(job.venue.settings.evidence_queries):
            if self._is_trusted(self._fetch.agreement):
                return
            if query > 1:
                await job.venue.sleep(job.waits.take_or_first(1))
            try:
                found, _ = await job.query(CandleQuery(window, shifted=True), self._seconds)
            except ExchangeFailure:
                break
            same = sum(known.get(c.open_ns) == c for c in found)
            self._agreeing += 2 * same > len(known)
            self._note_foreign(2 * same < len(found))
        part = TimeRange(self._done_ns, min(self._pending[-1].span.end_ns, self._span.end_ns))
        self._pending = []
        self._proofs = []
        await job.settle(part)
        self._done_ns = part.end_ns

    def _page(self, span: TimeRange) -> CandlePage:
        inside = (c for cell in self._pending for c in cell.candles)
        candles = tuple(c for c in inside if span.start_ns <= c.open_ns < span.end_ns)
        present = {c.open_ns for c in candles}
        windows = self._fetch.windows
        empty = tuple(windows.ranges(t for t in open_times(span, windows.period) if t not in present))
        proofs = [p._replace(span=part) for p in self._proofs if (part := p.span.intersect(span))]
        return CandlePage(span, candles, empty, max(p.last_ns for p in proofs), tuple(join_proofs(proofs)))

    def _leave(self, part: TimeRange, cells: Mapping[int, Candle]) -> None:
        """Leave a part, adjacent to the last one, to `_settle_left`."""
        if self._job.limits.names_symbol or self._fetch.agreement.is_lead(self._agreeing, self._foreign):
            left = split_by_periods(part, self._seconds, 1)
            self._job.traded += [each for each in left if each.start_ns in cells and cells[each.start_ns].volume]
        self._unsettled = TimeRange(self._unsettled.start_ns if self._unsettled else part.start_ns, part.end_ns)

    async def _settle_left(self) -> None:
        part, self._unsettled = self._unsettled, None
        if part:
            await self._settle_otherwise(part)

    async def _settle_otherwise(self, part: TimeRange) -> None:
        """Settle a part by smaller cells or agreeing answers, after the checked cells."""
        await self._hand_on(all_pages=True)
        inside = part.intersect(self._span)
        if inside and not self._job.is_over:
            is_hopeless = self._larger and self._fetch.is_hopeless(self._seconds)
            await self._fetch.settle(inside, self._larger if is_hopeless else self._smaller)
            self._done_ns = inside.end_ns
