"""Trades and candles of one market while a job watches it: settled, due as records, and live. Pure.

input                                    effect
trades of the socket (`received`)        released if the feed knows that they are complete; live at once
an answer of REST (`answered`)           released, or the feed queries again
time (`next_query_ns`, `due_ns`)         a query; a record of trades or closed candles

`feed`     order and completeness of the trades, and the queries that it takes
`candles`  candles of all periods, made of released trades
`batches`  released trades that are in no record yet
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import ceil_to_grid
from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan, UncheckedCandles
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.agreed.feed import AgreedFeed
from dexorder_ingestor.realtime.live_buffer import LiveBuffer, LiveNews
from dexorder_ingestor.realtime.live_candles import ClosedCandles, LiveCandles
from dexorder_ingestor.realtime.numbered.joint import unjoined
from dexorder_ingestor.realtime.numbered.trade_search import Seam
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap
from dexorder_ingestor.realtime.numbered_feed import MARGIN_NS, NumberedFeed
from dexorder_ingestor.realtime.sources.comparison_limits import Room
from dexorder_ingestor.realtime.sources.recalled import RecalledTrades
from dexorder_ingestor.realtime.sources.unshown import UnshownTrades
from dexorder_ingestor.realtime.trade_batches import NEVER_NS, TradeBatch, TradeBatches, lower, lowest_after
from dexorder_ingestor.realtime.waiting import Wait


@dataclass(frozen=True, slots=True)
class Resume:
    """Start of a realtime dispatch.

    Attributes:
        start_ns: Time from which trades are wanted.
        last_trade_id: Id of the last trade before it; empty if unknown.
        candles: Open time of the first candle that is wanted, for each period.
        first_ns: Open time of the first candle of all dispatches, for each period.
        provisional: Spans of trades that an earlier dispatch has left open.
        unchecked: Candles of earlier dispatches that are still to be compared.
        compared_ns: Time before which REST has shown the recorded values of all trades; None without trades to compare.
    """

    start_ns: int
    last_trade_id: str
    candles: Mapping[int, int]
    first_ns: Mapping[int, int] = field(default_factory=dict)
    provisional: tuple[ProvisionalSpan, ...] = ()
    unchecked: tuple[UncheckedCandles, ...] = ()
    compared_ns: int | None = None

    @property
    def unproven_ns(self) -> int:
        """Start of the time that REST alone has called quiet: trades since then may be in no record."""
        alone = (s.span.start_ns for s in self.provisional if s.reason is ProvisionalReason.ONE_SOURCE)
        return min(alone, default=self.start_ns)


class MissingTrades(NamedTuple):
    """Trades that the exchange lacks: numbers that it has not used, and spans with trades that it no longer has."""

    numbers: tuple[Gap, ...]
    spans: tuple[TimeRange, ...]


class DueTrades(NamedTuple):
    """A record of trades.

    Attributes:
        lowest_later: The lowest number in the records after it; None without any.
        compared_ns: See `Resume`, once Kafka has the record; 0 if that is not known.
    """

    batch: TradeBatch
    lowest_later: int | None
    compared_ns: int = 0


class DueRecords(NamedTuple):
    """Records to publish now, in this order."""

    trades: tuple[DueTrades, ...]
    closed: tuple[ClosedCandles, ...]


class LiveSeries:
    """The state of one market's trades and candles. ``now_ns`` is of the monotonic clock."""

    def __init__(
        self,
        trades: TradeSeries,
        resume: Resume,
        *,
        include_trades: bool,
        periods: Iterable[int],
        poll_ns: int,
        now_ns: int,
        has_socket: bool = True,
        silent_ns: int = 0,
        room: Room | None = None,
    ) -> None:
        """Start where an earlier dispatch ended.

        Args:
            include_trades: Trades are wanted as records, not only as candles.
            poll_ns: Time between two queries of an exchange that does not number its trades.
            has_socket: There is a socket, though it may fail.
            silent_ns: Time since the one from which trades are wanted.
            room: Shared by the markets of a venue.
        """
        starts = {period: ceil_to_grid(resume.candles.get(period, resume.start_ns), period) for period in periods}
        left = unjoined(resume.provisional) if trades.numbered else None
        last_id = "" if left else resume.last_trade_id  # other trades may have the same number
        last_number = int(last_id) if trades.numbered and last_id.isdecimal() else None
        start_ns = resume.start_ns if left is None else min(resume.start_ns, left.span.start_ns)
        if trades.numbered and last_number is None:  # with a number, every later trade is asked for by it
            start_ns = min(start_ns, resume.unproven_ns)
        begin_ns = min([start_ns, *starts.values()])
        self._feed: NumberedFeed | AgreedFeed
        if trades.numbered:
            self._feed = NumberedFeed(
                trades,
                begin_ns,
                last_number,
                now_ns=now_ns,
                search=begin_ns < start_ns,
                provisional=resume.provisional,
            )
        else:
            self._feed = AgreedFeed(
                begin_ns,
                now_ns=now_ns,
                poll_ns=poll_ns,
                by_time=trades.by_time,
                has_socket=has_socket,
                has_rest=trades.has_rest,
                silence_ns=trades.silence_ns,
                provisional=resume.provisional,
            )
        self.values = UnshownTrades(trades, room or Room())
        """Trades that only the socket has shown."""
        end_ns = (resume.start_ns if left is None else start_ns) + 1  # the last recorded trade may be of this time
        compared_ns = end_ns if resume.compared_ns is None or not include_trades else min(resume.compared_ns, end_ns)
        recalled = TimeRange(compared_ns, end_ns)
        self.recalled = RecalledTrades(trades, recalled, last_number, now_ns=now_ns, by_time=left is not None)
        """Those of the dispatch before."""
        self._takeover_ns = 0 if last_number is None and left is None else resume.start_ns + silent_ns
        """The exchange's time at the start: trades before it may be recorded, unknown to the relay, with values that
        were not compared. So they are recorded as corrected ones."""
        self._include_trades = include_trades
        self._start_ns = start_ns
        self._last_id = last_id
        self._settled_number = self._last_number = -1 if last_number is None else last_number
        self._candles = LiveCandles(starts, resume.first_ns)
        self._new_numbers_ns = 0 if left is None else start_ns
        """Time of the first trade since numbers have restarted."""
        self.late = self.corrected = 0
        """Trades that came after their time was settled, and trades with corrected values."""
        self._batches = TradeBatches(resume.start_ns, silent_ns=silent_ns, now_ns=now_ns)
        self._live = LiveBuffer(include_trades=include_trades)
        self._before_lost: tuple[list[TradeBatch], list[ClosedCandles]] = [], []
        self._asked_ns = 0

    # --- from the exchange ------------------------------------------------------------------------------------------

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> None:
        """Add trades of one message of the socket."""
        released = self._feed.received(trades, now_ns=now_ns)
        self._release(released, released if self._feed.is_numbered else trades, now_ns)
        self._take_surprises(trades[0].received_ns if trades else 0, now_ns)

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time of the monotonic clock, if only a pong."""
        self._feed.socket_alive(at_ns)

    @property
    def wants_life_after_ns(self) -> int | None:
        """Time after which a sign of life of the socket would settle data; None if no time waits for one."""
        return self._feed.wants_life_after_ns if isinstance(self._feed, NumberedFeed) else None

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, except trades of provisional spans."""
        return self._feed.settled_ns

    @property
    def provisional(self) -> tuple[ProvisionalSpan, ...]:
        """Spans of trades that one source alone calls complete, by start."""
        return self._feed.provisional

    def witnessed(self, span: TimeRange) -> None:
        """Note that the exchange's own closed candles show that the trades of a span are all."""
        if isinstance(self._feed, NumberedFeed):
            self._feed.witnessed(span)

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the socket is lost."""
        self._feed.disconnected(now_ns=now_ns)

    @property
    def waits(self) -> Wait | None:
        """Reason why the settled time stops, if it does; known to the feed."""
        return self._feed.waits

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._feed.wake_ns

    def next_query_ns(self, *, now_ns: int, exchange_ns: int) -> int:
        """Return `wake_ns` after a look at the candles that should be closed by ``exchange_ns``, the exchange's time.

        If the time of such a candle is not settled yet, a query is due now, at most once a second.
        """
        if isinstance(self._feed, NumberedFeed):
            self._feed.look_at_gaps(exchange_ns, now_ns=now_ns)
        close_ns = self._candles.next_close_ns()
        is_late = close_ns is not None and self._feed.settled_ns < close_ns <= exchange_ns - 2 * MARGIN_NS
        if is_late and now_ns >= self._asked_ns + SECOND_NS:
            self._asked_ns = now_ns
            self._feed.ask(now_ns)
        return self._feed.wake_ns

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._feed.is_deaf(now_ns=now_ns)

    def take_query(self, *, now_ns: int) -> TradeQuery | None:
        """Return the query that is due, if any; `answered` or `query_failed` has to follow."""
        return self._feed.query() if now_ns >= self._feed.due_ns else None

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> MissingTrades:
        """Add the answer to `take_query`; return the trades that it shows to be missing.

        Raises:
            BadAnswer: The whole answer is ignored; the same query may be repeated.
        """
        released = self._feed.answered(answer, now_ns=now_ns)
        missing = MissingTrades(tuple(self._feed.skipped), tuple(self._feed.lost))
        self._feed.skipped.clear()
        self._feed.lost.clear()
        self._leave_out(missing.spans, now_ns)
        self._take_late(now_ns)
        self._release(released, released if self._feed.is_numbered else (), now_ns, is_refilled=True)
        self._take_surprises(answer.clock_ns, now_ns)
        self.values.shown(answer.trades)
        return missing

    def compared(self, answer: TradeAnswer, *, now_ns: int) -> None:
        """Add the answer to a query of `values`."""
        corrected = self.values.answered(answer, now_ns=now_ns)
        if corrected:
            self._feed.correct(corrected)
            self._take_surprises(answer.clock_ns, now_ns)

    def recall(self, answer: TradeAnswer, *, now_ns: int) -> None:
        """Add the answer to a query of `recalled`."""
        found = self.recalled.answered(answer, now_ns=now_ns)
        until_ns = max(self._batches.end_ns, self._feed.settled_ns)  # a later one has a restarted number
        known = [trade._replace(revision=answer.clock_ns) for trade in found if trade.time_ns <= until_ns]
        self._batches.add(known, now_ns=now_ns)

    def query_failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer."""
        self._feed.failed(now_ns=now_ns)

    @property
    def has_doubtful(self) -> bool:
        """Whether `take_doubtful` has something."""
        return bool(self._candles.doubtful)

    def take_doubtful(self) -> list[tuple[int, int]]:
        """Return candles that have to be built again from all of their trades, by period and open time; each once."""
        found, self._candles.doubtful = self._candles.doubtful, {}
        return list(found)

    def repair(self, period_seconds: int, open_ns: int, trades: Sequence[Trade], *, now_ns: int) -> None:
        """Build a candle again from all of its trades, which are recorded once more; their values count."""
        if isinstance(self._feed, NumberedFeed):
            late = self._feed.found(trades)
            self.late += len(late)
            self._candles.add(late)
        self._candles.rebuild(period_seconds, open_ns, trades)
        self.values.forget(trades)
        self._batches.add([trade._replace(revision=trade.received_ns) for trade in trades], now_ns=now_ns)

    # --- to Kafka ---------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Number of released trades that are in no record yet."""
        return len(self._batches)

    @property
    def due_ns(self) -> int:
        """Time of the next record of trades, unless more come; far away if all trades are recorded."""
        return self._batches.due_ns(self._feed.settled_ns) if self._include_trades else NEVER_NS

    def set_tick(self, tick_ns: int) -> None:
        """Set the time between two ticks, at which records of trades are due."""
        self._batches.tick_ns = tick_ns

    def has_records_before(self, time_ns: int) -> bool:
        """Return whether candles are closed, or a record of trades is due before a time."""
        batches, closed = self._before_lost
        close_ns = self._candles.next_close_ns()
        is_closed = close_ns is not None and self._feed.settled_ns >= close_ns
        return bool(batches or closed or is_closed or self.due_ns < time_ns)

    def take_records(self, *, now_ns: int, flush: bool = False) -> DueRecords:
        """Return the records that are due; with ``flush``, all that can be recorded."""
        settled_ns = self._feed.settled_ns
        (batches, closed), self._before_lost = self._before_lost, ([], [])
        closed += self._candles.close(settled_ns, now_ns=now_ns, flush=flush)
        batches += self._batches.take(settled_ns, now_ns=now_ns, flush=flush)
        if closed:
            self._live.add_closed(closed)
        found = list(map(DueTrades, batches, lowest_after(batches))) if self._include_trades else []
        if found:
            found[-1] = found[-1]._replace(compared_ns=self._compared_ns())
        return DueRecords(tuple(found), tuple(closed))

    def _compared_ns(self) -> int:
        """Return the time before which REST has shown the values of all trades that are in records by now."""
        waiting = [self.values.oldest_ns, self._batches.oldest_ns, self.recalled.oldest_ns]
        return min([self._feed.settled_ns + 1, *(each for each in waiting if each is not None)])

    def recorded(self, record: DueTrades) -> str:
        """Note that Kafka has a record; return the id of the last trade up to which it has all, empty if not known.

        A trade still to come may have a smaller number, because trades are in the order of time.
        """
        last = max(record.batch.trades, key=lambda trade: trade.number, default=None)
        if not self._feed.is_numbered or (last and last.time_ns < self._new_numbers_ns):
            return ""
        if last and last.number > self._last_number:
            self._last_number = last.number
            self._last_id = last.trade_id
        waiting = lower(record.lowest_later, self._batches.lowest)
        return self._last_id if waiting is None or waiting > self._last_number else ""

    # --- to clients -------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there are trades or candles that no `take_live` has returned."""
        return self._live.has_news

    def take_live(self) -> tuple[LiveNews, list[tuple[int, Candle]]] | None:
        """Return the news since the last call with the running candles and their periods; None without news."""
        news = self._live.take()
        return (news, self._candles.running()) if news else None

    # --- released trades --------------------------------------------------------------------------------------------

    def _leave_out(self, lost: Iterable[TimeRange], now_ns: int) -> None:
        """Let the next spans start after trades that are lost for good; records of the time before are due at once."""
        batches, closed = self._before_lost
        for span in lost:
            batches += self._batches.take(span.start_ns, now_ns=now_ns, flush=True)
            closed += self._candles.close(span.start_ns, now_ns=now_ns)
            self._batches.skip(span.end_ns)
            self._candles.skip(span.end_ns)

    def _take_late(self, now_ns: int) -> None:
        """Record trades that came after their time was settled, and amend their candles."""
        if isinstance(self._feed, AgreedFeed) and self._feed.late:
            late, self._feed.late = self._feed.late, []
            self.late += len(late)
            self._candles.add(late)
            self._batches.add(late, now_ns=now_ns)

    def _release(
        self, released: Sequence[Trade], live: Sequence[Trade], now_ns: int, *, is_refilled: bool = False
    ) -> None:
        if released:
            self._candles.add(released, self._is_new)
            new = [trade for trade in released if self._is_new(trade)]
            if self._takeover_ns and new:
                new = self._as_corrected(new)
            self._batches.add(new, now_ns=now_ns)
        if live:
            received_ns = live[-1].received_ns
            self._live.add_trades(filter(self._is_new, live), received_ns=received_ns, is_refilled=is_refilled)

    def _as_corrected(self, trades: Sequence[Trade]) -> list[Trade]:
        until_ns = self._takeover_ns
        if trades[-1].time_ns >= until_ns:
            self._takeover_ns = 0
        return [trade._replace(revision=until_ns) if trade.time_ns < until_ns else trade for trade in trades]

    def _take_surprises(self, revision: int, now_ns: int) -> None:
        """Take the trades that a feed does not release in order."""
        feed = self._feed
        if isinstance(feed, NumberedFeed):
            self._take_numbered(feed, now_ns)
        if feed.alone:
            self.values.add(feed.alone, now_ns=now_ns)
            feed.alone = []
        if feed.corrected:
            corrected, feed.corrected = feed.corrected, []
            self.values.forget(corrected)
            self.corrected += len(corrected)
            self._record([trade._replace(revision=revision) for trade in corrected], now_ns)
            self._candles.doubt(corrected)

    def _take_numbered(self, feed: NumberedFeed, now_ns: int) -> None:
        if feed.seam is not None:
            self._begin_again(feed.seam, now_ns)
            feed.seam = None
        late = [trade for trade in feed.late if trade.time_ns <= feed.settled_ns]
        if late:  # a later one fills a gap before a search is over
            feed.late = [trade for trade in feed.late if trade.time_ns > feed.settled_ns]
            self.late += len(late)
            self._record(late, now_ns)
            self._candles.add(late)

    def _record(self, trades: Sequence[Trade], now_ns: int) -> None:
        self._batches.add(trades, now_ns=now_ns)
        self._live.add_trades(trades, received_ns=trades[-1].received_ns)

    def _begin_again(self, seam: Seam, now_ns: int) -> None:
        """Continue with trades after a restart of their numbers; all trades before it are in separate records."""
        assert seam.first is not None
        self._release(seam.tail, seam.tail, now_ns)
        batches, closed = self._before_lost
        batches += self._batches.take(min(self._feed.settled_ns, seam.first.time_ns), now_ns=now_ns, flush=True)
        self._before_lost = batches, closed
        self._new_numbers_ns = seam.first.time_ns
        self.values.clear()
        self._settled_number, self._last_number, self._last_id = -1, -1, ""
        self._start_ns = min(self._start_ns, seam.first.time_ns)
        self._release(seam.fresh, seam.fresh, now_ns)

    def _is_new(self, trade: Trade) -> bool:
        """Return whether no earlier dispatch has produced a trade for certain."""
        if self._settled_number >= 0:
            return trade.number > self._settled_number
        return trade.time_ns >= self._start_ns
