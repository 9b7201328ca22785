"""Time without trades: when two sources confirm it. Pure.

A later trade proves by its number that the trades before it are complete. Without one, REST and the socket must agree:

- REST was asked, and the exchange's time noted; the socket has then given a sign of life, so it would have sent any
  earlier trade; REST, asked after that, is still without a new trade.
- The socket counts only for the time in which it was alive without a break: it does not send missed trades later.
  A message, at least a pong, has to come on it every few seconds (`AliveSocket`), so a socket that was silent for a
  while no longer counts, though its connection is open.
- It counts only while its silence is not longer than some that the market has had: a subscription can end although its
  connection lives.

Where the socket does not count, REST must be without a new trade `REST_ALONE_NS` later, while the socket gives signs of
life. The time is provisional then, until a later trade comes.
Times are of the monotonic clock, ``clock_ns`` is the exchange's time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.realtime.sources.socket_health import AliveSocket

REST_ALONE_NS = 60 * SECOND_NS
"""Time by which a replica may be behind, or a cache old, where the socket does not count."""
_USUAL_NS, _USUAL_FACTOR = 3 * SECOND_NS, 3
"""A silence up to this length, or up to this many times the longest one so far, is usual."""
_FADING = 0.995
"""Factor for the longest silence at each message."""
_SUBSCRIBED_NS = 3 * SECOND_NS
"""Time until a subscription is in force on a new connection."""


class _Answer(NamedTuple):
    """An answer without a new trade: when it came, and a time that the exchange's clock had passed before it."""

    at_ns: int
    clock_ns: int


class Quiet(NamedTuple):
    """Time up to which the market was quiet, by the exchange's clock, and whether only REST says so."""

    until_ns: int
    is_provisional: bool


class QuietTime:
    """Answers of REST and signs of life of the socket, since the last trade."""

    def __init__(self, silence_ns: int) -> None:
        """Take the longest time between two signs of life of a socket that is alive."""
        self._answers: deque[_Answer] = deque()
        self._socket = AliveSocket(silence_ns)
        self._heard_ns: int | None = None
        self._longest_ns = 0.0
        self._alive_when_asked_ns = -1
        self._whole_ns: int | None = None
        """Time from which on the socket, if it is alive without a break, has sent all that is not released."""

    @property
    def _is_whole(self) -> bool:
        from_ns = self._socket.from_ns
        return self._whole_ns is not None and from_ns is not None and from_ns <= self._whole_ns

    @property
    def wants_life_after_ns(self) -> int | None:
        """Time after which a sign of life would settle time; None if no answer waits for one."""
        if not self._answers or (self._socket.from_ns is not None and self._socket.until_ns > self._answers[-1].at_ns):
            return None
        return self._answers[-1].at_ns

    def heard(self, *, now_ns: int, is_news: bool) -> None:
        """Count a message of the market; ``is_news`` if it has the newest trade, and none before it is missing."""
        self.alive(now_ns)
        if self._heard_ns is not None and self._is_whole:
            self._longest_ns = max(self._longest_ns * _FADING, now_ns - self._heard_ns)
        self._heard_ns = now_ns
        if is_news:
            self.whole(now_ns)

    def whole(self, sent_ns: int) -> None:
        """Note that the socket has sent the newest trade at a time, and that none before it is missing."""
        self._whole_ns = sent_ns
        self._answers.clear()

    def alive(self, at_ns: int) -> None:
        """Count a sign of life of the connection: a message of any market, or the answer to a ping."""
        self._socket.proven(at_ns)

    def broken(self, *, now_ns: int) -> None:
        """Note that the connection is lost, or has missed something."""
        self._whole_ns = None
        self._answers.clear()
        self._socket.lost(now_ns=now_ns)
        self._alive_when_asked_ns = -1

    def asked(self) -> None:
        """Note that REST is asked now: later signs of life do not confirm its answer."""
        self._alive_when_asked_ns = -1 if self._socket.from_ns is None else self._socket.until_ns

    def answered(self, clock_ns: int, *, now_ns: int) -> Quiet | None:
        """Add an answer without a new trade; return the time up to which the market was quiet, if that is news.

        Args:
            clock_ns: A time that the exchange's clock had passed before the query.
        """
        settled = None
        while self._answers and self._alive_when_asked_ns > self._answers[0].at_ns:
            answer = self._answers[0]
            is_provisional = not (self._is_whole and self._is_usual(answer.at_ns))
            if is_provisional and now_ns < answer.at_ns + REST_ALONE_NS:
                break
            self._answers.popleft()
            settled = Quiet(answer.clock_ns, is_provisional or (settled is not None and settled.is_provisional))
            from_ns = self._socket.from_ns
            if is_provisional and from_ns is not None and from_ns + _SUBSCRIBED_NS <= answer.at_ns:
                self._whole_ns = answer.at_ns
        self._answers.append(_Answer(now_ns, clock_ns))
        return settled

    def _is_usual(self, at_ns: int) -> bool:
        silence_ns = at_ns - (self._heard_ns or 0)
        return silence_ns <= max(_USUAL_NS, _USUAL_FACTOR * self._longest_ns)
