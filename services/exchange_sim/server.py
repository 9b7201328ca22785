"""The HTTP server around the dialect: control paths, faults, start and stop."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import structlog
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from services.exchange_sim import recorded
from services.exchange_sim.config import SimSettings
from services.exchange_sim.dialects import binance
from services.exchange_sim.faults import BANS, BODIES, SILENCES, STATUSES, FaultPlan, FaultRule, spoil
from services.exchange_sim.silence import keep_silent
from services.exchange_sim.stats import Stats
from services.exchange_sim.venue import Clock, Venue

_RULES = TypeAdapter(tuple[FaultRule, ...])
_NS = 1_000_000_000
_log = structlog.get_logger(__name__)


class Simulator:
    """One exchange: its markets, its clock, the faults in force and what it has counted."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self.clock = Clock(settings.now_ns)
        self.venue = Venue(recorded.load(settings.recorded), seed=settings.seed)
        self.plan = FaultPlan(settings.faults, seed=settings.seed)
        self.stats = Stats()

    def app(self) -> web.Application:
        """The routes: control paths, and everything else to the dialect."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/sim/stats", self._get_stats)
        app.router.add_delete("/sim/stats", self._reset_stats)
        app.router.add_get("/sim/faults", self._get_faults)
        app.router.add_post("/sim/faults", self._set_faults)
        app.router.add_post("/sim/clock", self._set_clock)
        app.router.add_get("/{path:.*}", self._exchange)
        return app

    # Control

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
        """Replace all rules; ``[]`` clears them. Each rule's count starts anew."""
        try:
            rules = _RULES.validate_json(await request.read())
        except ValidationError as error:
            return _json({"error": str(error)}, status=400)
        self.plan = FaultPlan(rules, seed=self._settings.seed)
        return await self._get_faults(request)

    async def _set_clock(self, request: web.Request) -> web.Response:
        """``{"now_ns": N}``: stand still there; ``{"now_ns": null}``: the machine's; ``{"advance_ns": N}`` moves it."""
        try:
            body = orjson.loads(await request.read())
            now_ns = self.clock.now_ns() + int(body["advance_ns"]) if "advance_ns" in body else body["now_ns"]
        except (ValueError, KeyError, TypeError) as error:
            return _json({"error": f"now_ns or advance_ns is needed: {error}"}, status=400)
        if now_ns is not None and not (isinstance(now_ns, int) and 0 <= now_ns < 2**63):
            return _json({"error": f"now_ns {now_ns!r} is out of range"}, status=400)
        self.clock.set(now_ns)
        return _json({"now_ns": self.clock.now_ns()})

    # The exchange

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        calls = self.stats.request(request.path, now_s=time.monotonic())
        if self._settings.call_limit and calls > self._settings.call_limit:
            return self._over_limit(retry_after_s=1)
        if self._settings.latency_ms:
            await asyncio.sleep(self._settings.latency_ms / 1000)
        rule = self.plan.pick(request.path, request.query.get("symbol"))
        if rule is None:
            return self._answer(request, None)
        self.stats.fault(rule.kind)
        if rule.kind in SILENCES:
            return await keep_silent(request, rule, self._answer(request, None))
        if rule.kind in STATUSES:
            return self._refuse(rule)
        if rule.kind in BODIES:
            content_type, body = BODIES[rule.kind]
            return web.Response(text=body, content_type=content_type)
        return self._answer(request, rule)

    def _refuse(self, rule: FaultRule) -> web.Response:
        status, content_type, body = STATUSES[rule.kind]
        response = web.Response(status=status, text=body, content_type=content_type)
        if rule.kind in BANS:
            response.headers["Retry-After"] = str(rule.retry_after_s)
            self.stats.ban(rule.retry_after_s, now_s=time.monotonic())
        return response

    def _over_limit(self, *, retry_after_s: int) -> web.Response:
        self.stats.fault("over_limit")
        return self._refuse(FaultRule(kind="http_429", retry_after_s=retry_after_s))

    def _answer(self, request: web.Request, rule: FaultRule | None) -> web.Response:
        now_ns = self.clock.now_ns()
        try:
            answer = binance.answer(request.path, request.query, self.venue, now_ns=now_ns)
        except binance.BinanceError as error:
            return self._weighed(_json(error.body, status=400), 1)
        if answer is None:
            return _json({"code": -1000, "msg": f"no such path: {request.path}"}, status=404)
        body = answer.body
        if rule is not None and answer.period is not None:
            running_s = answer.period.open_s(answer.period.index(now_ns // _NS))
            body = spoil(rule, body, running_ms=running_s * 1000)
        response = _json(body)
        if rule is not None and rule.kind == "cut_json" and isinstance(response.body, bytes):
            response.body = response.body[: len(response.body) // 2]
        return self._weighed(response, answer.weight)

    def _weighed(self, response: web.Response, weight: int) -> web.Response:
        """Count the weight, say it, and refuse beyond the limit if there is one."""
        now_s = time.time()
        used = self.stats.weigh(weight, now_s=now_s)
        limit = self._settings.weight_limit
        if limit and used > limit:
            response = self._over_limit(retry_after_s=math.ceil(60 - now_s % 60))
        for name in ("X-MBX-USED-WEIGHT", "X-MBX-USED-WEIGHT-1M"):
            response.headers[name] = str(used)
        return response


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@asynccontextmanager
async def serve(settings: SimSettings) -> AsyncIterator[str]:
    """Serve until the block ends; gives the base URL, ``http://127.0.0.1:9000``. The end cuts open requests off."""
    simulator = Simulator(settings)
    # The timeout is the wait for open requests; 0 would mean for ever.
    runner = web.AppRunner(simulator.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
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
