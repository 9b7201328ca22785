"""One venue, asked through unmodified ccxt: every answer read, every failure retried by one rule.

    ccxt.OperationFailed, a bad answer      ask again, up to ``attempts`` times, with backoff and jitter
    429, 418, a rate-limit code             the same, and nobody asks the venue before Retry-After (or the ban) is over
    403, 404, 451                           ``refused_attempts`` tries
    any other ccxt error                    no second try
    the same impossible candle three times  no further try

A client's last response is its own, so a job holds one client for itself; all clients of a venue share one throttle.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import ccxt.async_support as ccxt
import structlog
import tenacity

from services.common.clock import Clock
from services.common.exchanges import Exchange, override_urls
from services.common.market import PERIODS, SECOND_NS, TimeRange
from services.common.page import Candle
from services.ingestor.config import IngestorSettings
from services.ingestor.metrics import IngestorMetrics
from services.ingestor.paging import NO_HISTORY, call_limits
from services.ingestor.validation import MS_NS, BadAnswer, read_candles

log = structlog.get_logger(__name__)
T = TypeVar("T")
_EQUAL_FAULTS = 3
_MARKETS_AGE_NS = 60 * SECOND_NS
_BAN_UNTIL = re.compile(r"banned until (\d{13})")
_STATUS = re.compile(r"^\S+ (?:\S+ \S+ )?(\d{3}) ")
_PARSER_ERRORS = (TypeError, KeyError, IndexError, ValueError, AttributeError)


class ExchangeFailure(Exception):
    """The exchange refuses, or stays bad after all tries; the message says which question and how it ended."""


class ImpossibleCandle(ExchangeFailure):
    """The exchange keeps answering a candle that can't be one.

    Attributes:
        open_ns: Its open time.
    """

    def __init__(self, message: str, open_ns: int) -> None:
        super().__init__(message)
        self.open_ns = open_ns


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
        self.name = name
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.sleep = sleep
        self._exchange = exchange
        self._clients: list[Any] = []
        self._idle: list[Any] = []
        self._throttler: Any = None
        self._markets_of: Any = None
        self._markets_loaded_ns = 0
        self._markets_lock = asyncio.Lock()
        self._quiet_until_ns = 0  # monotonic; nobody asks before
        self.limits = call_limits(exchange.ccxt, getattr(ccxt, exchange.ccxt)().features)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A client for one job."""
        client = self._idle.pop() if self._idle else self._build()
        try:
            yield Session(self, client)
        finally:
            self._idle.append(client)

    async def close(self) -> None:
        """Close every connection; call when no session is open."""
        clients, self._clients, self._idle = self._clients, [], []
        await asyncio.gather(*(client.close() for client in clients))

    def _build(self) -> Any:
        client = getattr(ccxt, self._exchange.ccxt)({
            "enableRateLimit": True,
            "enableLastJsonResponse": True,
            "timeout": int(self.settings.call_timeout_seconds * 1000),
            "options": dict(self._exchange.options),
        })  # fmt: skip
        client.urls["api"] = override_urls(client.urls["api"], self._exchange)
        self._throttler = self._throttler or _Gate(self, client.throttler)
        client.throttler = self._throttler
        self._clients.append(client)
        return client

    # ---- markets, shared by the clients

    async def check(self, session: Session, symbol: str, period_seconds: int) -> str:
        """ccxt's name of the period, once symbol and period are known to the exchange.

        Raises:
            ExchangeFailure: They are not, or the markets can't be loaded.
        """
        client = session.client
        if self._exchange.ccxt in NO_HISTORY:
            raise ExchangeFailure(f"{self.name} has no candle history: {NO_HISTORY[self._exchange.ccxt]}")
        timeframe = PERIODS[period_seconds]
        if timeframe not in (client.timeframes or {}):
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
        if symbol not in client.markets:
            raise ExchangeFailure(f"symbol {symbol!r} is unknown to {self.name}")
        return timeframe

    # ---- the ban window, shared by the clients

    async def wait_while_banned(self) -> None:
        """Return when no ban is in force.

        Raises:
            ExchangeFailure: It lasts longer than ``longest_ban_seconds`` from now.
        """
        while (left_ns := self._quiet_until_ns - self.clock.monotonic_ns()) > 0:
            if left_ns > self.settings.longest_ban_seconds * SECOND_NS:
                raise ExchangeFailure(f"{self.name} bans this address for another {left_ns / SECOND_NS:.0f} s")
            await self.sleep(left_ns / SECOND_NS)

    def ban(self, seconds: float) -> None:
        """Let nobody ask for this long."""
        self._quiet_until_ns = max(self._quiet_until_ns, self.clock.monotonic_ns() + int(seconds * SECOND_NS))


class _Gate:
    """What a ccxt client waits for before each request: its turn in the venue's one rate budget, then the end of a ban.

    In this order, so that a ban also stops those who were waiting for their turn when it came. A budget shared with
    other processes would take the place of ``throttle``, the first client's own.
    """

    def __init__(self, venue: Venue, throttle: Any) -> None:
        self._venue = venue
        self._throttle = throttle

    async def __call__(self, cost: Any = None) -> None:
        await self._throttle(cost)
        await self._venue.wait_while_banned()


class Session:
    """One job's way to a venue: a ccxt client nobody else uses meanwhile."""

    def __init__(self, venue: Venue, client: Any) -> None:
        self._venue = venue
        self.client = client

    async def load_markets(self) -> None:
        """Fetch the exchange's markets anew.

        Raises:
            ExchangeFailure: They can't be had.
        """

        async def load() -> None:
            if not await self.client.load_markets(True):
                raise BadAnswer("the list of markets is empty")

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
                raise BadAnswer(f"its time is {time_ms!r}")
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
        since_ms, until_ms = window.start_ns // MS_NS, (window.end_ns - 1) // MS_NS
        limit = self._venue.limits.candles

        async def ask() -> tuple[list[Candle], int]:
            self.client.last_json_response = None
            rows = await self.client.fetch_ohlcv(symbol, timeframe, since_ms, limit, {"until": until_ms})
            fetched_ns = self._venue.clock.wall_ns()
            self._check_raw(rows)
            return read_candles(rows, window, period_seconds), fetched_ns

        return await self._ask(f"{symbol} {timeframe} {window}", ask)

    def _check_raw(self, rows: Any) -> None:
        """Look at the answer itself: ccxt drops rows before ``since`` or over the limit, and all of what is no JSON."""
        raw = self.client.last_json_response
        if not isinstance(raw, (list, dict)):
            raise BadAnswer("the answer is not JSON")
        if isinstance(raw, list) and isinstance(rows, list) and len(raw) != len(rows):
            raise BadAnswer(f"{len(raw) - len(rows)} of {len(raw)} rows are outside the asked window or doubled")

    # ---- retries

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        settings = self._venue.settings
        failures = _Failures(self._venue, what)

        async def once() -> T:
            self.client.last_response_headers = None
            self._venue.metrics.calls.labels(self._venue.name).inc()
            try:
                with self._venue.metrics.call_seconds.labels(self._venue.name).time():
                    return await call()
            except _PARSER_ERRORS as error:
                raise BadAnswer(f"ccxt can't read the answer: {type(error).__name__}: {str(error)[:120]}") from error

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(failures.worth_another),
            stop=tenacity.stop_after_attempt(settings.attempts),
            wait=tenacity.wait_random_exponential(settings.backoff_seconds, settings.longest_backoff_seconds),
            before_sleep=lambda state: failures.note(state, self.client.last_response_headers),
            sleep=self._venue.sleep,
            reraise=True,
        )
        try:
            return await retrying(once)
        except (ccxt.BaseError, BadAnswer) as error:
            raise failures.final(error, retrying.statistics.get("attempt_number", 1)) from error


class _Failures:
    """What went wrong with one question so far, and whether to ask again."""

    def __init__(self, venue: Venue, what: str) -> None:
        self._venue = venue
        self._what = what
        self._refused = 0
        self._faults: dict[str, int] = {}

    def worth_another(self, error: BaseException) -> bool:
        if isinstance(error, BadAnswer):
            self._faults[str(error)] = self._faults.get(str(error), 0) + 1
            return error.open_ns is None or self._faults[str(error)] < _EQUAL_FAULTS
        if status_of(error) in (403, 404, 451):
            self._refused += 1
            return self._refused < self._venue.settings.refused_attempts
        return may_heal(error)

    def note(self, state: tenacity.RetryCallState, headers: Any) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None, "tenacity sleeps only after a failure"
        reason = "bad_answer" if isinstance(error, BadAnswer) else type(error).__name__
        self._venue.metrics.retries.labels(self._venue.name, reason).inc()
        log.info("asking again", exchange=self._venue.name, what=self._what, reason=reason, detail=str(error)[:200])
        slow_down = isinstance(error, (ccxt.DDoSProtection, ccxt.RateLimitExceeded))
        wait = retry_after(error, headers, wall_ns=self._venue.clock.wall_ns())
        if slow_down or wait is not None:
            self._venue.ban(self._venue.settings.ban_seconds if wait is None else wait)

    def final(self, error: Exception, tries: int) -> ExchangeFailure:
        text = f"{self._venue.name} gave no sound answer to {self._what} in {tries} tries: {brief(error)}"
        if isinstance(error, BadAnswer) and error.open_ns is not None:
            if self._faults[str(error)] >= _EQUAL_FAULTS:
                return ImpossibleCandle(f"{self._venue.name} keeps answering {error}", error.open_ns)
        elif isinstance(error, ccxt.BaseError) and not may_heal(error):
            text = f"{self._venue.name} refuses {self._what}: {brief(error)}"
        return ExchangeFailure(text)


def may_heal(error: BaseException) -> bool:
    """Whether a ccxt error says that the same question may be answered later."""
    # ccxt reports a body that broke off as a plain ExchangeError; its cause tells.
    return isinstance(error, ccxt.OperationFailed) or isinstance(error.__cause__, aiohttp.ClientError)


def status_of(error: BaseException) -> int | None:
    """The HTTP status ccxt wrote into an error's text, if it did."""
    found = _STATUS.match(str(error))
    return int(found.group(1)) if found else None


def retry_after(error: BaseException, headers: Any, *, wall_ns: int) -> float | None:
    """Seconds an exchange asked to be left alone: its Retry-After header, or the end of a ban in its message."""
    until = _BAN_UNTIL.search(str(error))
    if until:
        return max(0.0, (int(until.group(1)) * MS_NS - wall_ns) / SECOND_NS)
    if not isinstance(error, ccxt.OperationFailed) or not headers:
        return None
    value = next((v for k, v in headers.items() if k.lower() == "retry-after"), "")
    return float(value) if value.isdecimal() else None


def brief(error: BaseException) -> str:
    """One line of an error: its kind and the start of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
