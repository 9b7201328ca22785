"""Trades of one market that numbers them: when REST is asked, what for, and whether the socket still works. Pure.

event                                   reaction
start, reassignment                     REST from the last known trade on; without one, a search for it
a trade from the socket                 released if no number before it is missing
a missing number                        REST from the last released trade on, after a moment, messages may be shuffled
silence, a lost connection              the same; what the answer shows is released
REST knows trades of the silence, and   the socket is closed and opened again
the socket stays silent
two answers without a further trade     everything before the exchange's time at the first one is settled
answers agree that numbers are unused   the numbers are skipped; it takes a minute

An answer has to repeat the last released trade, so an empty or a wrong one proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import PAGE_TRADES, Trade, TradeAnswer, TradeQuery, TradeSeries
from dexorder_ingestor.realtime.socket_health import SocketHealth
from dexorder_ingestor.realtime.trade_sequence import Gap, NumberedTrades
from dexorder_ingestor.realtime.waiting import Wait, WaitReason

MARGIN_NS = SECOND_NS
"""A trade is in REST's answers this long after its time."""
_REORDER_NS = SECOND_NS // 5
_RETRY_NS = SECOND_NS // 2
_LONGEST_RETRY_NS = 30 * SECOND_NS
_MAX_KEPT = 20_000
_FIRST_LOOKBACK_NS, _LOOKBACK_GROWTH, _LOOKBACKS = 2 * SECOND_NS, 32, 6
_ANSWERS = 3


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
    ) -> None:
        """Begin with the trades from ``begin_ns`` on.

        Args:
            last_number: Number of the last trade before it, if it is known.
            skip_answers: Number of answers that have to agree that numbers are unused.
        """
        self.due_ns: int = now_ns
        """Time of the next query."""
        self.skipped: list[Gap] = []
        self.lost: list[TimeRange] = []
        """Always empty: an exchange that numbers its trades is asked until it has them, or says that it has none."""
        self._series = series
        self._begin_ns = begin_ns
        self._anchor: Anchor | None = None
        self._link = last_number
        self._last: Trade | None = None
        self._asked: tuple[int | None, Trade | None] = None, None
        self._sequence = NumberedTrades(None if last_number is None else last_number + 1, begin_ns)
        self._kept: list[Trade] = []
        self._socket = SocketHealth(now_ns=now_ns)
        self._skip_answers = skip_answers
        self._agreed: tuple[Gap, int] | None = None
        self._gap_ns: int | None = None
        self._was_complete = False
        self._covered_ns = 0
        self._is_confirmed = False
        if last_number is None or not series.from_number:
            self._search()

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released."""
        return self._sequence.settled_ns

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Add trades of a message; return those that can be released."""
        self._socket.heard(now_ns=now_ns)
        if self._anchor is None and self._sequence.next_number is None:
            self._search()  # the market had no trade so far; this one need not be its first
            self.ask(now_ns + _REORDER_NS)
        if self._anchor is not None:
            self._kept += trades[: max(0, _MAX_KEPT - len(self._kept))]
            return []
        released = self._add(trades)
        self._set_due(now_ns)
        return released

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time, if only a pong."""

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the connection is lost, and with it perhaps trades."""
        self._socket.restart(now_ns=now_ns)
        self._was_complete = False
        self.ask(now_ns + _RETRY_NS)

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._socket.is_deaf(now_ns=now_ns)

    @property
    def waits(self) -> Wait | None:
        """What stops the settled time, if anything does."""
        gap = self._sequence.gap
        if gap is not None:
            numbers = f"trade {gap.first}" if gap.first == gap.last else f"trades {gap.first} to {gap.last}"
            return Wait(WaitReason.REST_LACKS, f"REST has not shown {numbers}, and later ones are known")
        if self._anchor is not None:
            return Wait(WaitReason.REST_LACKS, f"REST has not shown the last trade before {iso(self._begin_ns)}")
        last = f"after {self._last}" if self._last else f"since {iso(self._begin_ns)}"
        return Wait(WaitReason.ONE_SOURCE, f"no trade has come {last}, and REST does not say that there is none")

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._socket.wake_ns(self.due_ns)

    def ask(self, at_ns: int) -> None:
        """Query no later than at a time."""
        self.due_ns = min(self.due_ns, at_ns)

    def query(self) -> TradeQuery:
        """Return the query that is due."""
        self._asked = self._link, self._last
        if self._anchor is not None:
            return self._anchor.next_query()
        return self._series.query(self._link, self._last.time_ns if self._last else self._begin_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add the answer to `query`; return the trades that can be released.

        Raises:
            BadAnswer: It lacks the last known trade; nothing of it counts.
        """
        if self._anchor is not None:
            return self._add_to_anchor(self._anchor, answer, now_ns)
        self._check_link(answer.trades)
        if self._sequence.next_number is None and answer.trades:
            self._search()
            self.due_ns = now_ns
            return []
        released = self._add(answer.trades)
        gap = self._sequence.gap
        if released and answer.full:
            self.due_ns = now_ns
        elif gap:
            if any(trade.number > gap.last for trade in answer.trades):
                released += self._agree(gap)
            self.due_ns = now_ns + self._retry_ns()
        elif answer.full:  # all of it is known: it has no room for what may follow
            self.due_ns = now_ns + _RETRY_NS
        else:
            self._complete(bool(released), answer.clock_ns, now_ns)
        return released

    def failed(self, *, now_ns: int) -> None:
        """Note that the query had no valid answer; a first trade that no answer confirms is searched again."""
        self.due_ns = now_ns + 2 * _RETRY_NS
        if self._anchor is None and not self._is_confirmed:
            self._search()

    def _search(self) -> None:
        self._anchor = Anchor(self._begin_ns, by_number=bool(self._series.from_number))

    def _add_to_anchor(self, anchor: Anchor, answer: TradeAnswer, now_ns: int) -> list[Trade]:
        self.due_ns = now_ns
        anchor.add(answer.trades)
        if not anchor.is_found:
            return []
        self._anchor = None
        self._last = anchor.trade
        self._link = anchor.trade.number if anchor.trade else None
        self._sequence = NumberedTrades(anchor.first_number, self._begin_ns)
        kept, self._kept = self._kept, []
        return self._add(kept) if anchor.first_number is not None else []

    def _add(self, trades: Sequence[Trade]) -> list[Trade]:
        released = self._sequence.add(trades)
        self._note(released)
        return released

    def _note(self, released: list[Trade]) -> None:
        if released:
            self._last = max(released, key=lambda trade: trade.number)
            self._link = self._last.number
            self._is_confirmed = True
        if self._sequence.gap is None:
            self._gap_ns = None

    def _set_due(self, now_ns: int) -> None:
        if self._sequence.gap is None:
            self.due_ns = self._socket.ends_ns
        elif self._gap_ns is None:
            self._gap_ns = now_ns
            self.due_ns = now_ns + _REORDER_NS

    def _check_link(self, trades: Sequence[Trade]) -> None:
        link, last = self._asked
        if link is None:
            self._check_first(trades)
            return
        found = next((trade for trade in trades if trade.number == link), None)
        if found is None:
            raise BadAnswer(f"the answer lacks trade {link}, which is known", kind="hole")
        if last is None and found.time_ns >= self._begin_ns:
            raise BadAnswer(f"the answer has {found}, which was before {iso(self._begin_ns)}", kind="other_symbol")
        if last and (found.price, found.amount) != (last.price, last.amount):
            raise BadAnswer(f"the answer has other values of {last}", kind="other_symbol")
        self._is_confirmed = True

    def _check_first(self, trades: Sequence[Trade]) -> None:
        """Refuse an answer without the market's first trade, if the search has found one and none is released yet."""
        first = self._sequence.next_number
        if first is not None and self._last is None and all(trade.number != first for trade in trades):
            raise BadAnswer(f"the answer lacks trade {first}, the first one of the market", kind="hole")

    def _retry_ns(self) -> int:
        """Return the time until the next query for missing numbers, which grows with the answers that lack them."""
        if self._sequence.gap is None:
            return 0
        agreed = self._agreed[1] if self._agreed and self._agreed[0] == self._sequence.gap else 0
        return min(_RETRY_NS << agreed, _LONGEST_RETRY_NS)

    def _agree(self, gap: Gap) -> list[Trade]:
        """Count an answer without the first missing number; skip the gap if enough of them agree."""
        seen = self._agreed[1] + 1 if self._agreed and self._agreed[0] == gap else 1
        self._agreed = gap, seen
        if seen < self._skip_answers:
            return []
        self._agreed = None
        self.skipped.append(gap)
        released = self._sequence.skip(gap)
        self._note(released)
        return released

    def _complete(self, news: bool, clock_ns: int, now_ns: int) -> None:
        """Note that REST has no further trade; what an earlier answer had covered too is settled.

        One answer could have been cut short. Had it been, this one would have brought the rest.
        """
        if self._sequence.next_number is not None:
            self._sequence.advance(self._covered_ns - MARGIN_NS)
        self._covered_ns = max(self._covered_ns, clock_ns)
        if news and self._was_complete:
            self._socket.suspect(now_ns=now_ns)
        self._was_complete = True
        self._socket.checked(now_ns=now_ns, news=news)
        self.due_ns = self._socket.ends_ns


class Anchor:
    """Queries for the trade before ``begin_ns``: `next_query`, then `add`, until `is_found`.

    Attributes:
        is_found: The search is over.
        trade: The last known trade before the time; None if the market has none.
        first_number: Number of the first trade at or after the time; None if the market has had no trade so far.
    """

    def __init__(self, begin_ns: int, *, by_number: bool) -> None:
        """Begin the search.

        Args:
            by_number: Queries may name a number; otherwise only times.
        """
        self.is_found = False
        self.trade: Trade | None = None
        self.first_number: int | None = None
        self._begin_ns = begin_ns
        self._by_number = by_number
        self._queries = 0
        self._agreed = 0

    def next_query(self) -> TradeQuery:
        """Return the next query: the newest trades, then those from further and further back on."""
        if self._queries == 0:
            return TradeQuery()
        if self._queries <= _LOOKBACKS:
            back_ns = _FIRST_LOOKBACK_NS * _LOOKBACK_GROWTH ** (self._queries - 1)
            return TradeQuery(since_ns=max(0, self._begin_ns - back_ns))
        if self._by_number and self.first_number is not None:
            return TradeQuery(number=max(0, self.first_number - PAGE_TRADES + 1))
        return TradeQuery(since_ns=0) if not self._by_number else TradeQuery()

    def add(self, trades: Sequence[Trade]) -> None:
        """Add the answer to the last query."""
        self._queries += 1
        before = [trade for trade in trades if trade.time_ns < self._begin_ns]
        if before:
            self.trade = max(before, key=lambda trade: trade.number)
            self.first_number = self.trade.number + 1
            self.is_found = True
            return
        lowest = min((trade.number for trade in trades), default=None)
        if lowest is not None and (self.first_number is None or lowest < self.first_number):
            self.first_number = lowest
            self._agreed = 0
        elif self._queries > _LOOKBACKS + 1:
            self._agreed += 1
            self.is_found = self._agreed >= _ANSWERS
