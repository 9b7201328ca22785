"""A venue, queried through unmodified ccxt: each answer is validated, each failure handled by the rules of `failures`.

A ccxt client keeps its last answer, so each dispatch has its own client. All clients of a venue share one rate
limiter, which all ingestors of the host share in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import ccxt.async_support as ccxt
import structlog
import tenacity

from dexorder_common.clock import Clock, random_wait
from dexorder_common.exchanges import Exchange, override_urls
from dexorder_common.model.history import Delay
from dexorder_common.model.instrument import CandleOffer, ListedInstrument
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import PERIODS, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS, iso
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.absences import KnownAbsences
from dexorder_ingestor.exchange.answers import MS_NS, Attempts, BadAnswer
from dexorder_ingestor.exchange.archive import Archive
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.exchange.failures import (
    PARSER_ERRORS,
    ExchangeFailure,
    Failures,
    as_bad_answer,
    brief,
    is_slow_down,
    kind_of,
)
from dexorder_ingestor.exchange.guarded_client import GuardedClient
from dexorder_ingestor.exchange.instruments import keep_main_markets, refusal
from dexorder_ingestor.exchange.learnt import Learnt
from dexorder_ingestor.exchange.listing import list_instruments
from dexorder_ingestor.exchange.rate_limiter import RateLimit, RateLimiter, open_bucket, shared_path
from dexorder_ingestor.exchange.trade_pager import PagerQuery, TradePager
from dexorder_ingestor.exchange.trades import TradeQuery
from dexorder_ingestor.exchange.validation import check_rows, read_candles, rows_from
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.traces import call_span

log = structlog.get_logger(__name__)
T = TypeVar("T")
_MARKETS_AGE_NS = 60 * SECOND_NS
_MARGIN = 0.98
"""Share of ccxt's rate that is used, because a call late on the wire counts in the exchange's next window."""
_TIME_AGE_NS = 600 * SECOND_NS
"""Time for which the exchange's clock counts as known."""
_LONG_PAST_NS = 3_600 * SECOND_NS
"""Age of a time from which on a clock known that well tells that it is past."""


class KnownTime(NamedTuple):
    """An exchange's time, and the monotonic time at which it was asked for it."""

    theirs_ns: int
    asked_ns: int


class CcxtVenue:
    """A venue and its ccxt clients. Several dispatches may query it at once, each through its own session."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        settings: IngestorSettings,
        metrics: IngestorMetrics,
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        """Open the venue's rate limit; no call is made.

        Args:
            random: Source of random waits between attempts; by default an own one.

        Raises:
            OSError: ``rate_limit_dir`` can't be used.
        """
        self.name = name
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.sleep = sleep
        self.random = random or Random()  # noqa: S311 - jitter
        self._exchange = exchange
        self.other_hosts = exchange.other_hosts
        self._idle: list[CcxtSession] = []
        self._markets_of: Any = None
        self._markets_loaded_ns = 0
        self._accepted: set[str] = set()
        self._markets_lock = asyncio.Lock()
        client = self.new_client()
        self.dialect = dialect_of(exchange.ccxt, client.features)
        self.trade_series = self.dialect.trades
        self.offered = tuple(seconds for seconds, name in PERIODS.items() if name in (client.timeframes or {}))
        self.limits = self.dialect.candles.limits
        limit, now_ns = _rate_limit(exchange, client), clock.monotonic_ns()
        bucket = open_bucket(settings.rate_limit_dir, exchange.ccxt, _host(client), limit, now_ns=now_ns)
        self.learnt = Learnt(shared_path(settings.rate_limit_dir, exchange.ccxt, _host(client), ".learnt"))
        self.shapes = self.learnt.shapes
        self.absences = KnownAbsences()
        self.known_time: KnownTime | None = None
        self.archive: Archive | None = None
        if exchange.archive and self.dialect.archive:
            facts, ca_file = self.dialect.archive, client.cafile  # so files need no more than calls do
            self.archive = Archive(name, exchange.archive, facts, metrics, clock, ca_file=ca_file)
        elif exchange.archive:
            log.warning("archive is not used: no files of this exchange are known", exchange=name, ccxt=exchange.ccxt)
        self.rate_limiter = RateLimiter(name, bucket, metrics, clock, settings.longest_ban_seconds, sleep)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[CcxtSession]:
        """Lend a session to one dispatch."""
        session = self._idle.pop() if self._idle else CcxtSession(self)
        session.guard.keep_connection()
        session.calls = 0
        try:
            yield session
        finally:
            self._idle.append(session)

    async def close(self) -> None:
        """Close every connection; call once, when no session is in use."""
        await asyncio.gather(*(session.client.close() for session in self._idle))
        if self.archive:
            await self.archive.close()
        self.rate_limiter.bucket.close()

    def new_client(self, package: Any = ccxt, **options: Any) -> Any:
        """Return a new client of this venue, of ccxt or ccxt.pro, with more ``options`` of ccxt."""
        client = getattr(package, self._exchange.ccxt)(
            {
                "enableRateLimit": True,
                "enableLastJsonResponse": True,
                "timeout": int(self.settings.call_timeout_seconds * 1000),
                "options": {**self._exchange.options, **options},
            }
        )
        client.urls["api"] = override_urls(client.urls["api"], self._exchange)
        return client

    async def timeframe(self, session: CcxtSession, symbol: str, period_seconds: int) -> str:
        """Return ccxt's name of the period once the exchange is known to have the symbol and the period.

        Raises:
            ExchangeFailure: The exchange does not have them, or the markets can't be loaded.
        """
        client = session.client
        if self.dialect.history == "candles" and client.has.get("fetchOHLCV") is not True:
            raise ExchangeFailure(
                f"{self.name} does not offer candle history: ccxt's {self.dialect.ccxt} can't fetch candles"
            )
        timeframe = PERIODS[period_seconds]
        if self.dialect.history == "candles" and timeframe not in (client.timeframes or {}):
            raise ExchangeFailure(
                f"period_seconds {period_seconds} ({timeframe}) is not offered by {self.name}; "
                f"it has {', '.join(client.timeframes or {})}"
            )
        await self.know(session, symbol)
        return timeframe

    async def know(self, session: CcxtSession, symbol: str | None = None) -> None:
        """Give a session the markets, if it lacks them, and check that they have a symbol.

        Raises:
            ExchangeFailure: The exchange does not have it, or the markets can't be loaded.
        """
        client = session.client
        async with self._markets_lock:
            age_ns = self.clock.monotonic_ns() - self._markets_loaded_ns
            known = self._markets_of is not None and (symbol is None or symbol in self._markets_of.markets)
            if self._markets_of is None or (not known and age_ns > _MARKETS_AGE_NS):  # it may have been listed since
                await session.load_markets()
                self._markets_of, self._markets_loaded_ns = client, self.clock.monotonic_ns()
                self._accepted.clear()
        self.share_markets(client)
        if symbol is not None and symbol not in self._accepted:  # `refusal` looks at all markets
            if reason := refusal(self.name, symbol, client):
                raise ExchangeFailure(reason)
            self._accepted.add(symbol)

    @property
    def calls_per_second(self) -> float:
        """Rate of the host's calls, in ccxt's units."""
        return self.rate_limiter.bucket.limit.per_second

    @property
    def ban_left_ns(self) -> int:
        """How much longer the exchange bans this host, as far as any process of it knows; not above 0 without a ban."""
        return self.rate_limiter.bucket.ban_ns() - self.clock.monotonic_ns()

    def share_markets(self, client: Any) -> None:
        """Give a ccxt client the markets that `know` has loaded."""
        if client is not self._markets_of and client.markets is not self._markets_of.markets:
            client.set_markets_from_exchange(self._markets_of)

    def offer(self) -> CandleOffer:
        """Return the candles that the exchange offers, with the learnt shape of its answers."""
        shape, dialect = self.shapes.shape, self.dialect
        return CandleOffer(
            tuple(sorted(self.offered)) if dialect.history == "candles" else tuple(PERIODS),
            shape.apply(self.limits).candles,
            0 < shape.page_limit < self.limits.candles,
            *shape[1:],
            dialect.candles.volume_tolerance,
        )

    def limits_of(self, symbol: str) -> CallLimits:
        """Return the limits of one call for a symbol that `timeframe` has checked."""
        market = self._markets_of.markets[symbol]
        is_narrow = self.dialect.candles.narrow(market)
        return self.shapes.shape.apply(replace(self.limits, wide=False) if is_narrow else self.limits)

    async def instruments(self) -> tuple[tuple[ListedInstrument, ...], int]:
        """Fetch all markets and keep them for dispatches; return the instruments, and the wall clock time, nanoseconds.

        Afterwards this venue also has the knowledge that other ingestors, or this one before a restart, have stored.

        Raises:
            ExchangeFailure: They can't be fetched.
        """
        self.learnt.share(now_ns=self.clock.wall_ns())
        async with self.session() as session:
            await session.load_markets()
            self._markets_of, self._markets_loaded_ns = session.client, self.clock.monotonic_ns()
            self._accepted.clear()
            markets, mode, fetched_ns = session.client.markets, session.client.precisionMode, self.clock.wall_ns()
        return tuple(list_instruments(self.name, markets.values(), mode, self.dialect.quirks.delisting)), fetched_ns


class CcxtSession:
    """A dispatch's access to a venue, with a separate ccxt client."""

    def __init__(self, venue: CcxtVenue) -> None:
        self.venue = venue
        self._attempts = Attempts()
        self.calls = 0
        """Calls of the exchange since the session was lent."""
        self.client = venue.new_client()
        self._parse_ohlcvs = self.client.parse_ohlcvs
        self.guard = GuardedClient(
            self.client,
            venue.rate_limiter,
            venue.dialect.errors,
            venue.clock,
            other_hosts=venue.other_hosts,
            ban_seconds=venue.settings.ban_seconds,
        )

    def delay(self) -> Delay | None:
        """Return the reason for which the running query waits; None if it goes well."""
        venue = self.venue
        return self._attempts.delay(
            venue.name,
            ban_ns=venue.rate_limiter.bucket.ban_ns(),
            now_ns=venue.clock.monotonic_ns(),
            wall_ns=venue.clock.wall_ns(),
        )

    async def load_markets(self) -> None:
        """Fetch the exchange's markets.

        Raises:
            ExchangeFailure: They can't be fetched.
        """

        async def load() -> None:
            if not await self.client.load_markets(True):
                raise BadAnswer("the list of markets is empty", kind="no_markets")
            keep_main_markets(self.client)

        await self.query("its markets", load)

    @property
    def hosts(self) -> int:
        """See `GuardedClient.hosts`."""
        return self.guard.hosts

    def renew_connection(self) -> None:
        """See `GuardedClient.renew_connection`."""
        self.guard.renew_connection()

    async def now_ns(self, about_ns: int = MAX_TIME_NS) -> int:
        """Return the earlier of the exchange's time and ours, because both may be wrong; ours if it lacks a clock.

        Args:
            about_ns: A time that is to be compared with it. If it is long past, and the exchange was asked lately, it
                is not asked again.

        Raises:
            ExchangeFailure: It does not answer.
        """
        venue = self.venue
        if not self.client.has.get("fetchTime"):
            return venue.clock.wall_ns()
        if venue.known_time is not None:
            elapsed_ns = venue.clock.monotonic_ns() - venue.known_time.asked_ns
            if elapsed_ns < _TIME_AGE_NS and about_ns < venue.known_time.theirs_ns - _LONG_PAST_NS:
                return min(venue.known_time.theirs_ns + elapsed_ns, venue.clock.wall_ns())

        async def fetch() -> int:
            time_ms = await self.client.fetch_time()
            if not isinstance(time_ms, int) or time_ms <= 0:
                raise BadAnswer(f"its time is {time_ms!r}", kind="time")
            return time_ms * MS_NS

        theirs_ns = await self.query("its time", fetch)
        venue.known_time = KnownTime(theirs_ns, venue.clock.monotonic_ns())
        return min(theirs_ns, venue.clock.wall_ns())

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        """Return the exchange's valid, perhaps incomplete candles of a window, and the time of its answer.

        Args:
            skip: Open times of candles that are known to be impossible, and left out.
        Raises:
            ExchangeFailure: No attempt got a valid answer.
            ImpossibleCandle: The answers are valid except for some candles, the same each time.
        """
        if self.venue.dialect.history == "trades":
            return await self._candles_from_trades(symbol, period_seconds, window, skip)
        facts = self.venue.dialect.candles
        columns = facts.columns_of((self.client.markets or {}).get(symbol, {}))
        self.client.parse_ohlcvs = self._parse_ohlcvs if columns is None else _unparsed
        since_ms, until_ms = window.start_ns // MS_NS, (window.end_ns - 1) // MS_NS
        limit = self.venue.limits.candles

        async def fetch() -> tuple[list[Candle], int]:
            rows = await self.client.fetch_ohlcv(symbol, timeframe, since_ms, limit, {"until": until_ms})
            fetched_ns = self.venue.clock.wall_ns()
            raw_rows = self.raw_rows(symbol, rows)
            if facts.reaches_back:
                reach_ns = max(0, next_open(window.end_ns, period_seconds, -limit))
                reach = TimeRange(min(reach_ns, window.start_ns), window.end_ns)
                raw_rows = rows_from(window.start_ns, raw_rows, reach)
            if columns is not None:
                rows = raw_rows
            unit_ms = facts.time_unit_ms
            return read_candles(
                rows, window, period_seconds, columns=columns, time_unit_ms=unit_ms, skip=skip
            ), fetched_ns

        return await self.query(f"{symbol} {timeframe} {window}", fetch)

    async def day_file(self, symbol: str, period_seconds: int, day: TimeRange) -> tuple[list[Candle], int] | None:
        """Return all candles of a UTC day from the exchange's files, and the time; None without a whole file."""
        archive = self.venue.archive
        if archive is None or not (market := self.client.markets[symbol]).get("spot"):
            return None
        candles = await archive.day(str(market["id"]), period_seconds, day)
        return None if candles is None else (candles, self.venue.clock.wall_ns())

    def judge_file(self, *, tallies: bool) -> None:
        """Note whether the candles of a file agree with the exchange's coarser candles."""
        if self.venue.archive:
            self.venue.archive.judge(tallies=tallies)

    async def _candles_from_trades(
        self, symbol: str, period_seconds: int, window: TimeRange, skip: Collection[int]
    ) -> tuple[list[Candle], int]:
        settings, candles = self.venue.settings, self.venue.limits.candles
        page, answers = self.venue.trade_series.page, settings.hole_answers
        pager = TradePager(window, period_seconds, candles=candles, answers=answers, page=page, skip=skip)
        while query := pager.next_query():
            if query.spaced:
                await self.venue.sleep(settings.hole_spacing_seconds)
            await self.trades(symbol, query, pager)
        return pager.candles(), self.venue.clock.wall_ns()

    async def trades(self, symbol: str, query: PagerQuery, pager: TradePager) -> int:
        """Add the exchange's answer to a query for trades to the pager that made it; return the time of the answer.

        Raises:
            ExchangeFailure: No attempt got a valid answer.
            ImpossibleCandle: The answers hold a trade from which no candle can be built, the same each time.
        """
        text = f"{symbol} trades since {iso(query.since_ns)}"
        await self.query(text, partial(self._fetch_trades, symbol, query, pager))
        return self.venue.clock.wall_ns()

    async def _fetch_trades(self, symbol: str, query: PagerQuery, pager: TradePager) -> None:
        series, read = self.venue.trade_series, self.venue.dialect.candles.read_trades
        assert read is not None, "candles are built from trades"
        since_ms, params = series.arguments(TradeQuery(since_ns=query.since_ns))
        trades = await self.client.fetch_trades(symbol, since_ms, series.page, params)
        rows = self.raw_rows(symbol, trades)
        pager.add(read(rows, self.client.last_json_response, query.since_ns))

    def raw_rows(self, symbol: str, rows: Any) -> list[Any]:
        """Check and return the raw rows of the last answer; none if their place in it is not known."""
        raw, market_id = self.client.last_json_response, self.client.markets[symbol]["id"]
        return check_rows(self.venue.dialect.candles, raw, rows, market_id) or []

    async def query(self, text: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call until there is a valid answer or no attempt is left; errors and logs name the query by ``text``."""
        settings, name = self.venue.settings, self.venue.name
        failures = Failures(name, text, self.venue.dialect.errors, refused_attempts=settings.refused_attempts)

        def log_retry(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            assert error is not None, "tenacity sleeps only after a failure"
            log.info("query repeated", exchange=name, query=text, reason=kind_of(error), detail=str(error)[:200])
            next_ns = self.venue.clock.monotonic_ns() + int(state.upcoming_sleep * SECOND_NS)
            self._attempts.fail(brief(error), next_ns=next_ns)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(failures.is_retriable),
            stop=lambda state: not failures.has_attempts_left(state.attempt_number, settings.attempts),
            wait=random_wait(self.venue.random, settings.backoff_seconds, settings.longest_backoff_seconds),
            before_sleep=log_retry,
            sleep=self.venue.sleep,
            reraise=True,
        )
        self._attempts.begin(text)
        try:
            return await retrying(self._attempt, call)
        except (ccxt.BaseError, BadAnswer) as error:
            raise failures.final(error, retrying.statistics.get("attempt_number", 1)) from error
        finally:
            self._attempts.end()

    async def _attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make one call and count it; note a ban that the exchange announces by its own code instead of HTTP's."""
        metrics, name, facts = self.venue.metrics, self.venue.name, self.venue.dialect.errors
        self._attempts.attempt(now_ns=self.venue.clock.monotonic_ns())
        self.guard.start_call()
        self.calls += 1
        metrics.calls.labels(name).inc()
        try:
            with call_span(name, _host(self.client)), metrics.call_seconds.labels(name).time():
                return await call()
        except (ccxt.BaseError, BadAnswer, *PARSER_ERRORS) as error:
            self.guard.fail()
            answer = self.client.last_json_response
            bad = as_bad_answer(error, facts, status=self.guard.worst_status, answer=answer)
            metrics.bad_answers.labels(name, kind_of(bad or error)).inc()
            if is_slow_down(error, facts):
                self.guard.pause()
            if bad is not None:
                raise bad from error
            raise


def _unparsed(rows: Any, *arguments: object) -> Any:
    """Return rows as they came, in place of ccxt's ``parse_ohlcvs``."""
    return rows


def _rate_limit(exchange: Exchange, client: Any) -> RateLimit:
    """Return the limit of the exchanges file, or else a little less than ccxt's own."""
    if exchange.rate_per_second is None and client.rateLimit > 0:
        return RateLimit(_MARGIN * 1000 / client.rateLimit, exchange.burst)
    return RateLimit(exchange.rate_per_second or float("inf"), exchange.burst)


def _host(client: Any) -> str:
    """Return host:port of the API; of several, the one of its public calls."""
    urls = client.urls["api"]
    while not isinstance(urls, str):
        urls = urls.get("public") or urls.get("rest") or next(iter(urls.values()))
    return str(urlsplit(client.implode_hostname(urls)).netloc)
