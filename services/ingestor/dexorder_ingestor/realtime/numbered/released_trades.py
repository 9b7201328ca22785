"""The trades of one market that are released, and what is known about them and around them. Pure.

All trades before the settled time are released, except those of open gaps. That holds only within one sequence of the
exchange's numbers: where they begin again, only times tell to which sequence a trade belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dexorder_common.model.realtime import ProvisionalReason, ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer
from dexorder_ingestor.realtime.numbered.alone_time import AloneTime
from dexorder_ingestor.realtime.numbered.joint import Joint, Joints, doubtful
from dexorder_ingestor.realtime.numbered.known_trades import KnownTrades
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGap, OpenGaps, seam
from dexorder_ingestor.realtime.numbered.trade_search import Anchor, Seam
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap, NumberedTrades


class ReleasedTrades:
    """The released trades of one market.

    Attributes:
        last: The newest one; None if there is none, or only its number is known.
        link: Its number, if it is known.
        recorded: Number of the last trade that an earlier dispatch has recorded, as long as numbers go on from it.
        begin_ns: Time from which on trades are wanted.
        known_until_ns: Latest time of the last recorded trade, as long as only its number is known.
        late: Trades that came after their time was settled, until the caller takes them.
        gap_ns: Time of the monotonic clock since which numbers are missing; None if none are.
        is_confirmed: A trade was released, or an answer has the last recorded one.
    """

    def __init__(
        self, begin_ns: int, last_number: int | None, page: int, provisional: Sequence[ProvisionalSpan]
    ) -> None:
        """Start behind the last recorded trade, if its number is known.

        Args:
            page: Number of trades of an answer.
            provisional: What an earlier dispatch has left open.
        """
        self.begin_ns = begin_ns
        self.last: Trade | None = None
        self.recorded = self.link = last_number
        self.known_until_ns = begin_ns
        self.late: list[Trade] = []
        self.gap_ns: int | None = None
        self.is_confirmed = False
        self.sequence = NumberedTrades(None if last_number is None else last_number + 1, begin_ns)
        self.known = KnownTrades(page)
        self.gaps = OpenGaps(provisional)
        self.joints = Joints(provisional)
        self.alone = AloneTime(provisional)
        self._sequence_ns = 0
        """Time of the first trade since numbers have begun again."""

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, except trades in open gaps."""
        return self.sequence.settled_ns

    @property
    def is_unconfirmed(self) -> bool:
        """Whether only the number of the last recorded trade is known: REST has to show the trade first."""
        return self.link is not None and self.last is None

    @property
    def last_ns(self) -> int:
        """Time of the last one, or a later time if that is not known."""
        return self.last.time_ns if self.last else self.begin_ns

    def provisional(self, *, is_seam_suspected: bool) -> tuple[ProvisionalSpan, ...]:
        """Return spans that one source alone calls complete, by start."""
        joints = self.joints.spans(self.settled_ns)
        if not joints and is_seam_suspected and self.last is not None:
            joints = [doubtful(self.last, self.settled_ns, self.last.time_ns)]
        return tuple(sorted([*self.gaps.spans(), *self.alone.spans(), *joints]))

    def add(self, trades: Sequence[Trade], shown: Sequence[Trade] = ()) -> list[Trade]:
        """Add trades, some of them ``shown`` by an answer of REST; return those that can be released."""
        released = self._add(trades, shown)
        self.joints.released(released, shown)
        return released

    def skip(self, gap: Gap, clock_ns: int, shown: Sequence[Trade]) -> list[Trade]:
        """Go on without missing numbers, which stay open; return the trades that this releases."""
        before_ns = self.last_ns
        released = self.sequence.skip(gap)
        after_ns = min((trade.time_ns for trade in released), default=before_ns)
        span = TimeRange(before_ns, max(before_ns, after_ns) + 1)
        self.gaps.open(OpenGap(gap.first, gap.last, span, ProvisionalReason.MISSING_IDS, clock_ns))
        self._note(released)
        self.joints.released(released, shown)
        return released

    def close_gaps(self, trades: Iterable[Trade]) -> list[Trade]:
        """Return trades of open gaps, unless they are known otherwise."""
        return self.gaps.close(self._unknown(trades))

    def strange(self, trades: Sequence[Trade]) -> list[Trade]:
        """Return trades with numbers behind the last one but later times: their numbers have started again."""
        link = self.link
        if link is None:
            return []
        last_ns = self.last.time_ns if self.last else self.known_until_ns + SECOND_NS
        return [trade for trade in trades if trade.number <= link and self._is_strange(trade, last_ns)]

    def confirm(self, found: Trade, trades: Iterable[Trade]) -> None:
        """Note that an answer has the last recorded trade, and those before it."""
        if self.last is None:
            self.last = found
            self.joints.begin(found)
        self.known.add(trade for trade in trades if trade.number <= found.number)

    def joined(self, answer: TradeAnswer) -> None:
        """Add an answer by time to the joints; trades that were missing are late ones."""
        for found in self.joints.add(answer):
            unknown = self._unknown(found.trades)
            missing = [trade for trade in unknown if not self.gaps.were_closed_by(trade, answer.trades)]
            self.gaps.close(missing)  # some were left out, and REST shows them now
            for last, first in found.restarts:
                for gap in seam(last.number, last.time_ns, first, answer.clock_ns):
                    self.gaps.open(gap)
                self.known.add(trade for trade in missing if trade.time_ns >= first.time_ns)
            self.late += missing

    # --- the start, and places where numbers begin again ------------------------------------------------------------

    def begin(self, anchor: Anchor, answer: TradeAnswer) -> bool:
        """Begin with the trade before the start, which a search has found; return whether the market has trades."""
        first, self.last = anchor.first_number, anchor.trade
        self.link = anchor.trade.number if anchor.trade else None
        self.known.add([anchor.trade] if anchor.trade else [])
        self.joints.begin(anchor.trade)
        if self._begin_again_behind(anchor.trade, answer.trades):
            self.recorded = None
        if self.recorded is not None and first is not None and first > self.recorded + 1:
            first, self.last, self.link = self.recorded + 1, None, self.recorded
            self.known_until_ns = answer.clock_ns  # numbers have restarted before it, perhaps after the start
            self.known.clear()  # an answer with the trade before the start shows nothing of the last recorded one
        elif self.recorded is None and first and anchor.trade is None:  # only REST says that it is first
            span = TimeRange(self.begin_ns, anchor.first_ns + 1)
            self.gaps.open(OpenGap(0, first - 1, span, ProvisionalReason.ONE_SOURCE, answer.clock_ns))
        self.sequence = NumberedTrades(first, self.begin_ns)
        return first is not None

    def begin_again(self, found: Seam, first: Trade, kept: Sequence[Trade], clock_ns: int) -> list[Trade]:
        """Continue after the place where numbers start again, with the trades that the search has found.

        Returns:
            The ``kept`` trades of the socket that are of the new numbers.
        """
        assert self.link is not None
        for gap in seam(self.link, self.last_ns, first, clock_ns):
            self.gaps.open(gap)
        old = [trade for trade in kept if trade.time_ns < first.time_ns]
        self.gaps.close(found.tail)  # first, as the socket has copies of them
        closed, link = self.gaps.close([*self.sequence.waiting, *old]), self.link
        found.tail = sorted([*found.tail, *(trade for trade in closed if trade.number > link)])
        last = max(found.tail, default=self.last)
        self.sequence = NumberedTrades(first.number, self.sequence.settled_ns)
        self._sequence_ns = first.time_ns
        if last is not None:
            self.gaps.released([*self.known.newest(), *found.tail], last.time_ns)
        self.known.clear()
        self.link = self.last = self.recorded = None
        self.joints.end_left()
        before_first = [trade for trade in closed if trade.number <= link]  # REST lacks them
        found.fresh = [*before_first, *self._add(found.fresh, [*found.tail, *found.fresh])]
        shown = self.last or last or first
        self.joints.start(Joint(shown, held=doubtful(shown, shown.time_ns, clock_ns)))
        return [trade for trade in kept if trade.time_ns >= first.time_ns]

    def _begin_again_behind(self, last: Trade | None, trades: Sequence[Trade]) -> bool:
        """Return whether numbers restart between the trade before the start and the last recorded one.

        The feed then continues with the old numbers, and finds the place as if it had not been there before.
        """
        recorded = self.recorded
        if last is None or recorded is None or last.number <= recorded:
            return False
        return any(trade.number <= recorded and trade.time_ns > last.time_ns for trade in trades)

    # --- single trades ----------------------------------------------------------------------------------------------

    def _add(self, trades: Sequence[Trade], shown: Sequence[Trade]) -> list[Trade]:
        if self._sequence_ns and any(trade.time_ns < self._sequence_ns for trade in trades):
            trades = self._without_old(trades)
        released = self.sequence.add(trades)
        self._note(released)
        if self.gaps.closed:
            released = [trade for trade in released if not self.gaps.were_closed_by(trade, shown)]
        if self.recorded is not None:
            return released
        # the search may have missed the last trade before the start: then its successor is found after it
        return [trade for trade in released if trade.time_ns >= self.begin_ns]

    def _without_old(self, trades: Sequence[Trade]) -> list[Trade]:
        """Leave out trades of earlier numbers, which are not the successors of new ones; some may close a gap."""
        old_ns = self._sequence_ns - SECOND_NS
        old = {t for t in trades if t.time_ns < (self._sequence_ns if self.gaps.has(t) else old_ns)}
        self.late += self.close_gaps(sorted(old))
        return [trade for trade in trades if trade not in old]

    def _note(self, released: list[Trade]) -> None:
        if released:
            self.last = max(released, key=lambda trade: trade.number)
            self.link = self.last.number
            self.is_confirmed = True
            self.alone.proven()
            self.known.add(released)
            if released[0].time_ns <= self._sequence_ns + SECOND_NS:
                self.gaps.released(released, self._sequence_ns)
        if self.sequence.gap is None:
            self.gap_ns = None

    def _is_strange(self, trade: Trade, last_ns: int) -> bool:
        known = self.known.get(trade.number)
        is_later = trade.time_ns > last_ns and (known is None or trade.time_ns > known.time_ns + SECOND_NS)
        return is_later and not self.gaps.has(trade)

    def _unknown(self, trades: Iterable[Trade]) -> list[Trade]:
        return [t for t in trades if (k := self.known.get(t.number)) is None or k.time_ns != t.time_ns]
