"""An exchange with a socket, several replicas of REST, candles and a clock, all of one tape for each market."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ccxt.async_support as ccxt

from tests.simulation.exchange.faults import Fault, FaultKind, FaultPlan
from tests.simulation.exchange.trades import MS_NS, Executed, FinalCandle, Tape, candles_of, flat
from tests.simulation.loop import SECOND_NS, START_WALL_NS, Process
from tests.simulation.run import Run

PERIODS = {"1m": 60, "5m": 300}
_PONG_NS = 2 * SECOND_NS
"""Time between two pongs of a connection."""


@dataclass(eq=False)
class Connection:
    """A socket's subscription to one market; ``put`` takes a message, ``fail`` its end."""

    process: Process
    symbol: str
    put: Callable[[dict[str, Any]], None]
    fail: Callable[[Exception], None]
    delay_seconds: float
    opened_ns: int = 0
    heard_ns: int = 0
    is_open: bool = True


@dataclass
class Exchange:
    """The exchange of a run.

    Attributes:
        tapes: Trades by symbol.
        shown: By symbol and trade, the time at which the socket or REST first showed it to an ingestor.
    """

    run: Run
    tapes: Mapping[str, Tape]
    plan: FaultPlan
    replicas: int = 1
    shown: dict[tuple[str, tuple[int, str]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = self.run.generator("exchange")
        self._connections: list[Connection] = []
        self._noted: set[Fault] = set()

    def start(self) -> None:
        """Let the trades come, and the faults that strike open sockets."""
        for symbol, tape in self.tapes.items():
            coming = [trade for trade in tape.trades if trade.published_ns > START_WALL_NS]
            coming.sort(key=lambda trade: trade.published_ns, reverse=True)
            self._send_next(symbol, coming)
        for fault in self.plan.faults:
            self._at(fault.start_ns, self._begin, fault)

    def _at(self, time_ns: int, act: Callable[..., None], *values: Any) -> None:
        self.run.loop.call_at((time_ns - START_WALL_NS) / SECOND_NS, act, *values)

    @property
    def now_ns(self) -> int:
        """The exchange's clock."""
        return START_WALL_NS + self.run.loop.now_ns

    # --- socket

    def connect(self, connection: Connection) -> None:
        """Subscribe to a market.

        Raises:
            ccxt.NetworkError: Sockets are refused now.
        """
        if self.plan.now(FaultKind.CUT, self.now_ns):
            raise ccxt.NetworkError("connection refused")
        connection.opened_ns = connection.heard_ns = self.now_ns
        self._connections.append(connection)

    def silence_ns(self, own: Callable[[Connection], bool]) -> int | None:
        """Return the time since the last message or pong of an open connection; None without one."""
        connection, now_ns = next(filter(own, self._connections), None), self.now_ns
        if connection is None:
            return None
        for pong_ns in range(now_ns - (now_ns - connection.opened_ns) % _PONG_NS, connection.heard_ns, -_PONG_NS):
            if not self.plan.now(FaultKind.SILENT, pong_ns):
                connection.heard_ns = pong_ns
                break
        return now_ns - connection.heard_ns

    def ping(self, own: Callable[[Connection], bool]) -> None:
        """Answer a ping of some connections, unless the socket sends nothing."""
        for connection in filter(own, self._connections):
            if not self.plan.now(FaultKind.SILENT, self.now_ns):
                connection.heard_ns = self.now_ns

    def disconnect(self, lost: Callable[[Connection], bool], reason: str) -> None:
        """Close some connections."""
        for connection in [each for each in self._connections if lost(each)]:
            self._connections.remove(connection)
            connection.is_open = False
            if connection.process.is_alive:
                connection.fail(ccxt.NetworkError(reason))

    def _begin(self, fault: Fault) -> None:
        self.run.note(f"exchange: {fault.text(START_WALL_NS)}")
        if fault.kind is FaultKind.CUT:
            self.disconnect(lambda each: True, "the exchange has closed the connection")

    def _send_next(self, symbol: str, coming: list[Executed], trade: Executed | None = None) -> None:
        if trade is not None:
            self._send(symbol, trade)
        if coming:
            following = coming.pop()
            self._at(following.published_ns, self._send_next, symbol, coming, following)

    def _send(self, symbol: str, trade: Executed) -> None:
        plan, now_ns = self.plan, self.now_ns
        if plan.now(FaultKind.SILENT, now_ns):
            return
        copies = 2 if plan.now(FaultKind.DOUBLED, now_ns) else 1
        for connection in self._connections:
            if connection.symbol == symbol:
                for _ in range(copies):
                    later = self._random.uniform(0.0, 3.0) if plan.now(FaultKind.SHUFFLED, now_ns) else 0.0
                    self.run.loop.call_later(connection.delay_seconds + later, self._deliver, connection, trade)

    def _deliver(self, connection: Connection, trade: Executed) -> None:
        if connection.is_open and connection.process.is_alive:
            self._show(connection.symbol, trade)
            connection.heard_ns = self.now_ns
            connection.put(trade.row(trade.first_price))

    def _show(self, symbol: str, trade: Executed) -> None:
        self.shown.setdefault((symbol, trade.key), self.now_ns)

    # --- REST

    def trades(self, symbol: str, since_ns: int | None, number: int | None, limit: int) -> list[dict[str, Any]]:
        """Answer a query: the newest trades, the oldest since a time, or the oldest from a number on.

        Raises:
            ccxt.ExchangeNotAvailable: REST refuses now.
        """
        replica = self._replica()
        if self._strikes(FaultKind.EMPTY, replica):
            return []
        found = self._visible(symbol, replica)
        if number is not None:
            era = max((trade.era for trade in found), default=0)
            found = [trade for trade in found if trade.era == era and trade.number >= number][:limit]
        elif since_ns is not None:
            found = [trade for trade in found if trade.time_ns >= since_ns][:limit]
        else:
            found = found[-limit:]
        for trade in found:
            self._show(symbol, trade)
        return [trade.row() for trade in found]

    def candles(self, symbol: str, timeframe: str, since_ns: int, until_ns: int) -> list[FinalCandle]:
        """Answer a query for candles; they hold the trades that the replica has."""
        replica, period_ns = self._replica(), PERIODS[timeframe] * SECOND_NS
        found, last = [], None
        traded = candles_of(self._visible(symbol, replica), PERIODS[timeframe])
        for open_ns in range(
            min(traded, default=until_ns + 1), min(until_ns, self._view_ns(replica) - 1) + 1, period_ns
        ):
            last = traded.get(open_ns) or (last and flat(open_ns, last))
            found += [last] if last and open_ns >= since_ns else []
        return found

    @property
    def is_delisted(self) -> bool:
        """Whether REST no longer knows the market."""
        return (fault := self.plan.delisting) is not None and self.now_ns >= fault.end_ns

    def _replica(self) -> int:
        if self.is_delisted:
            raise ccxt.BadSymbol('{"code":-1121,"msg":"Invalid symbol."}')
        replica = self._random.randrange(self.replicas)
        if self._strikes(FaultKind.REFUSED, replica):
            raise ccxt.ExchangeNotAvailable("503 Service Unavailable")
        return replica

    def _strikes(self, kind: FaultKind, replica: int) -> Fault | None:
        fault = self.plan.now(kind, self.now_ns, replica)
        if fault is not None and fault not in self._noted:
            self._noted.add(fault)
            self.run.note(f"exchange: an answer of replica {replica}: {kind}")
        return fault

    def _view_ns(self, replica: int) -> int:
        """Return the time as of which a replica answers now."""
        if cached := self._strikes(FaultKind.CACHED, replica):
            return cached.start_ns
        behind = self._strikes(FaultKind.BEHIND, replica)
        return self.now_ns - (behind.delay_ns if behind else 0)

    def _visible(self, symbol: str, replica: int) -> list[Executed]:
        """Return the trades that a replica shows now."""
        view_ns, lacks = self._view_ns(replica), (0, 0)
        if lacking := self._strikes(FaultKind.LACKS, replica):
            lacks = lacking.span
        return [
            trade.seen(view_ns)
            for trade in self.tapes[symbol].between(0, view_ns)
            if trade.published_ns <= view_ns and not lacks[0] <= trade.time_ns < lacks[1]
        ]


def row_of(candle: FinalCandle, period_seconds: int) -> list[Any]:
    """Return a candle as a raw row of Binance."""
    texts = [repr(each) for each in candle[1:6]]
    close_ms = candle.open_ns // MS_NS + period_seconds * 1_000 - 1
    return [candle.open_ns // MS_NS, *texts, close_ms, repr(candle.quote_volume), candle.trades, "0", "0", "0"]
