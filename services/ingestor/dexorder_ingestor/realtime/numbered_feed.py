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
a trade after that place, and the first provisional until REST shows it after those before it (`joint.py`)
one on each connection

An answer has to repeat the last released trade, so an empty or a wrong one is not a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange, merge, subtract
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.numbered.joint import Joint, Joints, doubtful, unjoined
from dexorder_ingestor.realtime.numbered.known_trades import BACK, KnownTrades
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGap, OpenGaps, seam
from dexorder_ingestor.realtime.numbered.quiet_time import QuietTime
from dexorder_ingestor.realtime.numbered.trade_search import Anchor, Seam
from dexorder_ingestor.realtime.sources.socket_health import SocketHealth
from dexorder_ingestor.realtime.trade_sequence import Gap, NumberedTrades
from dexorder_ingestor.realtime.waiting import Wait, WaitReason

MARGIN_NS = SECOND_NS
"""A trade is in REST's answers this long after its time."""
_REORDER_NS = SECOND_NS // 5
_RETRY_NS = SECOND_NS // 2
_LONGEST_RETRY_NS = 30 * SECOND_NS
_MAX_KEPT = 20_000
_HOLES = 3
"""Answers without the last known trade after which numbers may have restarted."""
_SEAM_NS = 10 * SECOND_NS
"""Shortest time between two searches for that."""
_NEAR = 20_000
"""Numbers that a market may use up in this time."""


def _pause_ns(times: int) -> int:
    """Return the time until the next query after so many in a row that brought nothing new."""
    return min(_RETRY_NS << min(times, 6), _LONGEST_RETRY_NS)


def _split(trades: Iterable[Trade], time_ns: int) -> tuple[list[Trade], list[Trade]]:
    """Return the trades before a time, and the others."""
    before, after = list[Trade](), list[Trade]()
    for trade in trades:
        (before if trade.time_ns < time_ns else after).append(trade)
    return before, after


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
        skip_answers: int = 8,
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
        self.late: list[Trade] = []
        """Trades that came after their time was settled, until the caller takes them."""
        self.corrected: list[Trade] = []
        """Released trades with the values that REST has instead, until the caller takes them."""
        self.alone: list[Trade] = []
        """Trades that only the socket has shown, until the caller takes them."""
        self.seam: Seam | None = None
        """Numbers have restarted: trades behind the released ones, until the caller takes them."""
        self.gaps = OpenGaps(provisional)
        one_source = ProvisionalReason.ONE_SOURCE
        alone = sorted(each for each in provisional if each.reason is one_source and not each.first_id)
        self._alone = (
            alone[0]._replace(span=TimeRange(alone[0].span.start_ns, alone[-1].span.end_ns)) if alone else None
        )
        """Time after the last trade that only REST calls quiet."""
        self._witnessed: list[TimeRange] = []
        """Parts of it that the exchange's own candles confirm."""
        self._series = series
        self._begin_ns = begin_ns
        self._anchor: Anchor | None = None
        self._seam: Seam | None = None
        self._unjoined = unjoined(provisional)
        self._joints = Joints()
        self._sequence_ns = 0
        """Time of the first trade since numbers have begun again."""
        self._side: OpenGap | Joint | None = None
        """What the next query is about, unless there is a more urgent one."""
        self._side_failures = 0
        """Queries for it that have brought nothing, one after the other."""
        self._side_from_ns = now_ns
        """Time before which there is no further one."""
        self._recorded = self._link = last_number
        self._last: Trade | None = None
        self._asked: tuple[int | None, Trade | None] = None, None
        self._asked_seam: Seam | None = None
        self._link_until_ns = begin_ns
        """Latest time of the last recorded trade, as long as only its number is known."""
        self._sequence = NumberedTrades(None if last_number is None else last_number + 1, begin_ns)
        self._known = KnownTrades(series.page)
        self._back = min(BACK, series.page // 2)
        self._kept: list[Trade] = []
        self._socket = SocketHealth(now_ns=now_ns)
        self._quiet = QuietTime(series.silence_ns)
        self._skip_answers = skip_answers
        self._agreed: tuple[Gap, int] | None = None
        self._gap_ns: int | None = None
        self._was_complete = False
        self._is_confirmed = False
        self._heard_number = -1
        self._heard_number_ns = now_ns
        self._holes = 0
        self._next_seam_ns = now_ns
        if last_number is None or search or not series.from_number:
            self._search()

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, except trades in open gaps."""
        return self._sequence.settled_ns

    @property
    def provisional(self) -> tuple[ProvisionalSpan, ...]:
        """Spans that one source alone calls complete, by start."""
        alone = self._alone
        parts = subtract([alone.span], self._witnessed) if alone else []
        found = [*self.gaps.spans(), *(alone._replace(span=part) for part in parts if alone)]
        joints = self._joints.spans(self.settled_ns)
        if self._unjoined is not None:
            found.append(self._unjoined)
        elif not joints and self._seam is not None and self._last is not None:
            found.append(doubtful(self._last, self.settled_ns, self._last.time_ns))
        return tuple(sorted([*found, *joints]))

    def witnessed(self, span: TimeRange) -> None:
        """Note that the exchange's own closed candles confirm the trades of a span."""
        if self._alone and span.overlaps(self._alone.span):
            self._witnessed = merge([*self._witnessed, span])

    def found(self, trades: Sequence[Trade]) -> list[Trade]:
        """Return the trades that an open gap lacks; they are late ones."""
        return self._close_gaps(trades)

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Add trades of a message; return the trades that can be released."""
        self._socket.heard(now_ns=now_ns)
        next_number = self._sequence.next_number or 0
        ahead = [trade for trade in trades if trade.number >= next_number]
        self.alone += ahead
        if self._anchor is None and self._sequence.next_number is None:
            self._search()  # no trade of the market was known; this one need not be its first
            self.ask(now_ns + _REORDER_NS)
        if len(ahead) < len(trades) and self._anchor is None:
            self._suspect(self._strange(trades), now_ns)
        if self._anchor is not None or self._seam is not None or self._is_unconfirmed:
            self._kept += trades[: max(0, _MAX_KEPT - len(self._kept))]
            self._quiet.heard(now_ns=now_ns, is_news=False)
            return []
        released = self._add(trades)
        self._joints.released(released)
        number = max((trade.number for trade in trades), default=-1)
        if number > self._heard_number:
            self._heard_number, self._heard_number_ns = number, now_ns
        is_newest = self._link is not None and number >= self._link and self._sequence.gap is None
        self._quiet.heard(now_ns=now_ns, is_news=is_newest)
        if self._sequence.below and len(self.gaps):
            self.late += self._close_gaps(self._sequence.below)
            self.alone += self.late
        self._set_due(now_ns)
        return released

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time, if only a pong."""
        self._quiet.alive(at_ns)

    @property
    def wants_life_after_ns(self) -> int | None:
        """Time after which a sign of life of the socket would settle data; None if no time waits for one."""
        return None if self._anchor or self._seam or self._sequence.gap else self._quiet.wants_life_after_ns

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the connection is lost, and with it perhaps trades."""
        self._socket.restart(now_ns=now_ns)
        self._quiet.broken(now_ns=now_ns)
        self._was_complete = False
        if self._anchor is not None or self._is_unconfirmed:
            self._kept = []  # the joint to come is about the new connection
        elif self._last is not None:
            self._joints.reconnected(self._last, self._sequence.waiting)
        self.ask(now_ns + _RETRY_NS)

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._socket.is_deaf(now_ns=now_ns)

    @property
    def _is_unconfirmed(self) -> bool:
        """Whether only the number of the last recorded trade is known: REST has to show the trade first."""
        return self._link is not None and self._last is None

    @property
    def waits(self) -> Wait | None:
        """Reason why the settled time stops, if it does."""
        gap = self._sequence.gap
        if self._seam is not None:
            return Wait(WaitReason.IDS_BEGAN_AGAIN, f"ids seem to restart after {self._last or self._link}")
        if gap is not None:
            numbers = f"trade {gap.first}" if gap.first == gap.last else f"trades {gap.first} to {gap.last}"
            return Wait(WaitReason.REST_LACKS, f"REST has not shown {numbers}, and later ones are known")
        if self._anchor is not None:
            return Wait(WaitReason.REST_LACKS, f"REST has not shown the last trade before {iso(self._begin_ns)}")
        if self._is_unconfirmed:
            return Wait(WaitReason.REST_LACKS, f"REST has not shown trade {self._link}, the last recorded one")
        last = f"after {self._last}" if self._last else f"since {iso(self._begin_ns)}"
        return Wait(WaitReason.ONE_SOURCE, f"no trade has come {last}, and REST does not confirm that")

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._socket.wake_ns(self.due_ns)

    def ask(self, at_ns: int) -> None:
        """Query no later than at a time."""
        self.due_ns = min(self.due_ns, at_ns)

    def look_at_gaps(self, exchange_ns: int, *, now_ns: int) -> None:
        """Query now if an open gap is due by the exchange's time, or the joint, unless a more urgent query is."""
        if now_ns < self._side_from_ns or self._anchor or self._seam or self._sequence.gap:
            return
        joint, gap = self._joints.due, self.gaps.due(exchange_ns)
        self._side = gap if joint is None or (gap is not None and self._side_failures % 2) else joint
        if self._side is not None:
            self.ask(now_ns)

    def query(self) -> TradeQuery:
        """Return the query that is due."""
        self._asked, self._asked_seam = (self._link, self._last), self._seam
        self._quiet.asked()
        if self._anchor is not None:
            return self._anchor.next_query()
        if self._seam is not None:
            return self._seam.next_query(self._series)
        if self._side is not None:
            return self._side.query(self._series)
        first = self._known.oldest_to_show(self._link) if self._link is not None else None
        if first is not None:
            return self._series.query(first.number, first.time_ns)
        if self._link is not None and self._link == self._recorded and self._last is None:
            return self._series.query(max(0, self._link - self._back + 1), self._begin_ns)
        return self._series.query(self._link, self._last.time_ns if self._last else self._begin_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add the answer to `query`; return the trades that can be released.

        Raises:
            BadAnswer: It lacks the last known trade; the whole answer is ignored.
        """
        if self._anchor is not None:
            return self._add_to_anchor(self._anchor, answer, now_ns)
        if self._seam is not None and self._seam is not self._asked_seam:  # started since: not about it
            self.due_ns = now_ns
            return []
        if self._seam is not None:
            return self._add_to_seam(self._seam, answer, now_ns)
        if isinstance(self._side, Joint):
            return self._add_to_joint(self._side, answer, now_ns)
        if self._side is not None:
            return self._add_to_gap(self._side, answer, now_ns)
        if self._suspect(self._strange(answer.trades), now_ns):  # new numbers may start just after the last known one
            return []
        has_link = self._check(answer.trades, now_ns)
        if self._sequence.next_number is None and answer.trades:
            self._search()
            self.due_ns = now_ns
            return []
        released = self._add(answer.trades)
        self.late += self._close_gaps(self._sequence.below)
        gap = self._sequence.gap
        if released and answer.full:
            self.due_ns = now_ns
        elif gap:
            if any(trade.number > gap.last for trade in answer.trades):
                released += self._agree(gap, answer.clock_ns)
            self.due_ns = now_ns + self._retry_ns()
        elif answer.full or not has_link:  # later trades may not fit into it, or it lacks some
            self.due_ns = now_ns + _RETRY_NS
        else:
            self._complete(bool(released), answer.clock_ns, now_ns)
        self._joints.released(released, answer.trades)
        return [*released, *self._add_kept(now_ns)] if self._kept else released

    def correct(self, trades: Sequence[Trade]) -> None:
        """Take REST's values of released trades instead of the socket's."""
        self._known.correct(trades)
        self.corrected += trades

    def failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer; a first trade that no answer confirms is searched again."""
        self.due_ns = now_ns + 2 * _RETRY_NS
        if self._side is not None:  # the gap stays due, so without a wait it would be queried again at once
            self._side, self._side_failures = None, self._side_failures + 1
            self._side_from_ns = now_ns + _pause_ns(self._side_failures)
        if self._anchor is None and not self._is_confirmed and self._recorded is None:
            self._search()

    # --- searches ---------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        self._anchor = Anchor(self._begin_ns, by_number=bool(self._series.from_number))

    def _add_to_anchor(self, anchor: Anchor, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        self.due_ns = now_ns
        anchor.add(answer.trades)
        if not anchor.is_found:
            return []
        self._anchor = None
        first, self._last = anchor.first_number, anchor.trade
        self._link = anchor.trade.number if anchor.trade else None
        self._known.add([anchor.trade] if anchor.trade else [])
        self._start_joint(anchor.trade)
        if self._begin_again_behind(anchor.trade, answer.trades):
            self._recorded = None
        if self._recorded is not None and first is not None and first > self._recorded + 1:
            first, self._last, self._link = self._recorded + 1, None, self._recorded
            self._link_until_ns = answer.clock_ns  # numbers have restarted before it, perhaps after the start
            self._known.clear()  # an answer with the trade before the start shows nothing of the last recorded one
        elif self._recorded is None and first and anchor.trade is None:  # only REST says that it is first
            span = TimeRange(self._begin_ns, anchor.first_ns + 1)
            self.gaps.open(OpenGap(0, first - 1, span, ProvisionalReason.ONE_SOURCE, answer.clock_ns))
        self._sequence = NumberedTrades(first, self._begin_ns)
        if self._suspect(self._strange(answer.trades), now_ns):  # else the socket's next trade may seem to follow
            return []
        if first is None:
            self._kept = []
        return [] if self._is_unconfirmed else self._add_kept(now_ns)

    def _start_joint(self, last: Trade | None) -> None:
        """Begin with a joint after the last trade before the start: the socket proves nothing about the time before."""
        left, self._unjoined = self._unjoined, None
        if last is not None and left is not None:
            self._joints.start(Joint(last, held=left))
        elif last is not None and not self._joints.is_open:
            self._joints.start(Joint(last))

    def _add_kept(self, now_ns: int) -> list[Trade]:
        """Add the trades that the socket has sent during a search, unless their numbers seem to start again."""
        if self._suspect(self._strange(self._kept), now_ns):
            return []
        kept, self._kept = self._kept, []
        released = self._add(kept)
        self._joints.released(released)
        return released

    def _begin_again_behind(self, last: Trade | None, trades: Sequence[Trade]) -> bool:
        """Return whether numbers restart between the trade before the start and the last recorded one.

        The feed then continues with the old numbers, and finds the place as if it had not been there before.
        """
        recorded = self._recorded
        if last is None or recorded is None or last.number <= recorded:
            return False
        return any(trade.number <= recorded and trade.time_ns > last.time_ns for trade in trades)

    def _suspect(self, strange: Sequence[Trade], now_ns: int) -> bool:
        """Search for a place where numbers start again if trades seem to be behind it; return whether a search runs."""
        if not strange or self._link is None:
            return False
        self._quiet.broken(now_ns=now_ns)
        is_near, until_ns = any(self._link - t.number < _NEAR for t in strange), max(t.time_ns for t in strange)
        if self._seam is None:
            self._suspect_seam(now_ns, until_ns=until_ns, is_near=is_near)
        else:
            self._seam.reach(until_ns)
        return self._seam is not None

    def _suspect_seam(self, now_ns: int, *, until_ns: int = 0, is_near: bool = False) -> None:
        """Start the search, unless that was done recently.

        New numbers that may soon reach the last known one can't wait: they would be taken for its successors.
        """
        if self._link is not None and (is_near or now_ns >= self._next_seam_ns):
            self._next_seam_ns = now_ns + _SEAM_NS
            self._seam = Seam(self._link, self._last.time_ns if self._last else self._begin_ns, until_ns=until_ns)
            self.ask(now_ns)

    def _add_to_seam(self, found: Seam, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        """Add an answer to the search; at its end the feed continues, after the seam if one was found.

        The first message after it starts the search again, if it has missed a place where numbers have started again.
        """
        found.add(answer.trades, full=answer.full, clock_ns=answer.clock_ns)
        self.due_ns = now_ns + (0 if found.is_over else _pause_ns(found.behind))
        if not found.is_over:
            return []
        self._seam = None
        kept, self._kept = self._kept, []
        strange = self._strange(kept)
        if found.first is None and any(trade.number == self._link for trade in strange):
            found.first = first = strange[0]  # REST lacks the trades by which the socket has come to that number anew
            found.tail, new = _split(found.tail, first.time_ns)
            kept = sorted({*kept, *new})
        if found.first is None or self._link is None:
            unclear = set(strange)
            kept = [trade for trade in kept if trade not in unclear]
            if self._is_unconfirmed:  # REST may have removed that trade
                self._kept = kept
                self._search()
                return []
            released = self._add(kept)
            self._joints.released(released)
            self.late += self._close_gaps(self._sequence.below)
            return released
        self._begin_again(found, found.first, kept, answer.clock_ns, now_ns)
        return []

    def _begin_again(self, found: Seam, first: Trade, kept: Sequence[Trade], clock_ns: int, now_ns: int) -> None:
        """Continue after the place where numbers start again; search at once if they do so a second time."""
        assert self._link is not None
        for gap in seam(self._link, self._last.time_ns if self._last else self._begin_ns, first, clock_ns):
            self.gaps.open(gap)
        old, new = _split(kept, first.time_ns)
        self.gaps.close(found.tail)  # first, as the socket has copies of them
        closed, link = self.gaps.close([*self._sequence.waiting, *old]), self._link
        found.tail = sorted([*found.tail, *(trade for trade in closed if trade.number > link)])
        last = max(found.tail, default=self._last)
        self._sequence = NumberedTrades(first.number, self._sequence.settled_ns)
        self._sequence_ns = first.time_ns
        if last is not None:
            self.gaps.released([*self._known.newest(), *found.tail], last.time_ns)
        self._known.clear()
        self._link = self._last = self._recorded = None
        self._heard_number, self._holes, self._next_seam_ns = -1, 0, now_ns
        self._unjoined = None
        before_first = [trade for trade in closed if trade.number <= link]  # REST lacks them
        found.fresh = [*before_first, *self._add(found.fresh)]
        shown = self._last or last or first
        self._joints.start(Joint(shown, held=doubtful(shown, shown.time_ns, clock_ns)))
        self.seam = found
        if found.is_cut:
            self._suspect_seam(now_ns)
        else:
            self._suspect(self._strange(new), now_ns)
        if self._seam is not None:
            self._kept = new
        else:
            added = self._add(new)
            self._joints.released(added)
            found.fresh += added

    def _add_to_gap(self, asked: OpenGap, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        self._side, self._side_failures = None, 0
        self.late += self._close_gaps(answer.trades)
        self.gaps.answered(asked, answer)
        self._set_due(now_ns)
        self.ask(now_ns + _LONGEST_RETRY_NS)
        return []

    def _add_to_joint(self, asked: Joint, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        self._side, self._side_failures = None, self._side_failures + 1
        self._side_from_ns = now_ns + _pause_ns(self._side_failures)
        self._set_due(now_ns)
        for found in self._joints.add(answer):
            missing = [trade for trade in self._unknown(found.trades) if not self.gaps.were_closed_by(trade)]
            for last, first in found.restarts:
                for gap in seam(last.number, last.time_ns, first, answer.clock_ns):
                    self.gaps.open(gap)
                self._known.add(trade for trade in missing if trade.time_ns >= first.time_ns)
            self.late += missing
        if asked.is_over:
            self._side_failures = 0
        return []

    # --- released trades --------------------------------------------------------------------------------------------

    def _add(self, trades: Sequence[Trade]) -> list[Trade]:
        if any(trade.time_ns < self._sequence_ns for trade in trades):
            trades = self._without_old(trades)
        released = self._sequence.add(trades)
        self._note(released)
        if self.gaps.closed:
            released = [trade for trade in released if not self.gaps.were_closed_by(trade)]
        if self._recorded is not None:
            return released
        # the search may have missed the last trade before the start: then its successor is found after it
        return [trade for trade in released if trade.time_ns >= self._begin_ns]

    def _without_old(self, trades: Sequence[Trade]) -> list[Trade]:
        """Leave out trades of earlier numbers, which are not the successors of new ones; some may close a gap."""
        old_ns = self._sequence_ns - SECOND_NS
        old = {t for t in trades if t.time_ns < (self._sequence_ns if self.gaps.has(t) else old_ns)}
        self.late += self._close_gaps(sorted(old))
        return [trade for trade in trades if trade not in old]

    def _note(self, released: list[Trade]) -> None:
        if released:
            self._last = max(released, key=lambda trade: trade.number)
            self._link = self._last.number
            self._is_confirmed = True
            self._alone, self._witnessed = None, []
            self._known.add(released)
            if released[0].time_ns <= self._sequence_ns + SECOND_NS:
                self.gaps.released(released, self._sequence_ns)
        if self._sequence.gap is None:
            self._gap_ns = None

    def _strange(self, trades: Sequence[Trade]) -> list[Trade]:
        """Return trades with numbers behind the feed but later times: their numbers have started again."""
        link = self._link
        if link is None:
            return []
        last_ns = self._last.time_ns if self._last else self._link_until_ns + SECOND_NS
        return [trade for trade in trades if trade.number <= link and self._is_strange(trade, last_ns)]

    def _is_strange(self, trade: Trade, last_ns: int) -> bool:
        known = self._known.get(trade.number)
        is_later = trade.time_ns > last_ns and (known is None or trade.time_ns > known.time_ns + SECOND_NS)
        return is_later and not self.gaps.has(trade)

    def _close_gaps(self, trades: Sequence[Trade]) -> list[Trade]:
        """Return trades of open gaps, unless they are known otherwise."""
        return self.gaps.close(self._unknown(trades))

    def _unknown(self, trades: Sequence[Trade]) -> list[Trade]:
        return [t for t in trades if (k := self._known.get(t.number)) is None or k.time_ns != t.time_ns]

    def _set_due(self, now_ns: int) -> None:
        due_ns = self.due_ns
        if self._sequence.gap is None:
            self.due_ns = self._socket.ends_ns if self._seam is None else now_ns
            if self._known.has_doubts:
                self.ask(due_ns)
        elif self._gap_ns is None:
            self._gap_ns = now_ns
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
        if found is None or (last is None and found.time_ns > self._link_until_ns):
            self._holes += 1
            if self._holes >= _HOLES:
                self._suspect_seam(now_ns)
            if found is not None:
                raise BadAnswer(f"the answer has {found}, which was before {iso(self._begin_ns)}", kind="other_symbol")
            if self._seam or not (self._known.has_any(trades) and any(trade.number > link for trade in trades)):
                raise BadAnswer(f"the answer lacks trade {link}, which is known", kind="hole")
        else:
            self._holes = 0
        self.corrected += self._known.judge(trades, now_ns=now_ns)
        if last is None and found is not None:
            if self._last is None:
                self._last = found
                self._start_joint(found)
            self._known.add(trade for trade in trades if trade.number <= link)
        self._is_confirmed = True
        return found is not None

    def _check_first(self, trades: Sequence[Trade]) -> None:
        """Refuse an answer without the market's first trade, if the search has found it and it is not released yet."""
        first = self._sequence.next_number
        if first is not None and self._last is None and all(trade.number != first for trade in trades):
            raise BadAnswer(f"the answer lacks trade {first}, the first one of the market", kind="hole")

    def _retry_ns(self) -> int:
        """Return the time until the next query for missing numbers, which grows with the answers that lack them."""
        if self._sequence.gap is None:
            return 0
        agreed = self._agreed[1] if self._agreed and self._agreed[0] == self._sequence.gap else 0
        return _pause_ns(agreed)

    def _agree(self, gap: Gap, clock_ns: int) -> list[Trade]:
        """Count an answer without the first missing number; continue without the gap if enough of them agree."""
        seen = self._agreed[1] + 1 if self._agreed and self._agreed[0] == gap else 1
        self._agreed = gap, seen
        if seen < self._skip_answers:
            return []
        self._agreed = None
        self.skipped.append(gap)
        before_ns = self._last.time_ns if self._last else self._begin_ns
        released = self._sequence.skip(gap)
        after_ns = min((trade.time_ns for trade in released), default=before_ns)
        span = TimeRange(before_ns, max(before_ns, after_ns) + 1)
        self.gaps.open(OpenGap(gap.first, gap.last, span, ProvisionalReason.MISSING_IDS, clock_ns))
        self._note(released)
        return released

    def _complete(self, news: bool, clock_ns: int, now_ns: int) -> None:
        """Note that REST has shown all of its trades."""
        if news and self._link is not None and self._link <= self._heard_number:
            self._quiet.whole(self._heard_number_ns)
        elif news:
            self._quiet.broken(now_ns=now_ns)
        quiet = self._quiet.answered(clock_ns, now_ns=now_ns)
        if quiet is not None and self._sequence.next_number is not None:
            start_ns, end_ns = self._sequence.settled_ns, quiet.until_ns - MARGIN_NS
            self._sequence.advance(end_ns)
            if quiet.is_provisional and end_ns > start_ns:
                since_ns = self._alone.since_ns if self._alone else clock_ns
                start_ns = self._alone.span.start_ns if self._alone else start_ns
                span = TimeRange(start_ns, end_ns)
                self._alone = ProvisionalSpan(span, ProvisionalReason.ONE_SOURCE, since_ns=since_ns)
        if news and self._was_complete:
            self._socket.suspect(now_ns=now_ns)
        self._was_complete = True
        self._socket.checked(now_ns=now_ns, news=news)
        self.due_ns = self._socket.ends_ns
        if self._known.has_doubts:
            self.ask(now_ns + _RETRY_NS)
