"""The ingestor's fetcher with unmodified ccxt against the simulated exchange, in virtual time.

Exchange and ingestor run in one process and speak HTTP over loopback. Both have the same clock, which moves by
`CALL_NS` at each request and by each wait of the ingestor, so faults of ten minutes are measured in a second.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ccxt.async_support as ccxt
from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter

from dexorder_common.exchanges import Exchange, override_urls
from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.candles import CandleRequest
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.faults import FaultPlan, FaultRule
from dexorder_exchange_sim.periods import DAY, PERIODS
from dexorder_exchange_sim.server import Simulator
from dexorder_exchange_sim.stats import Stats
from dexorder_exchange_sim.venue import SimClock
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.answer_shape import AnswerShapes
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.history.fetch import fetch_candles
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage
from dexorder_ingestor.metrics import IngestorMetrics

CALL_NS = SECOND_NS // 10
_RULES = TypeAdapter(tuple[FaultRule, ...])
_SMALL_CALL = 40
_MOST_LOOP_CALLS = 1_000
_KLINES = "/api/v3/klines"


class SimulatedTime:
    """The exchange's clock as the ingestor's."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return self._clock.now_ns()

    def monotonic_ns(self) -> int:
        """Return the same; the clock never goes back."""
        return self._clock.now_ns()

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self._clock.advance(round(seconds * SECOND_NS))


@dataclass
class Fetched:
    """Pages and missing parts of one dispatch, and the calls for candles that it made."""

    pages: list[CandlePage] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    calls: int = 0

    @property
    def candles(self) -> list[Candle]:
        """Candles of all pages."""
        return [candle for page in self.pages for candle in page.candles]


class VirtualWorld:
    """A simulated exchange and an ingestor's venue of it."""

    def __init__(self, simulator: Simulator, url: str, folder: Path, *, checksums: bool) -> None:
        """Open the venue.

        Args:
            checksums: Use the row of Binance; otherwise that of an exchange without coarser candles whose answers
                cover narrow windows.
        """
        self.simulator = simulator
        self.time = SimulatedTime(simulator.clock)
        self._dispatches = 0
        options = {"fetchMarkets": {"types": ["spot"]}}
        self.exchange = Exchange(ccxt="binance", rest_url=url, options=options, rate_per_second=1e6)
        self.venue = CcxtVenue(
            "SIM",
            self.exchange,
            IngestorSettings(rate_limit_dir=folder),
            IngestorMetrics(CollectorRegistry()),
            self.time,
            sleep=self.time.sleep,
        )
        if not checksums:
            facts = replace(self.venue.dialect.candles, volume_tolerance=None, wide=False)
            self.venue.dialect, self.venue.limits = replace(self.venue.dialect, candles=facts), facts.limits

    def set_faults(self, rules: Sequence[dict[str, Any]], *, seed: int = 1) -> None:
        """Replace the rules; connections are numbered anew, the open one first."""
        self.simulator.plan = FaultPlan(_RULES.validate_python(list(rules)), seed=seed)
        self.simulator.forget_connections()
        self.simulator.stats = Stats()

    def calls(self) -> int:
        """Return the number of calls for candles since `set_faults`."""
        return int(self.simulator.stats.snapshot()["requests"].get(_KLINES, 0))

    def truth(self, symbol: str, period: str, span: TimeRange) -> dict[int, tuple[float, ...]]:
        """Return the exchange's candles of a range, by open time."""
        source = self.simulator.venue.sources[symbol.replace("/", "")]
        end_ms, step = span.end_ns // 1_000_000 - 1, PERIODS[period]
        limit = (span.end_ns - span.start_ns) // ((step.step_s or DAY) * SECOND_NS) + 1
        query = CandleRequest(span.start_ns // 1_000_000, end_ms, limit)
        rows = source.candles(step, query, now_ns=self.time.wall_ns())
        columns = (column.tolist() for column in rows.columns())
        return {open_s * SECOND_NS: tuple(values) for open_s, *values in zip(*columns, strict=True)}

    async def fetch(
        self, symbol: str, period_seconds: int, span: TimeRange, agreement: Agreement, *, request_id: str = ""
    ) -> Fetched:
        """Run one dispatch as a new ingestor does, except for what the agreement remembers.

        Args:
            request_id: Of a request with several dispatches; default a new one.
        """
        self.venue.shapes = AnswerShapes()
        found, before = Fetched(), self.calls()
        self._dispatches += 1
        request_id = request_id or f"r{self._dispatches}"
        dispatch = Dispatch(f"j{self._dispatches}", request_id, Series(f"{symbol}.SIM", period_seconds), span)

        async def put(page: CandlePage) -> None:
            found.pages.append(page)

        async with self.venue.session() as session:
            found.missing = await fetch_candles(dispatch, self.venue, session, agreement, put)
        found.calls = self.calls() - before
        return found

    async def ccxt_loop(self, symbol: str, period: str, span: TimeRange) -> tuple[list[list[float]], int, str]:
        """Fetch as ccxt's tutorials do; return the rows of the range, the number of calls and the end."""
        client = ccxt.binance({"enableRateLimit": False, "options": dict(self.exchange.options)})
        client.urls["api"] = override_urls(client.urls["api"], self.exchange)
        before, rows, end = self.calls(), list[list[float]](), ""
        since_ms, end_ms, step_ms = (
            span.start_ns // 1_000_000,
            span.end_ns // 1_000_000,
            max(1, PERIODS[period].step_s * 1_000),
        )
        try:
            client.set_markets_from_exchange(self.venue._markets_of)
            while since_ms < end_ms and self.calls() - before < _MOST_LOOP_CALLS:
                page = await client.fetch_ohlcv(symbol, period, since_ms, 1_000)
                if not page:
                    break
                rows += page
                since_ms = page[-1][0] + step_ms
        except ccxt.BaseError as error:
            end = type(error).__name__
        finally:
            await client.close()
        return [row for row in rows if row[0] < end_ms], self.calls() - before, end


@asynccontextmanager
async def virtual_world(folder: Path, *, checksums: bool = True, **settings: Any) -> AsyncIterator[VirtualWorld]:
    """Serve the exchange and open the venue in a context; keywords are settings of the exchange."""
    simulator = Simulator(SimSettings(listen="127.0.0.1:0", speed=0, **settings))
    app = simulator.app()
    app.middlewares.append(_passing_time(simulator))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        world = VirtualWorld(simulator, f"http://{host}:{port}", folder, checksums=checksums)
        try:
            yield world
        finally:
            await world.venue.close()
    finally:
        await runner.cleanup()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _passing_time(simulator: Simulator) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        simulator.clock.advance(CALL_NS)
        return await handler(request)

    return middleware


def remaining(span: TimeRange, done: Sequence[TimeRange]) -> list[TimeRange]:
    """Return the parts of a range that are not done."""
    return subtract([span], done)


async def experienced(world: VirtualWorld, answers: int, symbol: str, end_ns: int) -> Agreement:
    """Return the agreement of an ingestor that has had so many true answers, to small calls without checksums."""
    agreement, venue = Agreement(), world.venue
    dialect, limits = venue.dialect, venue.limits
    venue.dialect = replace(dialect, candles=replace(dialect.candles, volume_tolerance=None))
    venue.limits = replace(limits, candles=_SMALL_CALL, wide=False)
    world.set_faults([])
    while world.calls() < answers:
        span = TimeRange(end_ns - answers * _SMALL_CALL // 4 * 60 * SECOND_NS, end_ns)
        await world.fetch(symbol, 60, span, agreement)
        end_ns = span.start_ns
    venue.dialect, venue.limits = dialect, limits
    return agreement


def copied(agreement: Agreement) -> Agreement:
    """Return an independent copy."""
    return copy.deepcopy(agreement)
