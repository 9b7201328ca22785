"""Walk along the trades of an exchange that numbers them: consecutive ids prove candles and holes at once."""

from __future__ import annotations

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import next_open, open_times, split_by_periods
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange, intersect, merge, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle
from dexorder_ingestor.exchange.trade_pager import TradePager
from dexorder_ingestor.history.job import FetchJob
from dexorder_ingestor.history.newest import QUIET_AFTER_SECONDS
from dexorder_ingestor.history.paging import CandlePage

_ANY_NUMBER = 2**63


async def settle_by_trades(job: FetchJob, span: TimeRange) -> None:
    """Settle a range; where trades lack ids, by answers that agree. After a page that fails, continue with the next."""
    todo = split_by_periods(span, job.dispatch.period_seconds, job.venue.settings.page_candles)
    while todo and not job.is_over:
        todo = await _TradeFetch(job, todo).run()
    if todo:
        job.add_rest(TimeRange(todo[0].start_ns, span.end_ns), "not queried")


class _TradeFetch:
    """One walk over pages, from before the first to after the last."""

    def __init__(self, job: FetchJob, todo: list[TimeRange]) -> None:
        self._job = job
        self._todo = todo
        self._period = job.dispatch.period_seconds
        window = TimeRange(todo[0].start_ns, todo[-1].end_ns)
        self._pager = TradePager(
            window,
            self._period,
            candles=_ANY_NUMBER,
            answers=job.venue.settings.hole_answers,
            page=job.venue.dialect.trades.page,
            skip=job.impossible,
        )
        self._candles: list[Candle] = []
        self._times_ns: list[int] = []
        self._repetition = 0

    async def run(self) -> list[TimeRange]:
        """Hand on pages until one fails; return the pages after it."""
        job, pager = self._job, self._pager
        while not job.is_over and (query := pager.next_query()):
            self._repetition = self._repetition + 1 if query.spaced else 0
            if query.spaced:
                await job.venue.sleep(job.waits.take_or_first(self._repetition))
            try:
                self._times_ns.append(await job.query_trades(query, pager))
            except ExchangeFailure as error:
                if isinstance(error, ImpossibleCandle) and job.leave_out(error):
                    continue
                job.fail(self._todo[0], str(error))
                return self._todo[1:]
            if not pager.is_numbered:
                await job.settle(TimeRange(self._todo[0].start_ns, self._todo[-1].end_ns))
                return []
            await self._hand_on()
        return self._todo

    async def _hand_on(self) -> None:
        """Hand on the pages with all trades known, or as many candles as are wanted."""
        self._candles += self._pager.take()
        while self._todo and self._todo[0].end_ns <= self._pager.known_end_ns:
            page, *self._todo = self._todo
            await self._put(page)
        if self._todo and self._candles and self._job.is_limit_reached(len(self._candles)):
            end_ns = next_open(self._candles[-1].open_ns, self._period)
            page, self._todo[0] = self._todo[0], TimeRange(end_ns, self._todo[0].end_ns)
            await self._put(TimeRange(page.start_ns, end_ns))

    async def _put(self, page: TimeRange) -> None:
        inside = [c for c in self._candles if c.open_ns < page.end_ns]
        self._candles = self._candles[len(inside) :]
        if self._pager.is_open_ended and inside and self._is_young(inside[-1]):
            inside.pop()  # a trade of it may still be missing, so it is not settled, like the holes after it
        self._job.newest.note(inside)
        for part in self._job.possible([page]):
            candles = tuple(c for c in inside if part.start_ns <= c.open_ns < part.end_ns)
            holes = set(open_times(part, self._period)) - {c.open_ns for c in candles}
            empty = merge(TimeRange(t, next_open(t, self._period)) for t in holes)
            await self._job.hand_on(CandlePage(part, candles, tuple(empty), self._times_ns[-1], self._proofs(part)))
        self._times_ns = self._times_ns[-1:]

    def _is_young(self, candle: Candle) -> bool:
        """Return whether a candle ended so recently that trades of it may still turn up."""
        age_ns = self._job.newest.now_ns - next_open(candle.open_ns, self._period)
        return age_ns < QUIET_AFTER_SECONDS * SECOND_NS

    def _proofs(self, part: TimeRange) -> tuple[Proof, ...]:
        unproven = intersect(merge(self._pager.unproven), part)
        times_ns = self._times_ns[0], self._times_ns[-1]
        by_ids = [Proof(p, ProofKind.TRADE_IDS, len(self._times_ns), *times_ns) for p in subtract([part], unproven)]
        answers = self._job.venue.settings.hole_answers
        return tuple(sorted([*by_ids, *(Proof(p, ProofKind.ODDS, answers, *times_ns) for p in unproven)]))
