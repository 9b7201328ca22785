"""HTTP server around the dialects: control paths, faults of requests, start and stop."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

import orjson
import structlog
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from dexorder_common.config import split_address
from dexorder_common.packages import install_command
from dexorder_exchange_sim import day_files
from dexorder_exchange_sim.candles import Source
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.dialects import binance, bybit
from dexorder_exchange_sim.dialects.dialect import Query, SimAnswer, SimDialect, SimRefusal, Tapes
from dexorder_exchange_sim.faults import (
    BANS,
    BODIES,
    REPLICAS,
    SILENCES,
    STATUSES,
    FaultPlan,
    FaultRule,
    Strike,
)
from dexorder_exchange_sim.futures import FUTURES
from dexorder_exchange_sim.instruments import extra_instruments
from dexorder_exchange_sim.sockets import Sockets, end
from dexorder_exchange_sim.spoiling import spoil
from dexorder_exchange_sim.stats import Stats
from dexorder_exchange_sim.venue import ClockChange, IdsChange, SimClock, SimVenue

_RULES = TypeAdapter(tuple[FaultRule, ...])
_DIALECTS = (binance.DIALECT, bybit.DIALECT)
_log = structlog.get_logger(__name__)


def _recorded(settings: SimSettings) -> list[Source]:
    """Return the recorded markets. Only they need pyarrow, which the extra ``ingestor`` is without."""
    if not settings.recorded:
        return []
    try:
        from dexorder_exchange_sim.recorded import load
    except ModuleNotFoundError as error:
        raise ValueError(f"recorded files need {error.name}: {install_command('lake')}") from None
    return load(settings.recorded)


class Simulator:
    """Simulated exchange: its markets, its clock, its fault rules and its statistics.

    Args:
        dialects: Protocols that it speaks; the first one also answers for unknown paths.
    Raises:
        ValueError: A recorded file cannot be served, or a fault rule names an unknown market.
    """

    def __init__(self, settings: SimSettings, dialects: Sequence[SimDialect] = _DIALECTS) -> None:
        self._settings = settings
        self._dialects = dialects
        self.clock = SimClock(settings.now_ns, settings.speed)
        extra = extra_instruments(settings.markets, busy_seconds=settings.markets_busy_seconds)
        self.venue = SimVenue(
            _recorded(settings),
            seed=settings.seed,
            extra=extra,
            dark_pools=[instrument for dialect in dialects for instrument in dialect.dark_pools],
            funding=settings.funding,
            futures=FUTURES if settings.futures else (),
        )
        self.plan = self._plan(settings.faults)
        self.stats = Stats()
        self.sockets = Sockets(Tapes(self.venue, self.clock), self)
        self._connections: WeakKeyDictionary[asyncio.Transport, int] = WeakKeyDictionary()
        self._connected = 0

    def app(self) -> web.Application:
        """Return the routes: control paths; everything else goes to the dialects."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/sim/stats", self._get_stats)
        app.router.add_delete("/sim/stats", self._reset_stats)
        app.router.add_get("/sim/faults", self._get_faults)
        app.router.add_post("/sim/faults", self._set_faults)
        app.router.add_post("/sim/clock", self._set_clock)
        app.router.add_post("/sim/ids", self._begin_ids_again)
        app.router.add_get("/sim/sockets", self._get_sockets)
        app.router.add_post("/sim/sockets", self._strike_sockets)
        app.router.add_get(day_files.PATH, self._day_file)
        app.router.add_get("/{path:.*}", self._exchange)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok", "markets": len(self.venue.sources)})

    async def _get_stats(self, request: web.Request) -> web.Response:
        return _json(self.stats.snapshot())

    async def _reset_stats(self, request: web.Request) -> web.Response:
        self.stats = Stats()
        return _json(self.stats.snapshot())

    async def _get_faults(self, request: web.Request) -> web.Response:
        return _json([rule.model_dump() for rule in self.plan.rules])

    async def _set_faults(self, request: web.Request) -> web.Response:
        """Replace all rules; ``[]`` clears them. Each rule's counters start at 0."""
        try:
            self.plan = self._plan(_RULES.validate_json(await request.read()))
        except (ValidationError, ValueError) as error:
            return _json({"error": str(error)}, status=400)
        return await self._get_faults(request)

    def _plan(self, rules: Sequence[FaultRule]) -> FaultPlan:
        for rule in rules:
            if rule.other is not None and not any(dialect.knows(rule.other, self.venue) for dialect in self._dialects):
                raise ValueError(f"other: {rule.other!r} is not a market of this exchange")
        history = [path for dialect in self._dialects for path in dialect.history]
        return FaultPlan(rules, seed=self._settings.seed, history=history)

    async def _get_sockets(self, request: web.Request) -> web.Response:
        return _json(self.sockets.describe())

    async def _strike_sockets(self, request: web.Request) -> web.Response:
        """Apply a fault to all open sockets now; the body is a rule with a kind of `faults.AT_ONCE`."""
        try:
            rule = FaultRule.model_validate_json(await request.read())
            return _json({"sockets": self.sockets.strike(rule)})
        except ValueError as error:
            return _json({"error": str(error)}, status=400)

    async def _set_clock(self, request: web.Request) -> web.Response:
        """Change the clock; see `ClockChange`."""
        try:
            change = ClockChange.model_validate_json(await request.read())
        except ValidationError as error:
            return _json({"error": str(error)}, status=400)
        change.apply(self.clock)
        return _json({"now_ns": self.clock.now_ns(), "speed": self.clock.speed})

    async def _begin_ids_again(self, request: web.Request) -> web.Response:
        """Let the ids of a market's aggregates start again; see `IdsChange`."""
        try:
            change, now_ns = IdsChange.model_validate_json(await request.read()), self.clock.now_ns()
            self.venue.begin_ids_again(change.symbol, now_ns)
        except ValueError as error:
            return _json({"error": str(error)}, status=400)
        return _json({"time_ns": now_ns})

    async def _day_file(self, request: web.Request) -> web.Response:
        """Return a day of candles as Binance's archive has it, without faults, rate and weight."""
        self.stats.request(request.path, now_s=time.monotonic())
        content = day_files.day_file(self.venue, request.match_info, self.clock.now_ns())
        return web.Response(body=content, status=200 if content else 404, content_type="application/zip")

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        calls = self.stats.request(request.path, now_s=time.monotonic())
        if self._settings.call_limit and calls > self._settings.call_limit:
            return self._over_limit(retry_after_s=1)
        if self._settings.latency_ms:
            await asyncio.sleep(self._settings.latency_ms / 1000)
        dialect = next((each for each in self._dialects if request.path.startswith(each.prefixes)), self._dialects[0])
        answer = self._ask(dialect, request.path, request.query)
        window_ns = answer.history.window_ns if answer.history else None
        market, now_ns = dialect.market(request.query, self.venue), self.clock.now_ns()
        connection = self._connection(request.transport) if request.transport else 0
        strike = self.plan.pick(request.path, market, window_ns, connection=connection, now_ns=now_ns)
        if strike is None:
            return await self.sockets.serve(request, dialect) if is_socket else self._send(answer)
        self.stats.fault(strike.rule.kind)
        if strike.rule.kind in SILENCES:
            return await _keep_silent(request, strike.rule, self._send(answer))
        if strike.rule.kind in REPLICAS:
            return self._send(self._ask_replica(strike.rule, dialect, request.path, request.query))
        if strike.rule.kind == "other_symbol":
            query = dialect.of_other(request.query, self.venue, strike.rule.other)
            return self._send(self._ask(dialect, request.path, query))
        return self._spoiled(strike, dialect, answer)

    def forget_connections(self) -> None:
        """Number the connections again: the open ones too, in the order of their next requests."""
        self._connections.clear()
        self._connected = 0

    def _connection(self, transport: asyncio.Transport) -> int:
        """Return the number of a connection, from 0 in their order."""
        if transport not in self._connections:
            self._connections[transport] = self._connected
            self._connected += 1
        return self._connections[transport]

    def _ask_replica(self, rule: FaultRule, dialect: SimDialect, path: str, query: Query) -> SimAnswer:
        """Return the answer of a replica that is behind, or lacks rows that open in the rule's span."""
        if rule.span is None or rule.kind == "behind":
            return self._ask(dialect, path, query, now_ns=max(0, self.clock.now_ns() - int(rule.lag_s * 1e9)))
        return self._ask(dialect, path, query, venue=self.venue.without(rule.span, rule.coarser))

    def _ask(
        self, dialect: SimDialect, path: str, query: Query, *, venue: SimVenue | None = None, now_ns: int | None = None
    ) -> SimAnswer:
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        try:
            answer = dialect.answer(path, query, venue or self.venue, now_ns)
        except SimRefusal as refusal:
            return refusal.answer
        return answer or SimAnswer({"code": -1000, "msg": f"no such path: {path}"}, weight=0, status=404)

    def _spoiled(self, strike: Strike, dialect: SimDialect, answer: SimAnswer) -> web.Response:
        rule, history = strike.rule, answer.history
        if rule.kind in STATUSES:
            return self._refuse(rule, dialect)
        if rule.kind == "empty" and history is not None:
            return _json(history.nothing)
        instead = dialect.bodies.get(rule.kind) or BODIES.get(rule.kind)
        if instead is not None:
            return web.Response(text=instead[1], content_type=instead[0])
        if history is not None:
            answer = replace(answer, body=history.wrap(spoil(strike, history)))
        response = self._send(answer)
        if rule.kind == "cut_json" and isinstance(response.body, bytes):
            response.body = response.body[: len(response.body) // 2]
        return response

    def _refuse(self, rule: FaultRule, dialect: SimDialect) -> web.Response:
        status, *usual = STATUSES[rule.kind]
        content_type, body = dialect.bodies.get(rule.kind, usual)
        response = web.Response(status=status, text=body, content_type=content_type)
        if rule.kind in BANS:
            response.headers["Retry-After"] = str(rule.retry_after_s)
            self.stats.ban(rule.retry_after_s, now_s=time.monotonic())
        return response

    def _over_limit(self, *, retry_after_s: int) -> web.Response:
        self.stats.fault("over_limit")
        return self._refuse(FaultRule(kind="http_429", retry_after_s=retry_after_s), self._dialects[0])

    def _send(self, answer: SimAnswer) -> web.Response:
        """Return the response; count its weight, report it, and refuse requests above the limit, if there is one."""
        response = _json(answer.body, status=answer.status)
        if not answer.weight:
            return response
        now_s = time.time()
        used = self.stats.weigh(answer.weight, now_s=now_s)
        limit = self._settings.weight_limit
        if limit and used > limit:
            response = self._over_limit(retry_after_s=math.ceil(60 - now_s % 60))
        for name in ("X-MBX-USED-WEIGHT", "X-MBX-USED-WEIGHT-1M"):
            response.headers[name] = str(used)
        return response


async def _keep_silent(request: web.Request, rule: FaultRule, answer: web.Response) -> web.StreamResponse:
    """Apply a fault of `faults.SILENCES`; the returned response never arrives completely.

    ``hang`` stays silent; ``stall`` sends the head and half of the body, ``drip`` the head and a byte every ``drip_s``.
    ``reset`` answers with a TCP reset.
    """
    body = answer.body if isinstance(answer.body, bytes) else b""
    sent: web.StreamResponse = web.Response()
    if rule.kind in ("stall", "drip"):
        sent = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await sent.prepare(request)
    if rule.kind == "drip":
        for byte in body:
            await sent.write(bytes([byte]))
            await asyncio.sleep(rule.drip_s)
    if rule.kind == "stall":
        await sent.write(body[: len(body) // 2])
    if rule.kind in ("hang", "stall"):
        await asyncio.sleep(rule.hang_s)
    if request.transport is not None:
        end(request.transport, reset=rule.kind == "reset")
    return sent


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@asynccontextmanager
async def serve(settings: SimSettings, simulator: Simulator | None = None) -> AsyncIterator[str]:
    """Serve in a context; yield the base URL, ``http://127.0.0.1:9000``. The end aborts open requests."""
    simulator = simulator or Simulator(settings)
    # the timeout is the wait for open requests; 0 would mean forever
    runner = web.AppRunner(simulator.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *split_address(settings.listen))
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def run(settings: SimSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(settings) as url:
        _log.info("exchange_sim.listening", url=url)
        await stop.wait()
