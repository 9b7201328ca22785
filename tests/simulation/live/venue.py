"""An ingestor's access to the simulated exchange: the product's sessions and queries over a client and sockets of ours.

Below `CcxtSession` stands ccxt, below `LiveSockets` ccxt.pro in a thread; these two are replaced, nothing above them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from dexorder_common.clock import Clock
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.answers import Attempts
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.live_sockets import LiveSockets
from dexorder_ingestor.exchange.socket_thread import Handover, Received
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from tests.simulation.exchange.live import PERIODS, Connection, Exchange, row_of
from tests.simulation.exchange.trades import MS_NS
from tests.simulation.loop import Process

VENUE = "SIM"
_SESSIONS = 8
_CALL_SECONDS = (0.02, 0.25)
_SOCKET_SECONDS = (0.01, 0.2)
_MAX_MESSAGES = 20_000


class SimulatedClient:
    """What `CcxtSession` and `LiveQueries` use of a ccxt client."""

    has = {"fetchTime": True, "fetchOHLCV": True}  # noqa: RUF012 - as ccxt has it
    timeframes = {name: name for name in PERIODS}  # noqa: RUF012
    urls = {"api": "https://exchange"}  # noqa: RUF012

    def __init__(self, exchange: Exchange, random: Random) -> None:
        self.last_json_response: Any = None
        self.parse_ohlcvs: Any = None
        self.markets = {symbol: {"id": symbol.replace("/", ""), "spot": True} for symbol in exchange.tapes}
        self._exchange = exchange
        self._random = random

    def implode_hostname(self, url: str) -> str:
        return url

    async def fetch_time(self) -> int:
        await self._travel()
        time_ms = self._exchange.now_ns // MS_NS
        await self._travel()
        self.last_json_response = {"serverTime": time_ms}
        return time_ms

    async def fetch_trades(
        self, symbol: str, since_ms: int | None, limit: int, params: dict[str, Any]
    ) -> list[dict[str, Any]]:
        await self._travel()
        since_ns = None if since_ms is None else since_ms * MS_NS
        rows = self._exchange.trades(symbol, since_ns, params.get("fromId"), limit)
        await self._travel()
        self.last_json_response = rows
        return rows

    async def fetch_ohlcv(
        self,
        symbol: str,
        timeframe: str,
        since_ms: int,
        limit: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> list[Any]:
        await self._travel()
        until_ms = (params or {}).get("until", 2**53)
        found = self._exchange.candles(symbol, timeframe, since_ms * MS_NS, until_ms * MS_NS)
        await self._travel()
        rows = [row_of(candle, PERIODS[timeframe]) for candle in found[:limit]]
        self.last_json_response = rows
        return rows if self.parse_ohlcvs is not None else [[row[0], *map(float, row[1:6])] for row in rows]

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(*_CALL_SECONDS) / 2)


class SimulatedSession(CcxtSession):
    """A session whose client is ours; queries, retries and checks are the product's."""

    def __init__(self, venue: SimulatedVenue, exchange: Exchange) -> None:
        self.venue = venue
        self._attempts = Attempts()
        self.calls = 0
        self.client = SimulatedClient(exchange, venue.random)
        self._parse_ohlcvs = None

        def nothing() -> None:
            pass

        guard = SimpleNamespace(
            worst_status=0, start_call=nothing, fail=nothing, pause=nothing, keep_connection=nothing
        )
        self.guard = cast(Any, guard)


class SimulatedVenue(CcxtVenue):
    """A venue without ccxt, whose markets are known."""

    def __init__(
        self,
        dialect: str,
        exchange: Exchange,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
        random: Random,
    ) -> None:
        self.name = VENUE
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.sleep = asyncio.sleep
        self.random = random
        self.dialect = dialect_of(dialect, {})
        self.trade_series = self.dialect.trades
        self.limits = self.dialect.candles.limits
        self.known_time = None
        self._simulated = exchange
        self._symbols: set[str] = set()
        self._idle: list[CcxtSession] = [SimulatedSession(self, exchange) for _ in range(_SESSIONS)]

    @property
    def calls_per_second(self) -> float:
        """As many as a large exchange allows."""
        return 20.0

    @property
    def ban_left_ns(self) -> int:
        """0: there are no bans."""
        return 0

    async def know(self, session: CcxtSession, symbol: str | None = None) -> None:
        """Refuse a market that was delisted before this process has seen it, as the product does by its list."""
        if symbol is not None and symbol not in self._symbols:
            if self._simulated.is_delisted:
                raise ExchangeFailure(f"symbol {symbol} is unknown to {self.name}")
            self._symbols.add(symbol)


class SimulatedSockets(LiveSockets):
    """Sockets of one ingestor."""

    def __init__(self, venue: CcxtVenue, exchange: Exchange, process: Process, random: Random) -> None:
        super().__init__(venue)
        self._exchange = exchange
        self._process = process
        self._random = random

    @property
    def can_watch(self) -> bool:
        """True."""
        return True

    @contextmanager
    def watching(self, symbol: str) -> Iterator[Any]:
        """Yield a subscription."""
        subscription = _Subscription(self, symbol)
        try:
            yield subscription
        finally:
            self._exchange.disconnect(lambda each: each is subscription.connection, "closed")

    def open(self, symbol: str, handover: Handover) -> Connection:
        """Connect; ccxt.NetworkError if the exchange refuses."""

        def put(row: dict[str, Any]) -> None:
            handover.put(Received(self._venue.clock.wall_ns(), [row]))

        delay_seconds = self._random.uniform(*_SOCKET_SECONDS)
        connection = Connection(self._process, symbol, put, handover.fail, delay_seconds)
        self._exchange.connect(connection)
        return connection

    def reopen(self, symbol: str) -> None:
        """Close the connection of a market."""
        self._exchange.run.note(f"{self._process.name}: the socket of {symbol} is deaf and is opened again")
        self._exchange.disconnect(
            lambda each: each.process is self._process and each.symbol == symbol,
            "the socket was silent and is opened again",
        )

    def ping(self, symbol: str) -> None:
        """Let a market's connection show that it lives."""
        self._exchange.ping(lambda each: each.process is self._process and each.symbol == symbol)

    def silence_ns(self, symbol: str) -> int | None:
        """Return the time since the last frame of a market's connection."""
        return self._exchange.silence_ns(lambda each: each.process is self._process and each.symbol == symbol)

    async def close(self) -> None:
        """Close everything."""
        self._exchange.disconnect(lambda each: each.process is self._process, "closed")


class _Subscription:
    def __init__(self, sockets: SimulatedSockets, symbol: str) -> None:
        self.connection: Connection | None = None
        self._sockets = sockets
        self._symbol = symbol
        self._handover = Handover(max_messages=_MAX_MESSAGES)

    @property
    def dropped(self) -> int:
        return self._handover.dropped

    async def next(self) -> list[Received]:
        if self.connection is None:
            self.connection = self._sockets.open(self._symbol, self._handover)
        try:
            return await self._handover.take()
        except Exception:
            self.connection = None
            raise
