"""One venue, asked through unmodified ccxt: every answer read, every failure retried by the rule of `failures`.

A client's last answer is its own, so a job holds one client for itself; all clients of a venue pass one gate, and with
it the rate budget that all ingestors of the host share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import ccxt.async_support as ccxt
import structlog
import tenacity

from services.common.clock import Clock
from services.common.exchanges import Exchange, override_urls
from services.common.model.page import Candle
from services.common.model.periods import PERIODS
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS, iso
from services.ingestor.config import IngestorSettings
from services.ingestor.exchange.dialects.answers import check_rows
from services.ingestor.exchange.dialects.table import at, dialect_of
from services.ingestor.exchange.dialects.trades import PAGE_TRADES, TradePager, TradeQuery, read_trades
from services.ingestor.exchange.failures import (
    ExchangeFailure,
    Failures,
    announced_pause,
    as_bad_answer,
    is_slow_down,
    kind_of,
)
from services.ingestor.exchange.instruments import keep_main_markets, refusal
from services.ingestor.exchange.rate_budget import RateLimit, open_bucket
from services.ingestor.exchange.rate_limiter import RateLimiter
from services.ingestor.exchange.validation import MS_NS, BadAnswer, read_candles
from services.ingestor.history.agreement import Agreement
from services.ingestor.history.paging import CallLimits, limits_for
from services.ingestor.metrics import IngestorMetrics

log = structlog.get_logger(__name__)
T = TypeVar("T")
_MARKETS_AGE_NS = 60 * SECOND_NS
_MARGIN = 0.98
"""Share of ccxt's rate that is used: a call late on the wire counts in the exchange's next window."""
_PARSER_ERRORS = (TypeError, KeyError, IndexError, ValueError, AttributeError)


class Venue:
    """A venue and its ccxt clients; several jobs may ask at once, each through its own session."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Open the venue's rate budget; no call is made.

        Raises:
            OSError: ``rate_limit_dir`` can't be used.
        """
        self.name = name
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.sleep = sleep
        self._exchange = exchange
        self._sessions: list[Session] = []
        self._idle: list[Session] = []
        self._markets_of: Any = None
        self._markets_loaded_ns = 0
        self._markets_lock = asyncio.Lock()
        client = self.build()
        self.dialect = dialect_of(exchange.ccxt, client.features)
        self.limits = limits_for(exchange.ccxt, client.features)
        self.rates = Agreement()
        self._budget = open_bucket(
            settings.rate_limit_dir, exchange.ccxt, _host(client), _rate(exchange, client), now_ns=clock.monotonic_ns()
        )
        self.gate = RateLimiter(
            name, self._budget, metrics, clock, longest_ban_seconds=settings.longest_ban_seconds, sleep=sleep
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A client for one job."""
        if not self._idle:
            self._idle.append(Session(self))
            self._sessions.append(self._idle[-1])
        session = self._idle.pop()
        try:
            yield session
        finally:
            self._idle.append(session)

    async def close(self) -> None:
        """Close every connection; call when no session is open, and not twice."""
        sessions = self._sessions
        self._sessions = []
        self._idle = []
        await asyncio.gather(*(session.client.close() for session in sessions))
        self._budget.close()

    def build(self) -> Any:
        """A ccxt client of this venue."""
        client = getattr(ccxt, self._exchange.ccxt)(
            {
                "enableRateLimit": True,
                "enableLastJsonResponse": True,
                "timeout": int(self.settings.call_timeout_seconds * 1000),
                "options": dict(self._exchange.options),
            }
        )
        client.urls["api"] = override_urls(client.urls["api"], self._exchange)
        return client

    # ---- markets, shared by the clients

    async def check(self, session: Session, symbol: str, period_seconds: int) -> str:
        """ccxt's name of the period, once symbol and period are known to the exchange.

        Raises:
            ExchangeFailure: They are not, or the markets can't be loaded.
        """
        client = session.client
        if self.dialect.history == "candles" and client.has.get("fetchOHLCV") is not True:
            raise ExchangeFailure(f"{self.name} has no candle history: ccxt's {self.dialect.ccxt} can't fetch candles")
        timeframe = PERIODS[period_seconds]
        if self.dialect.history == "candles" and timeframe not in (client.timeframes or {}):
            raise ExchangeFailure(
                f"period_seconds {period_seconds} ({timeframe}) is not offered by {self.name}; "
                f"it has {', '.join(client.timeframes or {})}"
            )
        async with self._markets_lock:
            age_ns = self.clock.monotonic_ns() - self._markets_loaded_ns
            known = self._markets_of is not None and symbol in self._markets_of.markets
            if self._markets_of is None or (not known and age_ns > _MARKETS_AGE_NS):  # it may be newly listed
                await session.load_markets()
                self._markets_of, self._markets_loaded_ns = client, self.clock.monotonic_ns()
        if client is not self._markets_of:
            client.set_markets_from_exchange(self._markets_of)
        if reason := refusal(self.name, symbol, client):
            raise ExchangeFailure(reason)
        return timeframe

    def limits_of(self, symbol: str) -> CallLimits:
        """What one call for a symbol that was checked returns."""
        market = self._markets_of.markets[symbol]
        narrow = market.get("inverse") or market.get("option")  # Binance's return the newest of a wide window
        return replace(self.limits, wide=False) if narrow else self.limits

    async def markets(self) -> tuple[Mapping[str, Any], int]:
        """Fetch all markets anew, for jobs too: ccxt's market by symbol, and when, in wall nanoseconds.

        Raises:
            ExchangeFailure: They can't be had.
        """
        async with self.session() as session:
            await session.load_markets()
            self._markets_of, self._markets_loaded_ns = session.client, self.clock.monotonic_ns()
            return session.client.markets, self.clock.wall_ns()


class Session:
    """One job's way to a venue: a ccxt client nobody else uses meanwhile."""

    def __init__(self, venue: Venue) -> None:
        self._venue = venue
        self._paused = False
        self._worst_status = 0
        self.client = venue.build()
        self.client.throttler = venue.gate
        self._read = self.client.on_rest_response
        self.client.on_rest_response = self._hear
        self.client.open()  # else the first call would do so after its turn came, up to 0.4 s of work
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._hear_head)
        trace.freeze()
        self.client.session.trace_configs.append(trace)
        self._connect = self.client.tcp_connector.connect
        self.client.tcp_connector.connect = self._connect_unless_banned

    async def _connect_unless_banned(self, request: Any, **options: Any) -> Any:
        """The connection for a request whose turn has come: to open one takes a while, in which a ban may be told."""
        connection = await self._connect(request, **options)
        if self._venue.gate.is_banned():
            connection.release()
            raise aiohttp.ClientConnectionError("a ban came while the connection was opened")
        return connection

    async def _hear_head(self, session: object, context: object, told: aiohttp.TraceRequestEndParams) -> None:
        """See status and headers before the body is read: it may take its time, or never come to its end."""
        self._note_pause(told.response.status, told.response.headers, "")

    def _hear(self, status: int, reason: str, url: str, method: str, headers: Any, body: str, *request: Any) -> Any:
        """See an answer before ccxt does: a ban must be known before anything else is awaited."""
        self._worst_status = max(self._worst_status, status)
        self._note_pause(status, headers, body)
        return self._read(status, reason, url, method, headers, body, *request)

    def _note_pause(self, status: int, headers: Mapping[str, str], body: str) -> None:
        settings, wall_ns = self._venue.settings, self._venue.clock.wall_ns()
        pause = announced_pause(status, headers, body, default=settings.ban_seconds, wall_ns=wall_ns)
        if pause is not None:
            self._paused = True
            self._venue.gate.ban(pause)

    async def load_markets(self) -> None:
        """Fetch the exchange's markets anew.

        Raises:
            ExchangeFailure: They can't be had.
        """

        async def load() -> None:
            if not await self.client.load_markets(True):
                raise BadAnswer("the list of markets is empty", kind="no_markets")
            keep_main_markets(self.client)

        await self._ask("its markets", load)

    async def now_ns(self) -> int:
        """The exchange's time, or ours where it tells none; the earlier of the two, since both may be wrong.

        Raises:
            ExchangeFailure: It does not answer.
        """
        ours_ns = self._venue.clock.wall_ns()
        if not self.client.has.get("fetchTime"):
            return ours_ns

        async def ask() -> int:
            time_ms = await self.client.fetch_time()
            if not isinstance(time_ms, int) or time_ms <= 0:
                raise BadAnswer(f"its time is {time_ms!r}", kind="time")
            return time_ms * MS_NS

        return min(await self._ask("its time", ask), self._venue.clock.wall_ns())

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange
    ) -> tuple[list[Candle], int]:
        """The candles the exchange answers for a window, and when it did; sound, but perhaps not all.

        Raises:
            ExchangeFailure: No sound answer after all tries.
            ImpossibleCandle: The answers are sound but for one candle, the same each time.
        """
        if self._venue.dialect.history == "trades":
            return await self._candles_from_trades(symbol, period_seconds, window)
        since_ms, until_ms = window.start_ns // MS_NS, (window.end_ns - 1) // MS_NS
        limit = self._venue.limits.candles

        async def ask() -> tuple[list[Candle], int]:
            rows = await self.client.fetch_ohlcv(symbol, timeframe, since_ms, limit, {"until": until_ms})
            fetched_ns = self._venue.clock.wall_ns()
            self._raw_rows(symbol, rows)
            return read_candles(rows, window, period_seconds), fetched_ns

        return await self._ask(f"{symbol} {timeframe} {window}", ask)

    async def _candles_from_trades(
        self, symbol: str, period_seconds: int, window: TimeRange
    ) -> tuple[list[Candle], int]:
        settings = self._venue.settings
        walk = TradePager(window, period_seconds, candles=self._venue.limits.candles, answers=settings.hole_answers)
        while ask := walk.next_query():
            if ask.spaced:
                await self._venue.sleep(settings.hole_spacing_seconds)
            await self._ask(f"{symbol} trades since {iso(ask.since_ns)}", self._trades_of(symbol, ask, walk))
        return walk.candles(), self._venue.clock.wall_ns()

    def _trades_of(self, symbol: str, ask: TradeQuery, walk: TradePager) -> Callable[[], Awaitable[None]]:
        async def add() -> None:
            # In ``params`` ``since`` goes out as it is: ccxt's own would be cut to whole seconds.
            trades = await self.client.fetch_trades(symbol, None, PAGE_TRADES, {"since": str(ask.since_ns)})
            rows = self._raw_rows(symbol, trades)
            last = at(self.client.last_json_response, ("result", "last"))
            walk.add(read_trades(rows, last, since_ns=ask.since_ns))

        return add

    def _raw_rows(self, symbol: str, rows: Any) -> list[Any]:
        """The raw rows behind what ccxt made of the last answer, checked; none if it is not known where they lie."""
        raw, market_id = self.client.last_json_response, self.client.markets[symbol]["id"]
        return check_rows(self._venue.dialect, raw, rows, market_id) or []

    # ---- retries

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        settings, name = self._venue.settings, self._venue.name
        failures = Failures(name, what, self._venue.dialect, refused_attempts=settings.refused_attempts)

        def note(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            assert error is not None, "tenacity sleeps only after a failure"
            log.info("asking again", exchange=name, what=what, reason=kind_of(error), detail=str(error)[:200])

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(failures.worth_another),
            stop=lambda state: not failures.tries_left(state.attempt_number, settings.attempts),
            wait=tenacity.wait_random_exponential(settings.backoff_seconds, settings.longest_backoff_seconds),
            before_sleep=note,
            sleep=self._venue.sleep,
            reraise=True,
        )
        try:
            return await retrying(self._once, call)
        except (ccxt.BaseError, BadAnswer) as error:
            raise failures.final(error, retrying.statistics.get("attempt_number", 1)) from error

    async def _once(self, call: Callable[[], Awaitable[T]]) -> T:
        """One try, counted; a ban told by the exchange's own code instead of HTTP's is noted."""
        metrics, name, dialect = self._venue.metrics, self._venue.name, self._venue.dialect
        self._paused = False
        self._worst_status = 0
        self.client.last_json_response = None
        metrics.calls.labels(name).inc()
        try:
            with metrics.call_seconds.labels(name).time():
                return await _readable(call)
        except (ccxt.BaseError, BadAnswer) as error:
            answer = self.client.last_json_response
            bad = as_bad_answer(error, dialect, status=self._worst_status, answer=answer)
            metrics.bad_answers.labels(name, kind_of(bad or error)).inc()
            if is_slow_down(error, dialect) and not self._paused:
                self._venue.gate.ban(self._venue.settings.ban_seconds)
            if bad is not None:
                raise bad from error
            raise


async def _readable(call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except _PARSER_ERRORS as error:
        text = f"ccxt can't read the answer: {type(error).__name__}: {str(error)[:120]}"
        raise BadAnswer(text, kind="unreadable") from error


def _rate(exchange: Exchange, client: Any) -> RateLimit:
    """What the exchanges file says, else a little less than ccxt's own."""
    if exchange.rate_per_second is None and client.rateLimit > 0:
        return RateLimit(_MARGIN * 1000 / client.rateLimit, exchange.burst)
    return RateLimit(exchange.rate_per_second or float("inf"), exchange.burst)


def _host(client: Any) -> str:
    """host:port of the API: where it has several, the one of its public calls."""
    urls = client.urls["api"]
    while not isinstance(urls, str):
        urls = urls.get("public") or urls.get("rest") or next(iter(urls.values()))
    return str(urlsplit(client.implode_hostname(urls)).netloc)
