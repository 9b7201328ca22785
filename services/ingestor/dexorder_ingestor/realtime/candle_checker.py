"""Task of a realtime job that compares closed candles with the exchange's own, and repairs them from trades in REST."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import next_open, split_by_periods
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.candle_checks import CandleChecks, Group, equal, joined
from dexorder_ingestor.realtime.exchange_tasks import Alarm, MarketTask
from dexorder_ingestor.realtime.live_candles import candle_of

_MAX_PAGES = 100
_BEFORE_NS = 600 * SECOND_NS
"""Time before the span in which a trade is looked for, if that is the only proof that the first one is there."""


@dataclass(eq=False)
class CandleChecker(MarketTask):
    """Compares closed candles with the exchange's own from time to time, and repairs them from the trades in REST.

    A candle takes the place of another one only if it is made of at least as many trades, and the answer reaches its
    end: a later trade was seen, or the exchange's own candle is equal. Here ``changed`` is called after each repair.
    """

    checks: CandleChecks
    on_checked: Callable[[], object]
    alarm: Alarm = field(default_factory=Alarm)

    async def run(self) -> None:
        """Check until cancelled."""
        doubtful: dict[tuple[int, int], None] = {}
        wait_ns = int(self.services.settings.candle_check_seconds * SECOND_NS)
        while True:
            self.alarm.reset()
            await self.alarm.wait(wait_ns, now_ns=self._now_ns())
            await self._compare()
            doubtful.update(dict.fromkeys(self.series.take_doubtful()))
            for period, open_ns in list(doubtful):
                if await self._is_mended(period, open_ns):
                    del doubtful[period, open_ns]
            self.on_checked()

    async def _compare(self) -> None:
        """Compare the candles that are due, in as few calls as possible, and repair the differing ones."""
        due, now_ns = defaultdict[int, list[Group]](list), self.services.queries.clock_estimate_ns
        for group in self.checks.due(now_ns):
            due[group.known.period_seconds].append(group)
        for period, groups in due.items():
            found: list[Candle] = []
            try:
                for span in merge(group.span for group in groups):
                    for part in split_by_periods(span, period, self._venue.limits.candles):
                        theirs = await self.services.queries.candles(self.symbol, period, part)
                        if theirs is None:
                            break
                        found += theirs
                        self._metrics.candles_checked.labels(self._venue.name).inc()
                    else:
                        continue
                    for group in groups:
                        self.checks.forget(group)
                    break
                else:
                    for group in groups:
                        await self._judge(group, found)
            except ExchangeFailure as error:
                self._log.info("candles not checked", reason=str(error)[:300])

    async def _judge(self, group: Group, theirs: list[Candle]) -> None:
        differing = self.checks.differing(group, theirs)
        if not differing:
            if self.checks.are_witnessed(group, theirs):
                self.series.witnessed(group.span)
                self.changed()
            self.checks.confirm(group)
            return
        if not group.attempts:
            self._metrics.candle_differences.labels(self._venue.name).inc()
            self._log.warning("candle differs from the exchange's own", candles=str(group.span))
        if await self._is_repaired(group, differing, theirs):
            self.checks.confirm(group)
        else:
            self.checks.postpone(group, self.services.queries.clock_estimate_ns)

    async def _is_repaired(self, group: Group, differing: list[int], theirs: list[Candle]) -> bool:
        """Query the trades of candles that differ; return whether these candles are right, and stand as they are.

        Those that are not are built again, which makes them candles that were not compared yet.
        """
        period, are_right = group.known.period_seconds, True
        span = TimeRange(differing[0], next_open(differing[-1], period))
        trades = await self._trades(span, joined(c for c in theirs if span.start_ns <= c.open_ns < span.end_ns))
        if trades is None:
            return False
        mine = group.candles
        ours = group.known.candle if mine is None else joined(mine[t] for t in differing if t in mine)
        if (ours.trade_count or 0) > sum(trade.fills for trade in trades) if ours else False:
            self._log.info("candle not repaired: REST has fewer trades", candles=str(span))
            return False
        if equal(ours, candle_of(trades)):
            return True
        for open_ns in differing:
            inside = [trade for trade in trades if open_ns <= trade.time_ns < next_open(open_ns, period)]
            if mine is None or not equal(mine.get(open_ns), candle_of(inside)):
                self.series.repair(period, open_ns, inside, now_ns=self._now_ns())
                are_right = False
        self.changed()
        return are_right

    async def _is_mended(self, period: int, open_ns: int) -> bool:
        """Build a doubtful candle again; return False as long as that has to be tried again.

        The number of trades in the old candle may be unknown. So the exchange's own candle has to have the same values.
        """
        span = TimeRange(open_ns, next_open(open_ns, period))
        if span.end_ns > self.series.settled_ns:
            return False
        try:
            theirs = await self.services.queries.candles(self.symbol, period, span)
        except ExchangeFailure as error:
            self._log.info("candle not repaired yet", reason=str(error)[:300])
            return False
        own = joined(theirs or ())
        trades = await self._trades(span, own)
        if not trades or (theirs is not None and not equal(candle_of(trades), own)):
            return False
        old = self.checks.group_of(period, open_ns)
        if old is not None and old.span == span and old.trades > sum(trade.fills for trade in trades):
            self._log.info("candle not repaired yet: REST has fewer trades", candles=str(span))
            return False
        self.series.repair(period, open_ns, trades, now_ns=self._now_ns())
        self.changed()
        return True

    async def _trades(self, span: TimeRange, theirs: Candle | None) -> list[Trade] | None:
        """Return the trades of candles; None as long as the answer may lack some. ``theirs`` is the exchange's own."""
        try:
            return await refetch(self.services.queries, self.symbol, span, theirs)
        except ExchangeFailure as error:
            self._log.info("candle not repaired yet", reason=str(error)[:300])
            return None


async def refetch(
    queries: LiveQueries, symbol: str, span: TimeRange, theirs: Candle | None = None
) -> list[Trade] | None:
    """Return the trades of a span; None if they are too many, or some are or may be missing.

    Args:
        theirs: The exchange's own candle of the span. If it is equal, the last trades are there though the market has
            had none since.

    Raises:
        ExchangeFailure: The exchange does not answer.
    """
    series = queries.venue.trade_series
    found: dict[tuple[str, int], Trade] = {}
    before_ns = 1_000_000 if series.numbered else _BEFORE_NS
    query = TradeQuery(since_ns=max(0, span.start_ns - before_ns)) if series.by_time else TradeQuery()
    for _ in range(_MAX_PAGES):
        answer: TradeAnswer = await queries.trades(symbol, query, lambda answer: answer)
        found.update(((trade.trade_id, trade.time_ns), trade) for trade in answer.trades)
        last = max(answer.trades, default=None)
        if last is None or last.time_ns >= span.end_ns or not answer.full or not series.by_time:
            break
        query = series.query(last.number if series.numbered else None, last.time_ns)
    else:
        return None
    if not series.numbered and all(trade.time_ns >= span.start_ns for trade in found.values()):
        return None
    trades = sorted(trade for trade in found.values() if span.start_ns <= trade.time_ns < span.end_ns)
    reaches_end = any(trade.time_ns >= span.end_ns for trade in found.values())
    if not reaches_end and (theirs is None or not equal(candle_of(trades), theirs)):
        return None
    if series.numbered and any(other.number > one.number + 1 for one, other in pairwise(trades)):
        return None  # a smaller number is one of numbers that have begun again
    return trades
