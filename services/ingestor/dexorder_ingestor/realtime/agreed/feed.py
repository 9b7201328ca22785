"""Trades of one market without consecutive numbers: when REST is asked, and how far its answers reach. Pure.

source                                  proof
a trade of REST or of the socket        it exists; REST's values are taken
a trade of the socket that REST lacks   REST is behind, or lacks it: later time stays unsettled. It is taken from the
                                        socket once REST has shown later ones for 10 s
an answer of REST                       it is complete up to its newest trade, if a second source agrees
a socket alive without a break          that second source, for the time in which it has sent all trades of REST; and
                                        REST's newest trade is the last one, once REST was asked after that time
two different answers alone, or half a  the same, while the socket was not alive: the span is provisional (`doubts.py`)
minute apart
no source                               the time stays unsettled

`witness.py` has the socket's part, `trades.py` the rule for two sources. An answer with the newest trades
is whole if it reaches back before the settled time. If it does not, the trades between are queried by time, where the
exchange can do that, starting with a trade before the settled time. If it does not give them either, the socket's are
used, and without a socket that was alive they are lost: `lost` has them, and the next span starts after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from dexorder_common.model.realtime import ProvisionalSpan
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.realtime.agreed.doubts import Doubts
from dexorder_ingestor.realtime.agreed.trades import AgreedTrades, ordinal_ids
from dexorder_ingestor.realtime.agreed.witness import HeardTrades, LongestDelay
from dexorder_ingestor.realtime.numbered.trade_sequence import Gap
from dexorder_ingestor.realtime.numbered_feed import MARGIN_NS
from dexorder_ingestor.realtime.sources.socket_health import AliveSocket, SocketHealth
from dexorder_ingestor.realtime.trade_batches import NEVER_NS
from dexorder_ingestor.realtime.waiting import Wait, WaitReason

_LIVE_ONLY = Wait(
    WaitReason.LIVE_ONLY, "ccxt can't query the trades of this exchange: they are only shown live, and not stored"
)
ALONE_NS = 600 * SECOND_NS
"""Time after which REST is believed alone: without new trades it may be repeating an old answer."""
_RETRY_NS = SECOND_NS // 2
_MAX_PAGES = 50
"""Queries by time for the trades between the settled time and the newest ones."""
_LOOKBACKS_NS = (2 * SECOND_NS, 60 * SECOND_NS, 1_800 * SECOND_NS)
_CLOCK_SLACK_NS = 3 * SECOND_NS
"""Age of the exchange's time that comes with an answer, and the time until a subscription is in force."""
_LATEST_MESSAGE_NS = 10 * SECOND_NS
"""A trade of the socket that is older was not on its way so long: a new connection begins with trades of before."""


class AgreedFeed:
    """The state of one market's trades. ``now_ns`` is of the monotonic clock."""

    is_numbered = False

    def __init__(
        self,
        begin_ns: int,
        *,
        now_ns: int,
        poll_ns: int,
        by_time: bool = True,
        has_socket: bool = True,
        has_rest: bool = True,
        silence_ns: int = 5 * SECOND_NS,
        provisional: Iterable[ProvisionalSpan] = (),
    ) -> None:
        """Start with the trades from ``begin_ns`` on.

        Args:
            poll_ns: Time between two queries.
            by_time: Trades can be queried by a start time.
            has_socket: There is a socket, though it may fail.
            has_rest: There are answers; without them the feed does not query or settle.
            silence_ns: Longest time between two signs of life of a socket that is alive.
            provisional: Spans that an earlier dispatch has settled by REST alone; their trades are released again.
        """
        self.due_ns: int = now_ns if has_rest else NEVER_NS
        """Time of the next query."""
        self.skipped: list[Gap] = []
        self.lost: list[TimeRange] = []
        """Spans with trades that the exchange no longer had."""
        self.late: list[Trade] = []
        """Trades that came after their time was settled, until the caller takes them."""
        self.corrected: list[Trade] = []
        """Released trades with the values that REST has instead, until the caller takes them."""
        self.alone: list[Trade] = []
        """Trades that only the socket has shown, until the caller takes them."""
        self._sequence = AgreedTrades(begin_ns)
        self._poll_ns = poll_ns
        self._by_time = by_time
        self._has_socket = has_socket
        self._has_rest = has_rest
        self._health = SocketHealth(now_ns=now_ns)
        self._alive = AliveSocket(silence_ns)
        self._heard = HeardTrades()
        self._socket_delay = LongestDelay(_LATEST_MESSAGE_NS)
        self._doubts = Doubts(provisional)
        self._is_known = False
        self._suspected_ns = 0
        self._answered_ns = now_ns
        self._pause_ns = 0
        self._newest: list[Trade] = []
        self._clock_ns = begin_ns
        self._offsets_ns: deque[int] = deque(maxlen=10)
        self._between: dict[str, Trade] = {}
        self._since_ns: int | None = None
        self._pages = 0
        self._is_linked = False
        self._was_complete = False
        self.waits: Wait | None = None if has_rest else _LIVE_ONLY
        """What stops the settled time, as far as the last answer shows."""

    @property
    def settled_ns(self) -> int:
        """All trades before this time are released, as far as two sources can tell."""
        return self._sequence.settled_ns

    @property
    def provisional(self) -> tuple[ProvisionalSpan, ...]:
        """Spans before the settled time that REST alone calls complete, by start."""
        return self._doubts.spans

    @property
    def wake_ns(self) -> int:
        """Time of the next query, or at which `is_deaf` may become true."""
        return self._health.wake_ns(self.due_ns)

    def received(self, trades: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        """Add a message; its trades are released by the next answers."""
        self._health.heard(now_ns=now_ns)
        self._alive.proven(now_ns)
        if not self._heard.add(trades, now_ns=now_ns):
            self._alive.lost(now_ns=now_ns)
        self._note_delay(max((trade.time_ns for trade in trades), default=0), now_ns)
        return []

    def _note_delay(self, newest_ns: int, now_ns: int) -> None:
        """Note how long a message was on its way: trades of that time before a sign of life may still come."""
        delay_ns = self._exchange_ns(now_ns) - newest_ns
        if self._offsets_ns and newest_ns > self.settled_ns and delay_ns <= _LATEST_MESSAGE_NS:
            self._socket_delay.learn(delay_ns, now_ns)

    def socket_alive(self, at_ns: int) -> None:
        """Note that something came on the socket at a time, if only a pong."""
        self._alive.proven(at_ns)

    def disconnected(self, *, now_ns: int) -> None:
        """Note that the connection is lost."""
        self._health.restart(now_ns=now_ns)
        self._alive.lost(now_ns=now_ns)
        self._was_complete = False

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        return self._health.is_deaf(now_ns=now_ns)

    def ask(self, at_ns: int) -> None:
        """Query at a time, but less and less often while answers do not settle time, down to the usual rate."""
        if not self._has_rest:
            return
        self.due_ns = min(self.due_ns, max(at_ns, self._answered_ns + self._pause_ns))

    def query(self) -> TradeQuery:
        """Return the query that is due."""
        return TradeQuery() if self._since_ns is None else TradeQuery(since_ns=self._since_ns)

    def answered(self, answer: TradeAnswer, *, now_ns: int) -> list[Trade]:
        """Add the answer to `query`; return the trades that can be released.

        Raises:
            BadAnswer: It is empty although some trades are known.
        """
        trades = ordinal_ids(sorted(answer.trades))
        self.corrected += self._sequence.corrected(trades, now_ns=now_ns)
        if self._since_ns is not None:
            return self._add_between(trades, now_ns)
        if not trades and self._is_known:
            raise BadAnswer("the answer is without trades, although some are known", kind="hole")
        self._newest, self._clock_ns = trades, answer.clock_ns
        self._offsets_ns.append(answer.clock_ns - now_ns)
        self._is_known = bool(trades)
        if not trades or trades[0].time_ns < self.settled_ns:
            return self._confirm(trades, now_ns)
        if not self._by_time:
            return self._fill_or_give_up(now_ns)
        self._between = {}
        self._pages = 0
        self._is_linked = False
        self._since_ns = self._lookback_ns()
        self.due_ns = now_ns
        return []

    def correct(self, trades: Sequence[Trade]) -> None:
        """Take REST's values of released trades instead of the socket's."""
        self._sequence.correct(trades)
        self.corrected += trades

    def failed(self, *, now_ns: int) -> None:
        """Note that the query got no valid answer."""
        self.due_ns = now_ns + 2 * _RETRY_NS

    def _lookback_ns(self) -> int:
        """Return the time before the settled one from which trades are queried now."""
        return max(0, self.settled_ns - _LOOKBACKS_NS[self._pages])

    def _add_between(self, trades: list[Trade], now_ns: int) -> list[Trade]:
        """Add trades of a query by time, until they reach the newest ones; give up if they never do."""
        settled_ns = self.settled_ns
        self._is_linked = self._is_linked or any(trade.time_ns < settled_ns for trade in trades)
        self._pages += 1
        self.due_ns = now_ns
        if not self._is_linked:
            if self._pages < len(_LOOKBACKS_NS):
                self._since_ns = self._lookback_ns()
                return []
            return self._fill_or_give_up(now_ns)
        news = [trade for trade in trades if trade.trade_id not in self._between]
        self._between.update((trade.trade_id, trade) for trade in news)
        if any(trade.trade_id in self._between for trade in self._newest) or not self._newest:
            self._since_ns = None
            union = {**self._between, **{trade.trade_id: trade for trade in self._newest}}
            return self._confirm(sorted(union.values()), now_ns)
        if news and self._pages < _MAX_PAGES:
            self._since_ns = max(trade.time_ns for trade in news)
            return []
        return self._fill_or_give_up(now_ns)

    def _fill_or_give_up(self, now_ns: int) -> list[Trade]:
        """Take the trades before the newest ones from the socket; note that some are lost if it was not alive."""
        self._since_ns = None
        settled_ns, first_ns = self.settled_ns, self._newest[0].time_ns
        kept_ns = first_ns + 1
        is_linked = self._heard.has_any(self._newest)
        heard = self._heard.take(settled_ns, kept_ns)
        self._sequence.take(heard, before_ns=kept_ns)
        self.alone += heard
        if is_linked and self._is_alive_since(settled_ns):
            return self._confirm(self._newest, now_ns)
        self.lost.append(TimeRange(settled_ns, kept_ns))
        self._sequence.take(trade for trade in self._newest if trade.time_ns < kept_ns)
        return self._sequence.give_up(kept_ns) + self._confirm(self._newest, now_ns)

    # --- two sources ------------------------------------------------------------------------------------------------

    def _confirm(self, trades: Sequence[Trade], now_ns: int) -> list[Trade]:
        """Compare trades that reach back before the settled time with the known ones; return the released trades."""
        before_ns, first_ns = self.settled_ns, trades[0].time_ns if trades else 0
        newest_ns = trades[-1].time_ns if trades else 0
        shown = {trade.trade_id: trade for trade in trades}
        taken = self._heard.compare(shown, newest_ns, clock_ns=self._clock_ns, now_ns=now_ns)
        whole = [trade for trade in trades if trade.time_ns > first_ns]  # the first time may be cut
        self.late += self._sequence.late([*taken, *whole], self._doubts.inherits)
        self._doubts.answered(first_ns, self._clock_ns)
        self._sequence.take(taken)
        self.alone += taken
        lacking_ns = self._heard.lacking_ns(self.settled_ns, newest_ns)
        self.waits = self._why(newest_ns, lacking_ns)
        until_ns, alone_ns = self._reach(newest_ns, lacking_ns)
        recent = [trade for trade in trades if trade.time_ns >= before_ns]
        is_witnessed = self._is_alive_since(before_ns) and self._heard.has_all(
            trade for trade in recent if trade.time_ns < until_ns
        )
        released = self._sequence.confirm(
            recent,
            until_ns,
            newest_ns=newest_ns,
            is_witnessed=is_witnessed,
            alone_ns=alone_ns,
            now_ns=now_ns,
            is_behind=lacking_ns is not None,
        )
        self._sequence.vouch(trade for trade in recent if self._heard.has_all([trade]))
        is_alone = not self._is_alive_since(before_ns) or (self._sequence.is_by_age and not is_witnessed)
        if self.settled_ns > before_ns and is_alone:
            self._doubts.add(TimeRange(before_ns, self.settled_ns), self._clock_ns)
        self._suspect(released if self._heard.has_other_ids else recent, now_ns)
        self._heard.forget(self.settled_ns)
        self._set_due(self.settled_ns > before_ns, now_ns)
        return released

    def _suspect(self, shown: Sequence[Trade], now_ns: int) -> None:
        """Suspect a silent socket if REST has trades that it has not sent, once for each trade."""
        unheard = [t for t in shown if t.time_ns > self._suspected_ns and not self._heard.has_all([t])]
        if unheard and self._was_complete and now_ns >= self._health.ends_ns:
            self._suspected_ns = unheard[-1].time_ns
            self._health.suspect(now_ns=now_ns)
        self._was_complete = True

    def _set_due(self, has_settled: bool, now_ns: int) -> None:
        self._answered_ns = now_ns
        self._pause_ns = 0 if has_settled else min(max(_RETRY_NS, 2 * self._pause_ns), self._poll_ns)
        self.due_ns = now_ns + self._poll_ns

    def _reach(self, newest_ns: int, lacking_ns: int | None) -> tuple[int, int]:
        """Return the time up to which an answer is whole, and up to which it needs no second source."""
        if lacking_ns is not None:
            return min(newest_ns, lacking_ns), 0
        if not self._has_socket:
            alone_ns = self._clock_ns - ALONE_NS
            return max(newest_ns, alone_ns), alone_ns
        is_alive_for_long = self._alive.length_ns >= ALONE_NS
        if not is_alive_for_long and not self._is_alive_since(max(newest_ns, self.settled_ns)):
            return newest_ns, 0
        alive_ns = min(self._clock_ns, self._exchange_ns(self._alive.until_ns))
        until_ns = max(newest_ns, alive_ns - max(MARGIN_NS, self._heard.delay_ns, self._socket_delay.ns))
        return until_ns, until_ns if is_alive_for_long else 0

    def _why(self, newest_ns: int, lacking_ns: int | None) -> Wait:
        """Return why the settled time stops after an answer, should it stop."""
        newest = f"its newest trade is of {iso(newest_ns)}" if newest_ns else "it has no trade"
        if lacking_ns is not None and lacking_ns >= newest_ns:
            text = f"REST is behind or repeats an answer: {newest}, and the socket has sent one of {iso(lacking_ns)}"
            return Wait(WaitReason.REST_BEHIND, text)
        if lacking_ns is not None:
            return Wait(WaitReason.REST_LACKS, f"REST lacks a trade of {iso(lacking_ns)} that the socket has sent")
        text = "the socket was not alive all the time" if self._has_socket else "ccxt has no socket of this exchange"
        settled = f"only REST says what happened since {iso(self.settled_ns)}: {text}"
        return Wait(WaitReason.ONE_SOURCE, f"{settled}, and REST shows no new trade; {newest}")

    def _is_alive_since(self, time_ns: int) -> bool:
        """Return whether the socket has been alive without a break since a time of the exchange."""
        from_ns = self._alive.from_ns
        return from_ns is not None and self._exchange_ns(from_ns) + _CLOCK_SLACK_NS <= time_ns

    def _exchange_ns(self, at_ns: int) -> int:
        """Return a time that the exchange's clock had passed at a time of the monotonic clock, by the best answer."""
        return at_ns + max(self._offsets_ns, default=0)
