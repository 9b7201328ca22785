"""A market without numbers in virtual time: its trades, a socket and a REST with faults, and a feed between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer
from dexorder_ingestor.realtime.agreed.feed import AgreedFeed

BEGIN_NS = 1_700_000_000 * SECOND_NS
STEP_NS = SECOND_NS // 10
POLL_NS = 5 * SECOND_NS
_PONG_STEPS = 20


def trade(name: str, second: float, *, price: float = 1.5) -> Trade:
    """Return a trade at a second after the begin."""
    return Trade(BEGIN_NS + round(second * 1_000) * 1_000_000, 0, name, price, 0.25, "buy", 1, 0)


def tape(per_second: float, seconds: float, random: Random) -> list[Trade]:
    """Return trades at random times, from 50 s before the begin on."""
    found, second = [], -50.0
    while (second := second + random.expovariate(per_second)) < seconds:
        found.append(trade(f"{random.getrandbits(48):012x}", second))
    return sorted(found)


@dataclass
class Market:
    """What socket and REST do, by seconds since the begin; ``play`` runs the feed and checks each claim at once.

    Attributes:
        view: The second up to which REST shows trades, at a second.
        lacks: Whether REST lacks a trade, at a second.
        deaf: Whether the socket sends nothing, pongs included, at a second.
        page: Trades of an answer.
    """

    trades: Sequence[Trade]
    seconds: float = 900.0
    view: Callable[[float], float] = lambda second: second
    lacks: Callable[[Trade, float], bool] = lambda trade, second: False
    deaf: Callable[[float], bool] = lambda second: False
    page: int = 1_000
    by_time: bool = True
    has_socket: bool = True
    released: list[Trade] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def play(self) -> AgreedFeed:
        """Run; return the feed."""
        feed = AgreedFeed(BEGIN_NS, now_ns=0, poll_ns=POLL_NS, by_time=self.by_time, has_socket=self.has_socket)
        coming = [each for each in self.trades if each.time_ns >= BEGIN_NS][::-1]
        for step in range(round(self.seconds * 10)):
            now_ns, second = step * STEP_NS, step / 10
            arrived = []
            while coming and coming[-1].time_ns <= BEGIN_NS + now_ns:
                arrived.append(coming.pop())
            if self.has_socket and not self.deaf(second):
                if arrived:
                    feed.received(arrived, now_ns=now_ns)
                if step % _PONG_STEPS == 0:
                    feed.socket_alive(now_ns)
            if now_ns >= feed.due_ns:
                self._ask(feed, now_ns)
                self._check(feed, second)
        return feed

    def _ask(self, feed: AgreedFeed, now_ns: int) -> None:
        query, second = feed.query(), now_ns / SECOND_NS
        until_ns = BEGIN_NS + int(self.view(second) * SECOND_NS)
        shown = [each for each in self.trades if each.time_ns <= until_ns and not self.lacks(each, second)]
        since_ns = query.since_ns
        found = shown[-self.page :] if since_ns is None else [t for t in shown if t.time_ns >= since_ns][: self.page]
        try:
            answer = TradeAnswer(found, len(found) >= self.page, BEGIN_NS + now_ns)
            released = [*feed.answered(answer, now_ns=now_ns), *feed.late]
            feed.late.clear()
        except BadAnswer:
            feed.failed(now_ns=now_ns)
        else:
            self.released += released
            self.names.update(each.trade_id for each in released)

    def _check(self, feed: AgreedFeed, second: float) -> None:
        settled_ns = feed.settled_ns
        claimed = (t for t in self.trades if BEGIN_NS <= t.time_ns < settled_ns and t.trade_id not in self.names)
        missing = [t for t in claimed if not any(s.start_ns <= t.time_ns < s.end_ns for s in feed.lost)]
        if missing and not self.untrue:
            self.untrue.append(f"at {second} s {len(missing)} trades before {settled_ns} are not there")


def settled_seconds(feed: AgreedFeed) -> float:
    """Return the settled time in seconds since the begin."""
    return (feed.settled_ns - BEGIN_NS) / SECOND_NS
