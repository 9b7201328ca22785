"""Interface of a dialect's WebSocket connection. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

from dexorder_exchange_sim.stream import Event, Feed, Merge, Sample, Tape
from dexorder_exchange_sim.trades import TradeSource
from dexorder_exchange_sim.venue import SimClock, SimVenue

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SocketMessage:
    """Message to a client; ``market`` is the exchange's id of the market that it is about, None for several."""

    text: str
    market: str | None
    time_ns: int


class Tapes:
    """Tapes of a venue's markets, which all connections share, and its clock."""

    def __init__(self, venue: SimVenue, clock: SimClock) -> None:
        self.venue = venue
        self.clock = clock
        self._tapes: dict[str, Tape] = {}

    def of(self, source: TradeSource) -> Tape:
        """Return the tape of a market."""
        id = source.instrument.id
        if id not in self._tapes:
            self._tapes[id] = Tape(source)
        return self._tapes[id]


class SocketSession(ABC):
    """State of one connection: what the client is subscribed to, and the messages that are due.

    Attributes:
        beat_s: Time between two heartbeats, machine's seconds.
        beat: Text of a heartbeat; None for a ping frame.
    """

    beat_s: float
    beat: str | None = None

    def __init__(self, tapes: Tapes) -> None:
        self.tapes = tapes
        self._merge = Merge()
        self._keys: dict[Hashable, None] = {}
        self._now_ns = 0

    @abstractmethod
    def greeting(self, now_ns: int) -> list[str]:
        """Return the texts that the server sends first."""

    @abstractmethod
    def receive(self, text: str, now_ns: int) -> list[str]:
        """Apply a command of the client; return the answers."""

    @abstractmethod
    def feed(self, key: Hashable, after_ns: int) -> Feed | None:
        """Return the events of a subscription after a time; None for a market that has none."""

    @abstractmethod
    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """Return an event as a message; None if there is nothing to say."""

    @property
    def subscriptions(self) -> list[Hashable]:
        """Return the keys in the order of their subscription."""
        return list(self._keys)

    def subscribe(self, key: Hashable, now_ns: int) -> None:
        """Begin a subscription now; one that exists continues."""
        if key in self._keys:
            return
        self._keys[key] = None
        feed = self.feed(key, now_ns)
        if feed is not None:
            self._merge.add(key, feed)

    def unsubscribe(self, key: Hashable) -> None:
        """End a subscription."""
        self._keys.pop(key, None)
        self._merge.remove(key)

    def restart(self, now_ns: int) -> None:
        """Begin all subscriptions again at a time, after the clock was set; what lies between is not sent."""
        keys, self._keys, self._merge = self._keys, {}, Merge()
        for key in keys:
            self.subscribe(key, now_ns)

    def take(self, now_ns: int, limit: int) -> list[SocketMessage]:
        """Return the messages that are due, at most ``limit``."""
        self._now_ns = now_ns
        messages = (self.render(key, event, now_ns) for key, event in self._merge.take(now_ns, limit))
        return [message for message in messages if message is not None]

    def samples(self, after_ns: int) -> Feed:
        """Return one sample a second, by the exchange's clock or by the machine's, whichever is slower.

        Samples of a time that the clock skipped are left out.
        """
        due_ns = after_ns
        while True:
            step_ns = int(_NS * max(1.0, self.tapes.clock.speed))
            due_ns = max(due_ns + step_ns, self._now_ns) // _NS * _NS
            yield due_ns, Sample(due_ns)

    def next_ns(self) -> int | None:
        """Return the time of the next message; None without any."""
        return self._merge.next_ns()
