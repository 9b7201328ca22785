"""The history chain: clients, relay, ingestors, gateway, drivers and table; what goes wrong, and what must hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.time_range import TimeRange
from tests.simulation.chain import ingestor
from tests.simulation.chain.client import Asked, Client
from tests.simulation.chain.driver import Driver
from tests.simulation.chain.parts import Parts
from tests.simulation.chain.relay import Relay
from tests.simulation.chain.supervisor import causes
from tests.simulation.exchange.history import draw_world, wall_ns
from tests.simulation.history_checks import check_end, check_outcome
from tests.simulation.kafka import serve_gateway
from tests.simulation.loop import SECOND_NS, WORLD, Process
from tests.simulation.network import Weather
from tests.simulation.run import Broken, Run, silence
from tests.unit.services.ingestor.history.simulated.world import SYMBOL

TICKER = f"{SYMBOL}.SIM"
REFRESH_SHARE, CANCEL_SHARE = 0.25, 0.15
FAULTS_END, CALM_END = 2_400.0, 7_200.0
"""Seconds after which nothing fails any more, and after which everything must have ended."""


@dataclass(frozen=True)
class Plan:
    """What happens in a run.

    Attributes:
        faulty_seconds: Time after which nothing fails any more.
        faults: Number of faults at drawn times.
        death_share: Probability of a kill at each commit point.
        requests: Requests of each client.
        refresh_cancelled: A second client refreshes ranges and cancels at once.
        asks_again: The first client asks again for what was provisional.
        files: The exchange has coarser candles, and files of whole days, which are absent, true or false.
    """

    faulty_seconds: float = FAULTS_END
    faults: int = 0
    death_share: float = 0.0
    requests: int = 4
    lies: float = 0.0
    hides: bool = False
    second_driver: bool = False
    restores: bool = False
    refresh_cancelled: bool = False
    asks_again: bool = False
    files: bool = False


def drawn(seed: int) -> Plan:
    """Return the plan of a seed: half of the runs have most faults, others few."""
    dice = Random(f"plan {seed}")
    return Plan(
        faults=dice.choice([0, 2, 6, 12]),
        death_share=dice.choice([0.0, 0.01, 0.03]),
        requests=dice.randint(2, 5),
        lies=dice.choice([0.0, 0.0, 0.02]),
        hides=dice.random() < 0.4,
        second_driver=dice.random() < 0.5,
        restores=dice.random() < 0.3,
    )


@dataclass
class Chain:
    """One run of the whole chain."""

    run: Run
    plan: Plan
    clients: list[Client] = field(default_factory=list)
    is_calm: bool = False

    def __post_init__(self) -> None:
        dice = self.run.generator("world")
        self.dice = self.run.generator("scenario")
        plan = self.plan
        world = draw_world(self.run.seed, dice, plan.lies, hides=plan.hides, files=plan.files)
        self.parts = Parts(self.run, world)
        self.parts.fault_ns = wall_ns(dice.uniform(0.0, 600.0))
        self.relay = Relay(self.parts)
        supervisor = self.parts.supervisor
        supervisor.death_share = self.plan.death_share
        supervisor.before_start = self._before_start
        self.clients = [Client(self.parts, name, self._ended) for name in ("alice", "bob")]
        self._restores = 0

    def start(self) -> None:
        """Start all processes and the scenario."""
        supervisor, parts = self.parts.supervisor, self.parts
        skew = [round(self.dice.uniform(-3, 3) * SECOND_NS) if self.plan.faults else 0 for _ in range(5)]
        supervisor.start("gateway", self._gateway)
        supervisor.start("relay", self.relay.live, skew_ns=skew[0])
        for number in (1, 2):
            supervisor.start(f"ingestor-{number}", lambda process: ingestor.live(parts, process), skew_ns=skew[number])
        for number in range(1, 3 if self.plan.second_driver else 2):
            name = f"driver-{number}"
            supervisor.start(name, lambda process: Driver(parts, process).live(), skew_ns=skew[2 + number])
        for client in self.clients:
            process = Process(client.name)
            for work in (client.live(), self._script(client)):
                self.run.loop.spawn(process, work).add_done_callback(self._client_ended)
        self.run.loop.spawn(WORLD, self._faults())
        dice = self.run.generator("log")
        for _ in range(dice.randint(0, 4)):
            self.run.loop.call_later(dice.uniform(0.0, self.plan.faulty_seconds), self._grow)

    def until_calm(self) -> None:
        """Run to the end, and check it."""
        loop = self.run.loop
        loop.run_until(self._is_broken, limit_ns=round(self.plan.faulty_seconds * SECOND_NS))
        self._raise()
        loop.run_until(lambda: self._is_broken() or self._is_done(), limit_ns=round(CALM_END * SECOND_NS))
        self._raise()
        check_end(self)

    # ---- scenario

    async def _gateway(self, process: Process) -> None:
        serve_gateway(self.run.network, process, self.parts.log, self.parts.supervisor.moment)
        await _for_ever()

    def _grow(self) -> None:
        self.run.note("the topic has another partition")
        self.parts.log.grow()

    async def _script(self, client: Client) -> None:
        dice = self.run.generator(client.name)
        periods = self.parts.world.periods
        for number in range(1, self.plan.requests + 1):
            await asyncio.sleep(dice.uniform(1.0, 2 * 0.8 * self.plan.faulty_seconds / self.plan.requests / 2))
            first = dice.randrange(0, periods - 20)
            span = self._span(first, min(periods, first + dice.randint(20, 400)))
            refresh = dice.random() < REFRESH_SHARE and not self.plan.asks_again
            asked = await client.submit(self._request(client, str(number), span, refresh=refresh))
            if dice.random() < REFRESH_SHARE and not self.plan.asks_again:
                await asyncio.sleep(dice.uniform(0.0, 3.0))
                await client.submit(self._request(client, f"{number}-refresh", span, refresh=True))
            if self.plan.asks_again:
                await asyncio.sleep(dice.uniform(60.0, 90.0))
                await client.submit(self._request(client, f"{number}-again", span))
            elif dice.random() < CANCEL_SHARE and not refresh:
                await asyncio.sleep(dice.uniform(0.0, 5.0))
                await client.cancel(asked)
        if self.plan.refresh_cancelled and client is self.clients[1]:
            await asyncio.sleep(300.0)
            asked = await client.submit(self._request(client, "refresh", self._span(0, periods), refresh=True))
            await client.cancel(asked)

    def _request(self, client: Client, name: str, span: TimeRange, *, refresh: bool = False) -> HistoryRequest:
        period = self.parts.world.period_seconds
        return HistoryRequest(
            f"{client.name}-{name}", TICKER, span.start_ns, span.end_ns, period, client_id=client.name, refresh=refresh
        )

    def _span(self, first: int, end: int) -> TimeRange:
        return TimeRange(self.parts.world.open_ns(first), self.parts.world.open_ns(end))

    async def _faults(self) -> None:
        times = sorted(self.dice.uniform(5.0, self.plan.faulty_seconds - 60) for _ in range(self.plan.faults))
        now = 0.0
        for at in times:
            await asyncio.sleep(at - now)
            now = at
            await self._fault()
        await asyncio.sleep(self.plan.faulty_seconds - now - 1.0)
        self.is_calm = True
        self.parts.supervisor.death_share = 0.0
        self._clear()
        self.run.note("no more faults")

    async def _fault(self) -> None:
        dice, supervisor = self.dice, self.parts.supervisor
        names = supervisor.names()
        name = dice.choice(names) if names else "relay"
        kind = dice.choice(["kill", "kill", "freeze", "weather", "cut", "disk", "backup", "exchange"])
        if kind == "kill":
            supervisor.kill(name, "at a random time")
        elif kind == "freeze":
            supervisor.freeze(name, dice.uniform(1.0, 40.0))
        elif kind == "weather":
            delay, lost = (0.001, dice.uniform(0.01, 2.0)), dice.uniform(0.0, 0.3)
            weather = Weather(delay, lost, cut=self._weather.cut, repeated=lost / 3)
            self._for(dice.uniform(5, 90), "bad weather", lambda: self._set_weather(weather), self._good_weather)
        elif kind == "cut":
            other = dice.choice(["relay", "gateway"])
            pair = frozenset((name, other))
            if name != other:
                self._for(
                    dice.uniform(5, 90),
                    f"no link {name} - {other}",
                    partial(self._cut, pair),
                    partial(self._join, pair),
                )
        elif kind == "exchange":
            self.parts.on_work = self._strike
        elif kind == "disk":
            if dice.random() < 0.5:
                self._for(dice.uniform(1, 40), "full disk", partial(self._fill, True), partial(self._fill, False))
            else:
                self._for(dice.uniform(1, 20), "broken disk", partial(self._break, True), partial(self._break, False))
        elif self.relay.disk.backup is None:
            self.relay.disk.copy()
            self.run.note("the relay's file is copied")
        elif self.plan.restores:
            self._restores += 1
            supervisor.kill("relay", "for a restore of its file")

    def _strike(self, name: str) -> None:
        """Let an ingestor that begins to work stand still, perhaps beyond its lease; its connections are dead then."""

        async def strike() -> None:
            await asyncio.sleep(self.dice.uniform(0.0, 0.5))
            seconds = self.dice.uniform(1.0, 40.0)
            self.run.note(f"the exchange refuses {name}")
            self.parts.refusing.add(name)
            self.parts.supervisor.freeze(name, seconds)
            await asyncio.sleep(seconds + self.dice.uniform(0.1, 20.0))
            self.parts.refusing.discard(name)

        self.parts.on_work = lambda name: None
        self.run.loop.spawn(WORLD, strike())

    @property
    def restored(self) -> bool:
        """Whether the relay had an older file at any time."""
        return bool(self.clients[0].restored_ns)

    def _before_start(self, name: str) -> None:
        if name == "relay" and self._restores:
            self._restores = 0
            self.relay.disk.restore()
            self.run.note("the relay's file is the older copy")
            for client in self.clients:
                client.restored_ns.append(self.run.loop.now_ns)

    @property
    def _weather(self) -> Weather:
        return self.run.network.weather

    def _set_weather(self, weather: Weather) -> None:
        self.run.network.weather = weather

    def _good_weather(self) -> None:
        self.run.network.weather = Weather(cut=self._weather.cut)

    def _cut(self, pair: frozenset[str]) -> None:
        self._weather.cut.add(pair)
        self.parts.wires.drop_between(pair)

    def _join(self, pair: frozenset[str]) -> None:
        self._weather.cut.discard(pair)

    def _fill(self, is_full: bool) -> None:
        self.relay.disk.is_full = is_full

    def _break(self, is_broken: bool) -> None:
        self.relay.disk.is_broken = is_broken

    def _clear(self) -> None:
        self.run.network.weather = Weather()
        self.parts.on_work = lambda name: None
        self.parts.refusing.clear()
        self.relay.disk.is_full = self.relay.disk.is_broken = False

    def _for(self, seconds: float, what: str, begin: object, end: object) -> None:
        async def last() -> None:
            self.run.note(f"{what} for {seconds:.0f} s")
            begin()  # type: ignore[operator]
            await asyncio.sleep(seconds)
            end()  # type: ignore[operator]
            self.run.note(f"{what}: over")

        self.run.loop.spawn(WORLD, last())

    # ---- checks

    def _client_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self.run.broken is None:
            with suppress(Broken):
                self.run.fail(f"a client failed: {causes(error)}")

    def _ended(self, asked: Asked) -> None:
        check_outcome(self, asked)

    def _is_done(self) -> bool:
        if not self.is_calm:
            return False
        engine = self.relay.engine
        if engine is None or engine.context.state.requests:
            return False
        ended = all(each.notification for client in self.clients for each in client.asked.values())
        return ended and not self.provisional()

    def known(self, request_id: str) -> Asked | None:
        """Return a request of a client."""
        return next((c.asked[request_id] for c in self.clients if request_id in c.asked), None)

    def provisional(self) -> list[TimeRange]:
        """Return the provisional ranges that the relay knows."""
        engine = self.relay.engine
        if engine is None:
            return []
        state = engine.context.state
        return [span for series in state.coverage for span in state.provisional.within(series, self.parts.world.span)]

    def _is_broken(self) -> bool:
        return self.run.broken is not None

    def _raise(self) -> None:
        if self.run.broken is not None:
            raise self.run.broken


def simulate(seed: int, plan: Plan | None = None) -> Run:
    """Run a seed; Broken with the promise that did not hold."""
    run = Run(seed)
    with silence():
        chain = Chain(run, plan or drawn(seed))
        try:
            chain.start()
            chain.until_calm()
        finally:
            run.loop.close()
    return run


def simulate_files(seed: int) -> Run:
    """Run a seed whose exchange has files of whole days."""
    return simulate(seed, replace(drawn(seed), files=True))


async def _for_ever() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await never
