"""Interface of a dialect: answers of REST with the layout of their rows, which faults need, and WebSockets. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.stream import Event, Feed, Merge, Tape
from dexorder_exchange_sim.trades import TradeSource
from dexorder_exchange_sim.venue import SimClock, SimVenue

Query = Mapping[str, str]
Key = int | str
Row = Any
"""List or dict; `RowLayout` describes it."""
Rows = list[Row]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Fields of the rows of an answer: indexes in lists, names in dicts.

    Attributes:
        time: Open of a candle, or time of another row; a number, or a whole number as text.
        close: Last price of a candle, or price of a trade; text.
        volume: Text.
        high: None for trades, which also lack a grid, lows and unfinished rows.
        low: None for trades.
        off_grid: Amount that moves a candle's open off its grid.
    """

    time: Key
    unit_ns: int
    close: Key
    volume: Key
    high: Key | None = None
    low: Key | None = None
    off_grid: int = 0

    def time_ns(self, row: Row) -> int:
        """Return a row's time, nanoseconds since the epoch."""
        time = row[self.time]
        time_ns: float = (int(time) if isinstance(time, str) else time) * self.unit_ns
        return round(time_ns)


@dataclass(frozen=True, slots=True)
class History:
    """Rows of an answer with candles or trades, and alternatives that faults put there.

    Attributes:
        rows: As the exchange sends them, ascending.
        window_ns: Requested range as far as this answer covers it, half open; nanoseconds since the epoch.
        wrap: Returns the answer's body with rows.
        nothing: Body of an answer without rows.
        earlier: Returns this many rows before the requested start.
        half: Returns the last row's candle as of the middle of its period; None if there was none, or for trades.
        running: Time of the unfinished candle; None for trades.
    """

    rows: Rows
    layout: RowLayout
    window_ns: tuple[int, int]
    wrap: Callable[[Rows], Any]
    nothing: Any
    earlier: Callable[[int], Rows]
    half: Callable[[], Row | None] = lambda: None
    running: int | None = None


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """JSON body, request weight (0 is not counted) and HTTP status; ``history`` where it has candles or trades."""

    body: Any
    weight: int = 1
    history: History | None = None
    status: int = 200


class SimRefusal(Exception):
    """Refusal of a request in the exchange's words."""

    def __init__(self, answer: SimAnswer) -> None:
        super().__init__(str(answer.body))
        self.answer = answer


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
    """State of one connection: the client's subscriptions, and the messages that are due.

    Attributes:
        now_ns: Time of the last `take`.
        beat_s: Time between two heartbeats, machine's seconds.
        beat: Text of a heartbeat; None for a ping frame.
    """

    beat_s: float
    beat: str | None = None

    def __init__(self, tapes: Tapes) -> None:
        self.tapes = tapes
        self._merge = Merge()
        self._keys: dict[Hashable, None] = {}
        self.now_ns = 0

    @abstractmethod
    def greeting(self, now_ns: int) -> list[str]:
        """Return the texts that the server sends first."""

    @abstractmethod
    def receive(self, text: str, now_ns: int) -> list[str]:
        """Apply a command of the client; return the answers."""

    @abstractmethod
    def feed(self, key: Hashable, after_ns: int) -> Feed | None:
        """Return the events of a subscription after a time; None for a market without events."""

    @abstractmethod
    def render(self, key: Hashable, event: Event, now_ns: int) -> SocketMessage | None:
        """Return an event as a message; None for an event without one."""

    @property
    def subscriptions(self) -> list[Hashable]:
        """Return the keys in the order of their subscription."""
        return list(self._keys)

    def subscribe(self, key: Hashable, now_ns: int) -> None:
        """Start a subscription now; one that exists continues."""
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
        """Restart all subscriptions at a time, after the clock was set; events in between are not sent."""
        keys, self._keys, self._merge = self._keys, {}, Merge()
        for key in keys:
            self.subscribe(key, now_ns)

    def take(self, now_ns: int, limit: int) -> list[SocketMessage]:
        """Return the messages that are due, at most ``limit``."""
        self.now_ns = now_ns
        messages = (self.render(key, event, now_ns) for key, event in self._merge.take(now_ns, limit))
        return [message for message in messages if message is not None]

    def next_ns(self) -> int | None:
        """Return the time of the next message; None without any."""
        return self._merge.next_ns()


@dataclass(frozen=True, slots=True)
class SimDialect:
    """Protocol of one exchange.

    Attributes:
        prefixes: Starts of its paths, of REST and of WebSockets.
        routes: By path, how a request is answered, given query, venue and now (nanoseconds); may raise `SimRefusal`.
        history: The paths with candles or trades; rules of faults call them ``history``.
        connect: Opens a WebSocket, given tapes, path, query and now; returns None for a path without one.
        knows: Returns whether an id is one of its markets'.
        market: Returns the exchange's id of the market that a query names; None if it names none.
        of_other: Returns the query for another market: the given id, or one that always exists.
        bodies: Content type and body of fault kinds that differ from those in `faults`.
        dark_pools: More markets, each with the symbol of another market and with different trades.
    """

    prefixes: tuple[str, ...]
    routes: Mapping[str, Callable[[Query, SimVenue, int], SimAnswer]]
    history: tuple[str, ...]
    connect: Callable[[Tapes, str, Query, int], SocketSession | None]
    knows: Callable[[str, SimVenue], bool]
    market: Callable[[Query, SimVenue], str | None]
    of_other: Callable[[Query, SimVenue, str | None], Query]
    bodies: Mapping[str, tuple[str, str]]
    dark_pools: tuple[SimInstrument, ...] = ()

    def answer(self, path: str, query: Query, venue: SimVenue, now_ns: int) -> SimAnswer | None:
        """Answer one request; return None for a path that the exchange does not have."""
        handler = self.routes.get(path)
        return None if handler is None else handler(query, venue, now_ns)
