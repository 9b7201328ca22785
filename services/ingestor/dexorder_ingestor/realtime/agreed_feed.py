"""Trades of one market without consecutive numbers: REST is asked again and again, and two answers have to agree. Pure.

The socket proves nothing here. Its trades are only live copies, and news of REST that it lacks show that it is dead.
An answer with the newest trades is whole if it reaches back before the settled time. If it does not, the trades between
are queried by time, where the exchange can do that, from a trade before the settled time on. If it does not give them
they are lost, which `lost` tells, and the next span starts behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.numbered_feed import MARGIN_NS
from dexorder_ingestor.realtime.socket_health import SocketHealth
from dexorder_ingestor.realtime.trade_sequence import AgreedTrades, Gap, ordinal_ids

_RETRY_NS = SECOND_NS // 2
_MAX_PAGES = 50
"""Queries by time for the trades between the settled time and the newest ones."""
_LOOKBACKS_NS = (2 * SECOND_NS, 60 * SECOND_NS, 1_800 * SECOND_NS)


class AgreedFeed:
    """The state of one market's trades. ``now_ns`` is of the monotonic clock."""

    is_numbered = False

    def __init__(self, begin_ns: int, *, now_ns: int, poll_ns: int, by_time: bool = True) -> None:
        """Begin with the trades from ``begin_ns`` on; ask REST every ``poll_ns``, ``by_time`` if it can be."""
        self.due_ns: int = now_ns
        """Time of the next query."""
        self.skipped: list[Gap] = []
        self.lost: list[TimeRange] = []
        """Spans whose trades the exchange no longer had."""
        self._sequence = AgreedTrades(begin_ns)
        self._poll_ns = poll_ns
        self._by_time = by_time
        self._socket = SocketHealth(now_ns=now_ns)
        self._last: Trade | None = None
        self._newest: list[Trade] = []
        self._between: dict[str, Trade] = {}
        self._since_ns: int | None = None
        self._until_ns = begin_ns
        self._pages = 0
        self._is_linked = False
        self._was_complete = False

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, as far as two answers can tell."""
        return self._sequence.settled_ns

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._socket.wake_ns(self.due_ns)

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Count a message; its trades are released by REST only."""
        self._socket.heard(now_ns=now_ns)
        return []

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time, if only a pong."""

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the connection is lost."""
        self._socket.restart(now_ns=now_ns)
        self._was_complete = False

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._socket.is_deaf(now_ns=now_ns)

    def ask(self, at_ns: int) -> None:
        """Query no later than at a time."""
        self.due_ns = min(self.due_ns, at_ns)

    def query(self) -> TradeQuery:
        """Return the query that is due."""
        return TradeQuery() if self._since_ns is None else TradeQuery(since_ns=self._since_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add the answer to `query`; return the trades that can be released.

        Raises:
            BadAnswer: It has no trades although some are known.
        """
        trades = ordinal_ids(sorted(answer.trades))
        if self._since_ns is None:
            self._newest = trades
            self._until_ns = answer.clock_ns - MARGIN_NS
            if not trades and self._last is not None:
                raise BadAnswer(f"the answer has no trades, although {self._last} is known", kind="hole")
            if not trades or trades[0].time_ns < self._sequence.settled_ns:
                return self._confirm(trades, now_ns)
            if not self._by_time:
                return self._give_up(now_ns)
            self._between = {}
            self._pages = 0
            self._is_linked = False
            self._since_ns = self._lookback_ns()
            self.due_ns = now_ns
            return []
        return self._add_between(trades, now_ns)

    def failed(self, *, now_ns: int) -> None:
        """Note that the query had no valid answer."""
        self.due_ns = now_ns + 2 * _RETRY_NS

    def _lookback_ns(self) -> int:
        """Return the time before the settled one from which trades are queried now."""
        return max(0, self._sequence.settled_ns - _LOOKBACKS_NS[self._pages])

    def _add_between(self, trades: list[Trade], now_ns: int) -> list[Trade]:
        """Add trades of a query by time, until they reach the newest ones; give up if they never do."""
        settled_ns = self._sequence.settled_ns
        self._is_linked = self._is_linked or any(trade.time_ns < settled_ns for trade in trades)
        self._pages += 1
        self.due_ns = now_ns
        if not self._is_linked:
            if self._pages < len(_LOOKBACKS_NS):
                self._since_ns = self._lookback_ns()
                return []
            return self._give_up(now_ns)
        news = [trade for trade in trades if trade.trade_id not in self._between]
        self._between.update((trade.trade_id, trade) for trade in news)
        if any(trade.trade_id in self._between for trade in self._newest) or not self._newest:
            self._since_ns = None
            union = {**self._between, **{trade.trade_id: trade for trade in self._newest}}
            return self._confirm(sorted(union.values()), now_ns)
        if news and self._pages < _MAX_PAGES:
            self._since_ns = max(trade.time_ns for trade in news)
            return []
        return self._give_up(now_ns)

    def _give_up(self, now_ns: int) -> list[Trade]:
        """Note that trades before the newest ones are lost; return those that are known nevertheless."""
        self._since_ns = None
        kept_ns = self._newest[0].time_ns + 1
        self.lost.append(TimeRange(self._sequence.settled_ns, kept_ns))
        known = {trade.trade_id: trade for trade in self._sequence.give_up(kept_ns)}
        known |= {trade.trade_id: trade for trade in self._newest if trade.time_ns < kept_ns}
        released = sorted(known.values())
        self._last = released[-1]
        return released + self._confirm(self._newest, now_ns)

    def _confirm(self, trades: Sequence[Trade], now_ns: int) -> list[Trade]:
        until_ns = max(self._until_ns, self._sequence.settled_ns)
        released = self._sequence.confirm(trades, until_ns)
        if released:
            self._last = released[-1]
        if released and self._was_complete and now_ns >= self._socket.ends_ns:
            self._socket.suspect(now_ns=now_ns)
        self._was_complete = True
        self.due_ns = now_ns + self._poll_ns
        return released
