"""Trades of one market that numbers them: the queries to REST, and whether the socket still works. Pure.

event                                   reaction
start, reassignment                     REST from the last known trade on; without one, a search for it
a trade from the socket                 released if no number before it is missing
a missing number                        REST from the last released trade on, after a moment, messages may be shuffled
silence, a lost connection              the same; the trades of the answer are released
REST knows trades of the silence, and   the socket is closed and opened again
the socket stays silent
REST and socket agree on silence        the time is settled (`quiet_time.py`)
answers agree that numbers are missing  the feed continues without them; they stay open (`open_gaps.py`)
REST has other values of a trade        corrected, once some answers agree (`known_trades.py`)
numbers fall while times rise           a search for the place where they start again (`trade_search.py`)
a trade after that place                provisional until REST shows it after those before it (`joint.py`)
the first trade on a connection         the same

An answer has to repeat the last released trade, so an empty or a wrong one is not a proof.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.realtime import ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.numbered.gap_agreement import GapAgreement
from dexorder_ingestor.realtime.numbered.known_trades import BACK
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGap, OpenGaps
from dexorder_ingestor.realtime.numbered.quiet_time import QuietTime
from dexorder_ingestor.realtime.numbered.released_trades import ReleasedTrades
from dexorder_ingestor.realtime.numbered.searches import Searches
from dexorder_ingestor.realtime.numbered.side_queries import LONGEST_RETRY_NS, RETRY_NS, SideQueries, pause_ns
from dexorder_ingestor.realtime.numbered.trade_search import Anchor, Seam
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap
from dexorder_ingestor.realtime.sources.socket_health import SocketHealth
from dexorder_ingestor.realtime.waiting import Wait, WaitReason

MARGIN_NS = SECOND_NS
"""A trade is in REST's answers this long after its time."""
_REORDER_NS = SECOND_NS // 5
_HOLES = 3
"""Answers without the last known trade after which numbers may have restarted."""


class NumberedFeed:
    """The state of one market's trades. ``now_ns`` is of the monotonic clock."""

    is_numbered = True

    def __init__(
        self,
        series: TradeSeries,
        begin_ns: int,
        last_number: int | None,
        *,
        now_ns: int,
        skip_answers: int = 6,
        search: bool = False,
        provisional: Sequence[ProvisionalSpan] = (),
    ) -> None:
        """Start with the trades from ``begin_ns`` on.

        Args:
            last_number: Number of the last trade that is recorded, if it is known; no later one is left out.
            skip_answers: Number of answers that have to agree that numbers are missing.
            search: Trades are wanted from ``begin_ns`` on, although the last recorded one may be later.
            provisional: Numbers that an earlier dispatch has left open.
        """
        self.due_ns: int = now_ns
        """Time of the next query."""
        self.skipped: list[Gap] = []
        self.lost: list[TimeRange] = []
        """Always empty: an exchange that numbers its trades is asked until it shows them, or denies them."""
        self.corrected: list[Trade] = []
        """Released trades with the values that REST has instead, until the caller takes them."""
        self.alone: list[Trade] = []
        """Trades that only the socket has shown, until the caller takes them."""
        self.seam: Seam | None = None
        """Numbers have restarted: trades behind the released ones, until the caller takes them."""
        self._series = series
        self._trades = ReleasedTrades(begin_ns, last_number, series.page, provisional)
        self._searches = Searches(self._trades, by_number=bool(series.from_number), now_ns=now_ns)
        self._side = SideQueries(now_ns=now_ns)
        self._asked: tuple[int | None, Trade | None] = None, None
        self._asked_seam: Seam | None = None
        self._back = min(BACK, series.page // 2)
        self._socket = SocketHealth(now_ns=now_ns)
        self._quiet = QuietTime(series.silence_ns)
        self._agreement = GapAgreement(skip_answers)
        self._was_complete = False
        self._heard_number = -1
        self._heard_number_ns = now_ns
        self._holes = 0
        if last_number is None or search or not series.from_number:
            self._searches.begin()

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, except trades in open gaps."""
        return self._trades.settled_ns

    @property
    def late(self) -> list[Trade]:
        """Trades that came after their time was settled, until the caller takes them."""
        return self._trades.late

    @late.setter
    def late(self, late: list[Trade]) -> None:
        self._trades.late = late

    @property
    def gaps(self) -> OpenGaps:
        """Numbers that the exchange has left out."""
        return self._trades.gaps

    @property
    def provisional(self) -> tuple[ProvisionalSpan, ...]:
        """Spans that one source alone calls complete, by start."""
        return self._trades.provisional(is_seam_suspected=self._searches.seam is not None)

    def witnessed(self, span: TimeRange) -> None:
        """Note that the exchange's own closed candles confirm the trades of a span."""
        self._trades.alone.witnessed(span)

    def found(self, trades: Sequence[Trade]) -> list[Trade]:
        """Return the trades that an open gap lacks; they are late ones."""
        return self._trades.close_gaps(trades)

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Add trades of a message; return the trades that can be released."""
        self._socket.heard(now_ns=now_ns)
        next_number = self._trades.sequence.next_number or 0
        ahead = [trade for trade in trades if trade.number >= next_number]
        self.alone += ahead
        if self._searches.anchor is None and self._trades.sequence.next_number is None:
            self._searches.begin()  # no trade of the market was known; this one need not be its first
            self.ask(now_ns + _REORDER_NS)
        if len(ahead) < len(trades) and self._searches.anchor is None:
            self._suspect(self._trades.strange(trades), now_ns)
        if self._searches.is_keeping:
            self._searches.keep(trades)
            self._quiet.heard(now_ns=now_ns, is_news=False)
            return []
        released = self._trades.add(trades)
        number = max((trade.number for trade in trades), default=-1)
        if number > self._heard_number:
            self._heard_number, self._heard_number_ns = number, now_ns
        is_newest = self._trades.link is not None and number >= self._trades.link and self._trades.sequence.gap is None
        self._quiet.heard(now_ns=now_ns, is_news=is_newest)
        if self._trades.sequence.below and len(self.gaps):
            self.late += self._trades.close_gaps(self._trades.sequence.below)
            self.alone += self.late
        self._set_due(now_ns)
        return released

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time, if only a pong."""
        self._quiet.alive(at_ns)

    @property
    def wants_life_after_ns(self) -> int | None:
        """Time after which a sign of life of the socket would settle data; None if no time waits for one."""
        return None if self._searches.is_running or self._trades.sequence.gap else self._quiet.wants_life_after_ns

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the connection is lost, and with it perhaps trades."""
        self._socket.restart(now_ns=now_ns)
        self._quiet.broken(now_ns=now_ns)
        self._was_complete = False
        self._searches.disconnected()
        self.ask(now_ns + RETRY_NS)

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._socket.is_deaf(now_ns=now_ns)

    @property
    def waits(self) -> Wait | None:
        """Reason why the settled time stops, if it does."""
        gap = self._trades.sequence.gap
        if self._searches.seam is not None:
            last = self._trades.last or self._trades.link
            return Wait(WaitReason.IDS_BEGAN_AGAIN, f"ids seem to restart after {last}")
        if gap is not None:
            numbers = f"trade {gap.first}" if gap.first == gap.last else f"trades {gap.first} to {gap.last}"
            return Wait(WaitReason.REST_LACKS, f"REST has not shown {numbers}, and later ones are known")
        if self._searches.anchor is not None:
            return Wait(WaitReason.REST_LACKS, f"REST has not shown the last trade before {iso(self._trades.begin_ns)}")
        if self._trades.is_unconfirmed:
            return Wait(WaitReason.REST_LACKS, f"REST has not shown trade {self._trades.link}, the last recorded one")
        since = f"after {self._trades.last}" if self._trades.last else f"since {iso(self._trades.begin_ns)}"
        return Wait(WaitReason.ONE_SOURCE, f"no trade has come {since}, and REST does not confirm that")

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._socket.wake_ns(self.due_ns)

    def ask(self, at_ns: int) -> None:
        """Query no later than at a time."""
        self.due_ns = min(self.due_ns, at_ns)

    def look_at_gaps(self, exchange_ns: int, *, now_ns: int) -> None:
        """Query now if an open gap is due by the exchange's time, or a joint, unless a more urgent query is."""
        trades, is_urgent = self._trades, self._searches.is_running or self._trades.sequence.gap
        if not is_urgent and self._side.choose(trades.joints, trades.gaps, exchange_ns, now_ns=now_ns):
            self.ask(now_ns)

    def query(self) -> TradeQuery:
        """Return the query that is due."""
        trades, series = self._trades, self._series
        self._asked, self._asked_seam = (trades.link, trades.last), self._searches.seam
        self._quiet.asked()
        if self._searches.anchor is not None:
            return self._searches.anchor.next_query()
        if self._searches.seam is not None:
            return self._searches.seam.next_query(series)
        if (side := self._side.query(series)) is not None:
            return side
        first = trades.known.oldest_to_show(trades.link) if trades.link is not None else None
        if first is not None:
            return series.query(first.number, first.time_ns)
        if trades.link is not None and trades.link == trades.recorded and trades.last is None:
            return series.query(max(0, trades.link - self._back + 1), trades.begin_ns)
        return series.query(trades.link, trades.last_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add the answer to `query`; return the trades that can be released.

        Raises:
            BadAnswer: It lacks the last known trade; the whole answer is ignored.
        """
        anchor, seam = self._searches.anchor, self._searches.seam
        if anchor is not None:
            return self._add_to_anchor(anchor, answer, now_ns)
        if seam is not None and seam is not self._asked_seam:  # started since: not about it
            self.due_ns = now_ns
            return []
        if seam is not None:
            return self._add_to_seam(seam, answer, now_ns)
        if self._side.is_chosen:
            self._add_to_side(answer, now_ns)
            return []
        strange = self._trades.strange(answer.trades)  # new numbers may start just after the last known one
        if self._suspect(strange, now_ns):
            return []
        has_link = self._check(answer.trades, now_ns)
        if self._trades.sequence.next_number is None and answer.trades:
            self._searches.begin()
            self.due_ns = now_ns
            return []
        released = self._trades.add(answer.trades, answer.trades)
        self.late += self._trades.close_gaps(self._trades.sequence.below)
        gap = self._trades.sequence.gap
        if released and answer.full:
            self.due_ns = now_ns
        elif gap:
            if any(trade.number > gap.last for trade in answer.trades):
                released += self._agree(gap, answer)
            self.due_ns = now_ns + self._agreement.retry_ns(self._trades.sequence.gap)
        elif answer.full or not has_link:  # later trades may not fit into it, or it lacks some
            self.due_ns = now_ns + RETRY_NS
        else:
            self._complete(bool(released), answer.clock_ns, now_ns)
        return [*released, *self._add_kept(now_ns)] if self._searches.kept else released

    def correct(self, trades: Sequence[Trade]) -> None:
        """Take REST's values of released trades instead of the socket's."""
        self._trades.known.correct(trades)
        self.corrected += trades

    def failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer; a first trade that no answer confirms is searched again."""
        self.due_ns = now_ns + 2 * RETRY_NS
        if self._side.is_chosen:
            self._side.failed(now_ns=now_ns)
        if self._searches.anchor is None and not self._trades.is_confirmed and self._trades.recorded is None:
            self._searches.begin()

    # --- searches ---------------------------------------------------------------------------------------------------

    def _add_to_anchor(self, anchor: Anchor, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        self.due_ns = now_ns
        anchor.add(answer.trades)
        if not anchor.is_found:
            return []
        self._searches.anchor = None
        has_trades = self._trades.begin(anchor, answer)
        if self._suspect(self._trades.strange(answer.trades), now_ns):  # else the socket's next one may seem to follow
            return []
        if not has_trades:
            self._searches.take_kept()
        return [] if self._trades.is_unconfirmed else self._add_kept(now_ns)

    def _add_kept(self, now_ns: int) -> list[Trade]:
        """Add the trades that the socket has sent during a search, unless their numbers seem to start again."""
        if self._suspect(self._trades.strange(self._searches.kept), now_ns):
            return []
        return self._trades.add(self._searches.take_kept())

    def _suspect(self, strange: Sequence[Trade], now_ns: int) -> bool:
        """Search for a place where numbers start again if trades seem to be behind it; return whether a search runs."""
        if not strange or self._trades.link is None:
            return False
        self._quiet.broken(now_ns=now_ns)
        if self._searches.suspect(strange, now_ns):
            self.ask(now_ns)
        return self._searches.seam is not None

    def _add_to_seam(self, found: Seam, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        """Add an answer to the search; at its end the feed continues, after the seam if one was found.

        The first message after it starts the search again, if it has missed a place where numbers have started again.
        """
        found.add(answer.trades, full=answer.full, clock_ns=answer.clock_ns)
        self.due_ns = now_ns + (0 if found.is_over else pause_ns(found.behind))
        if not found.is_over:
            return []
        kept, strange = self._searches.end_seam(found)
        if found.first is None or self._trades.link is None:
            unclear = set(strange)
            kept = [trade for trade in kept if trade not in unclear]
            if self._trades.is_unconfirmed:  # REST may have removed that trade
                self._searches.kept = kept
                self._searches.begin()
                return []
            released = self._trades.add(kept)
            self.late += self._trades.close_gaps(self._trades.sequence.below)
            return released
        self._begin_again(found, found.first, kept, answer.clock_ns, now_ns)
        return []

    def _begin_again(self, found: Seam, first: Trade, kept: Sequence[Trade], clock_ns: int, now_ns: int) -> None:
        """Continue after the place where numbers start again; search at once if they do so a second time."""
        new = self._trades.begin_again(found, first, kept, clock_ns)
        self._heard_number, self._holes = -1, 0
        self._searches.began_again(now_ns)
        self.seam = found
        if found.is_cut:
            self._begin_seam(now_ns)
        else:
            self._suspect(self._trades.strange(new), now_ns)
        if self._searches.seam is not None:
            self._searches.kept = new
        else:
            found.fresh += self._trades.add(new)

    def _begin_seam(self, now_ns: int) -> None:
        if self._searches.begin_seam(now_ns):
            self.ask(now_ns)

    def _add_to_side(self, answer: TradeAnswer, now_ns: int) -> None:
        asked = self._side.take()
        if isinstance(asked, OpenGap):
            self.late += self._trades.close_gaps(answer.trades)
            self.gaps.answered(asked, answer)
            self._side.succeeded()
            self._set_due(now_ns)
            self.ask(now_ns + LONGEST_RETRY_NS)
        elif asked is not None:
            self._trades.joined(answer)
            self._side.failed(now_ns=now_ns)
            if asked.is_over:
                self._side.succeeded()
            self._set_due(now_ns)

    def _set_due(self, now_ns: int) -> None:
        due_ns = self.due_ns
        if self._trades.sequence.gap is None:
            self.due_ns = self._socket.ends_ns if self._searches.seam is None else now_ns
            if self._trades.known.has_doubts:
                self.ask(due_ns)
        elif self._trades.gap_ns is None:
            self._trades.gap_ns = now_ns
            self.due_ns = now_ns + _REORDER_NS

    # --- answers ----------------------------------------------------------------------------------------------------

    def _check(self, trades: Sequence[Trade], now_ns: int) -> bool:
        """Return whether the answer has the last released trade. Without it, it may still bring missing trades.

        Raises:
            BadAnswer: The whole answer is ignored.
        """
        link, last = self._asked
        if link is None:
            self._check_first(trades)
            return True
        found = next((trade for trade in trades if trade.number == link), None)
        if found is None or (last is None and found.time_ns > self._trades.known_until_ns):
            self._holes += 1
            if self._holes >= _HOLES:
                self._begin_seam(now_ns)
            if found is not None:
                begin = iso(self._trades.begin_ns)
                raise BadAnswer(f"the answer has {found}, which was before {begin}", kind="other_symbol")
            brings_missing = self._trades.known.has_any(trades) and any(trade.number > link for trade in trades)
            if self._searches.seam or not brings_missing:
                raise BadAnswer(f"the answer lacks trade {link}, which is known", kind="hole")
        else:
            self._holes = 0
        self.corrected += self._trades.known.judge(trades, now_ns=now_ns)
        if last is None and found is not None:
            self._trades.confirm(found, trades)
        self._trades.is_confirmed = True
        return found is not None

    def _check_first(self, trades: Sequence[Trade]) -> None:
        """Refuse an answer without the market's first trade, if the search has found it and it is not released yet."""
        first = self._trades.sequence.next_number
        if first is not None and self._trades.last is None and all(trade.number != first for trade in trades):
            raise BadAnswer(f"the answer lacks trade {first}, the first one of the market", kind="hole")

    def _agree(self, gap: Gap, answer: TradeAnswer) -> list[Trade]:
        """Count an answer without the first missing number; continue without the gap if enough of them agree."""
        if not self._agreement.is_reached(gap):
            return []
        self.skipped.append(gap)
        return self._trades.skip(gap, answer.clock_ns, answer.trades)

    def _complete(self, news: bool, clock_ns: int, now_ns: int) -> None:
        """Note that REST has shown all of its trades."""
        if news and self._trades.link is not None and self._trades.link <= self._heard_number:
            self._quiet.whole(self._heard_number_ns)
        elif news:
            self._quiet.broken(now_ns=now_ns)
        quiet = self._quiet.answered(clock_ns, now_ns=now_ns)
        if quiet is not None and self._trades.sequence.next_number is not None:
            start_ns, end_ns = self._trades.sequence.settled_ns, quiet.until_ns - MARGIN_NS
            self._trades.sequence.advance(end_ns)
            if quiet.is_provisional and end_ns > start_ns:
                self._trades.alone.add(start_ns, end_ns, clock_ns=clock_ns)
        if news and self._was_complete:
            self._socket.suspect(now_ns=now_ns)
        self._was_complete = True
        self._socket.checked(now_ns=now_ns, news=news)
        self.due_ns = self._socket.ends_ns
        if self._trades.known.has_doubts:
            self.ask(now_ns + RETRY_NS)
