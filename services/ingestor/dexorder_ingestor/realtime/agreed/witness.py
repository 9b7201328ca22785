"""The socket as a witness: for how long it has been alive without a break, and which trades it has sent. Pure.

A trade that it has sent exists. Its silence alone is not a proof: a socket loses trades without an error. It is one of
the two sources that have to agree that no trade exists, for the time in which messages of any market, or pongs, came on
it repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.trades import Trade

TAKE_NS = 10 * SECOND_NS
"""Time for which REST shows later trades without one of the socket's before that one is taken from the socket."""
MAX_HEARD = 20_000
_FOREIGN = 10
"""Trades of the socket that REST does not have, before the first that it has: the ids are not the same."""
_FUTURE_NS = 60 * SECOND_NS
"""A trade of the socket that is more than this ahead of the exchange's clock is a mistake."""
_DELAY_KEPT_NS = 300 * SECOND_NS
LONGEST_DELAY_NS = 60 * SECOND_NS
"""A longer delay of REST counts as this one."""


@dataclass(slots=True)
class _Heard:
    trade: Trade
    at_ns: int
    lacked_ns: int = 0
    """Time of the last answer without it."""
    passed_ns: int = 0
    """Time of the first answer without it that has a later trade."""


class LongestDelay:
    """Longest of the delays that were recently seen.

    Attributes:
        ns: Its length; 0 without any.
    """

    def __init__(self, at_most_ns: int) -> None:
        self.ns = 0
        self._at_ns = 0
        self._at_most_ns = at_most_ns

    def learn(self, delay_ns: int, now_ns: int) -> None:
        """Note a delay."""
        if delay_ns >= self.ns or now_ns > self._at_ns + _DELAY_KEPT_NS:
            self.ns, self._at_ns = max(0, min(delay_ns, self._at_most_ns)), now_ns


class HeardTrades:
    """Trades of the socket until they are settled, and the ones that REST has shown."""

    def __init__(self) -> None:
        self._delay = LongestDelay(LONGEST_DELAY_NS)
        self._waiting: dict[str, _Heard] = {}
        """Trades that no answer has shown."""
        self._shown: dict[str, int] = {}
        """Ids and times of trades that an answer has shown."""
        self._newest_ns = 0
        self._matches = self._strangers = 0

    @property
    def delay_ns(self) -> int:
        """Longest known time that REST has recently needed to show a trade of the socket."""
        return self._delay.ns

    @property
    def has_other_ids(self) -> bool:
        """Whether the socket's ids differ from REST's, so that equal trades can't be distinguished."""
        return not self._matches and self._strangers >= _FOREIGN

    def add(self, trades: Iterable[Trade], *, now_ns: int) -> bool:
        """Add a message; return whether there was room for it. Trades without an id count by their time."""
        for trade in trades:
            self._newest_ns = max(self._newest_ns, trade.time_ns)
            if trade.trade_id and trade.trade_id not in self._shown:
                if len(self._waiting) >= MAX_HEARD:
                    return False
                self._waiting.setdefault(trade.trade_id, _Heard(trade, now_ns))
        return True

    def compare(self, shown: Mapping[str, Trade], newest_ns: int, *, clock_ns: int, now_ns: int) -> list[Trade]:
        """Compare with an answer and its newest time; return trades of the socket that REST passes over for long.

        Args:
            clock_ns: A time that the exchange's clock has passed.
        """
        if self._newest_ns > clock_ns + _FUTURE_NS:
            self._newest_ns = 0
        taken = []
        for trade_id, heard in list(self._waiting.items()):
            if trade_id in shown:
                self._matches += 1
                self._shown[trade_id] = shown[trade_id].time_ns
                self._delay.learn(heard.lacked_ns - heard.at_ns, now_ns)
            elif heard.trade.time_ns > clock_ns + _FUTURE_NS:
                pass
            elif not self._is_passed_over(heard, newest_ns, now_ns):
                continue
            elif self._matches:
                taken.append(heard.trade)
                self._shown[trade_id] = heard.trade.time_ns
            else:
                self._strangers += 1
            del self._waiting[trade_id]
        return taken

    @staticmethod
    def _is_passed_over(heard: _Heard, newest_ns: int, now_ns: int) -> bool:
        heard.lacked_ns = now_ns
        if newest_ns <= heard.trade.time_ns:
            return False
        heard.passed_ns = heard.passed_ns or now_ns
        return now_ns >= heard.passed_ns + TAKE_NS

    def lacking_ns(self, settled_ns: int, newest_ns: int) -> int | None:
        """Return the time of the first trade from ``settled_ns`` on that REST has not shown; None without any."""
        by_id = () if self.has_other_ids else (heard.trade.time_ns for heard in self._waiting.values())
        by_time = (self._newest_ns,) if self._newest_ns > newest_ns else ()
        return min((time_ns for time_ns in (*by_id, *by_time) if time_ns >= settled_ns), default=None)

    def has_all(self, trades: Iterable[Trade]) -> bool:
        """Return whether the socket has sent all of them."""
        return all(trade.trade_id in self._shown for trade in trades)

    def has_any(self, trades: Iterable[Trade]) -> bool:
        """Return whether the socket has sent one of them."""
        return any(trade.trade_id in self._shown or trade.trade_id in self._waiting for trade in trades)

    def take(self, start_ns: int, end_ns: int) -> list[Trade]:
        """Return the trades of a span that no answer has shown; from now on they count as shown."""
        found = [each.trade for each in self._waiting.values() if start_ns <= each.trade.time_ns < end_ns]
        for trade in found:
            del self._waiting[trade.trade_id]
            self._shown[trade.trade_id] = trade.time_ns
        return found

    def forget(self, before_ns: int) -> None:
        """Forget the trades before a time that an answer has shown."""
        self._shown = {trade_id: time_ns for trade_id, time_ns in self._shown.items() if time_ns >= before_ns}
