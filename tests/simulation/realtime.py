"""The realtime chain under faults: exchange, ingestors, relay, log and table in one run, and what must hold at its end.

`RealtimeProfile` says what is drawn, `RealtimeStory` plays it, ``realtime_checks.py`` has the promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dexorder_common.model.realtime import ProvisionalSpan, RealtimeState
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as rpb
from tests.simulation.claim_watch import ClaimWatch
from tests.simulation.exchange.faults import NO_FAULTS, FaultKind, FaultPlan, FaultProfile, draw_faults
from tests.simulation.exchange.live import Exchange
from tests.simulation.exchange.trades import Executed, Tape, TapePlan, make_tape
from tests.simulation.live.ingestor import SimulatedIngestor
from tests.simulation.live.relay import SimulatedRelay
from tests.simulation.live.storage import Storage
from tests.simulation.live.venue import VENUE
from tests.simulation.loop import SECOND_NS, START_WALL_NS, WORLD
from tests.simulation.network import CallFailed
from tests.simulation.realtime_checks import breaches
from tests.simulation.realtime_evidence import Breach, Evidence, Sample, seconds
from tests.simulation.run import Run, silence

SYMBOL = "BTC/USDT"
TICKER = f"{SYMBOL}.{VENUE}"
_FAULTS_FROM_SECONDS = 90.0
_SAMPLE_SECONDS = 10.0
_PROVISIONAL_SECONDS = 1.0
_THERE_SECONDS = 60.0
"""Time after the last fault in which every trade has to be in the table, or its time is named."""
_NUMBERED, _NOT_NUMBERED = "binance", "another"


@dataclass(frozen=True)
class RealtimeProfile:
    """What the runs of a name draw.

    Attributes:
        faults: Those of the exchange.
        seconds: Length of a run.
        quiet_seconds: Time at its end without faults, in which everything has to be settled.
        per_second: Smallest and largest mean number of trades a second.
        numbered: The exchange numbers its trades.
        periods: Candles that the subscription may ask for, besides trades.
        kills: Largest number of kills of an ingestor, each in the midst of a fault or shortly after it.
        relay_kills: Largest number of kills of the relay.
        freezes: Largest number of times that an ingestor stands still for up to 40 s.
        lost_calls: Largest share of calls between the parts that are lost.
        relay_away: Longest time, in seconds, for which a relay that was killed is away.
        repeated_calls: Largest share of calls between the parts that arrive a second time, later.
    """

    name: str
    faults: FaultProfile = NO_FAULTS
    seconds: float = 1_200.0
    quiet_seconds: float = 480.0
    per_second: tuple[float, float] = (0.05, 0.3)
    numbered: bool = True
    periods: tuple[tuple[int, ...], ...] = ((60,), (60, 300), ())
    kills: int = 0
    relay_kills: int = 0
    freezes: int = 0
    lost_calls: float = 0.0
    relay_away: float = 40.0
    repeated_calls: float = 0.0


@dataclass
class RealtimeStory:
    """One run of a profile."""

    seed: int
    profile: RealtimeProfile
    samples: list[Sample] = field(default_factory=list)
    shared: Run | None = None
    """The run of which it is a part; without one it has its own."""
    named: dict[TimeRange, int] = field(default_factory=dict)
    """Spans that were ever provisional, and when they were first seen."""
    looks: list[int] = field(default_factory=list)
    absent: list[Executed] = field(default_factory=list)
    """Trades that the table lacked a minute after the last fault, though their time was not provisional then."""

    def __post_init__(self) -> None:
        profile = self.profile
        self.run = self.shared or Run(self.seed)
        self._random = self.run.generator(f"realtime {profile.name}")
        self._periods = self._random.choice(profile.periods)
        self._end_ns = int(profile.seconds * SECOND_NS)
        self._quiet_ns = self._end_ns - int(profile.quiet_seconds * SECOND_NS)
        first_ns = START_WALL_NS + int(_FAULTS_FROM_SECONDS * SECOND_NS)
        self.plan = draw_faults(profile.faults, self._random, first_ns, START_WALL_NS + self._quiet_ns)
        self.exchange = Exchange(self.run, {SYMBOL: self._tape(self.plan)}, self.plan, profile.faults.replicas)
        self.storage = Storage(self.run)
        self.watch = ClaimWatch(
            self.exchange.tapes[SYMBOL].trades,
            lambda trade: self.storage.tables.has_trade(TICKER, trade.trade_id, trade.time_ns),
            lambda: self.storage.committed_claims(TICKER),
        )
        self.relay = SimulatedRelay(self.run)
        dialect = _NUMBERED if profile.numbered else _NOT_NUMBERED
        self.ingestors = [
            SimulatedIngestor(self.run, f"ingestor-{number}", self.relay, self.exchange, dialect) for number in (1, 2)
        ]

    def _tape(self, plan: FaultPlan) -> Tape:
        drawn = TapePlan(
            START_WALL_NS - 600 * SECOND_NS,
            plan.delisting.start_ns if plan.delisting else START_WALL_NS + self._end_ns,
            self._random.uniform(*self.profile.per_second),
            self.profile.numbered,
            late=[(each.start_ns, each.end_ns, each.delay_ns) for each in plan.of(FaultKind.LATE)],
            corrected=[(each.start_ns, each.end_ns) for each in plan.of(FaultKind.CORRECTED)],
            revised=[(each.start_ns, each.end_ns, each.delay_ns) for each in plan.of(FaultKind.REVISED)],
            restarts=[each.start_ns for each in plan.of(FaultKind.RESTARTED)],
            jumps=[each.start_ns for each in plan.of(FaultKind.JUMPED)],
        )
        return make_tape(drawn, self.run.generator("tape"))

    def play(self) -> list[Breach]:
        """Run to the end; return the promises that are broken, which are the last lines of the story."""
        run = self.run
        with silence():
            try:
                self.begin()
                run.loop.run_until(lambda: False, limit_ns=self._end_ns)
                self.storage.finish()
                found = breaches(self.evidence())
            finally:
                run.loop.close()
        for breach in found:
            run.note(f"BROKEN: {breach}")
        return found

    def begin(self) -> None:
        """Start everything."""
        self.run.note(f"seed {self.seed}, profile {self.profile.name!r}, {len(self.plan.faults)} faults")
        self.run.loop.spawn(WORLD, self._world())

    def evidence(self) -> Evidence:
        """Return what the checks look at."""
        return Evidence(
            TICKER,
            SYMBOL,
            self._periods,
            self.exchange,
            self.storage,
            self.samples,
            self.profile.numbered,
            self.named,
            self.looks,
            [each.span for each in self._provisional()],
            self.watch.early,
            self.absent,
        )

    def _provisional(self) -> tuple[ProvisionalSpan, ...]:
        return self.relay.realtime.registry.provisional(TICKER) if self.relay.realtime else ()

    # --- the world

    async def _world(self) -> None:
        self.run.network.weather.lost = self._random.uniform(0.0, self.profile.lost_calls)
        if self.profile.repeated_calls:
            self.run.network.weather.repeated = self._random.uniform(0.0, self.profile.repeated_calls)
        self.exchange.start()
        self.storage.start()
        self.relay.start()
        for ingestor in self.ingestors:
            ingestor.start(skew_ns=int(self._random.uniform(-0.3, 0.3) * SECOND_NS))
        async with asyncio.TaskGroup() as tasks:
            for at_seconds, disaster in self._disasters():
                tasks.create_task(_later(at_seconds, disaster))
            tasks.create_task(self._calm_down())
            tasks.create_task(self._look_after_faults())
            tasks.create_task(self._subscribe())
            tasks.create_task(self._sample())
            tasks.create_task(self._note_provisional())

    def _disasters(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        profile, random, found = self.profile, self._random, list[tuple[float, Callable[[], Awaitable[None]]]]()
        for most, disaster in (
            (profile.kills, self._kill_ingestor),
            (profile.relay_kills, self._kill_relay),
            (profile.freezes, self._freeze_ingestor),
        ):
            for _ in range(random.randint(1, most) if most else 0):
                found.append((self._disaster_seconds(), disaster))
        return found

    def _disaster_seconds(self) -> float:
        """Draw a time in the midst of a fault or shortly after it, if there are faults."""
        if not self.plan.faults:
            return self._random.uniform(_FAULTS_FROM_SECONDS, self._quiet_ns / SECOND_NS)
        fault = self._random.choice(self.plan.faults)
        start, end = ((t - START_WALL_NS) / SECOND_NS for t in (fault.start_ns, fault.end_ns))
        return min(self._random.uniform(start, end + 20.0), self._quiet_ns / SECOND_NS)

    async def _kill_ingestor(self) -> None:
        victim = self._busy() or self._random.choice(self.ingestors)
        if victim.process.is_alive:
            victim.kill()
            await asyncio.sleep(self._random.uniform(0.5, 40.0))
            victim.start(skew_ns=int(self._random.uniform(-0.3, 0.3) * SECOND_NS))

    async def _kill_relay(self) -> None:
        if self.relay.process.is_alive:
            self.relay.kill()
            await asyncio.sleep(self._random.uniform(0.5, self.profile.relay_away))
            self.relay.start()

    async def _freeze_ingestor(self) -> None:
        victim = self._busy() or self._random.choice(self.ingestors)
        process = victim.process
        if process.is_alive and not process.is_frozen:
            self.run.note(f"{process.name}: stands still")
            self.run.loop.freeze(process)
            await asyncio.sleep(self._random.uniform(1.0, 40.0))
            self.run.note(f"{process.name}: goes on")
            self.run.loop.thaw(process)

    def _busy(self) -> SimulatedIngestor | None:
        """Return the ingestor that has the job."""
        job = self.relay.realtime.registry.job_for(TICKER) if self.relay.realtime else None
        return next((each for each in self.ingestors if job and each.name == job.ingestor), None)

    async def _calm_down(self) -> None:
        await asyncio.sleep(self._quiet_ns / SECOND_NS)
        self.run.network.weather.lost = self.run.network.weather.repeated = 0.0
        self.run.note("world: no more faults")

    async def _look_after_faults(self) -> None:
        await asyncio.sleep(self._quiet_ns / SECOND_NS)
        parts: list[SimulatedRelay | SimulatedIngestor] = [self.relay, *self.ingestors]
        while not all(part.process.is_alive and not part.process.is_frozen for part in parts):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        if self.plan.delisting is not None and not self.profile.numbered:  # nobody can be asked any more
            return
        before_ns = self.exchange.now_ns
        await asyncio.sleep(_THERE_SECONDS)
        evidence = self.evidence()
        self.absent = [
            trade
            for trade in evidence.truth
            if 0 < evidence.first_ns <= trade.time_ns and trade.published_ns <= before_ns
            if not self.watch.has_row(trade) and not evidence.is_provisional(trade)
        ]

    async def _subscribe(self) -> None:
        periods = self._periods
        params = ingest_pb2.RealtimeParams(include_ticks=True, include_ohlc=bool(periods), ohlc_period_seconds=periods)
        wanted = rpb.RealtimeSubscription(subscription_id="s", client_id="c", ticker=TICKER, params=params)
        while True:
            await asyncio.sleep(1.0)
            try:
                request = rpb.StartRealtimeRequest(subscription=wanted)
                await self.run.network.call("relay", "StartRealtime", request, timeout=5.0)
            except CallFailed:
                continue
            self.run.note(f"client: subscribed to trades and candles of {list(periods)} s")
            return

    async def _sample(self) -> None:
        """Look from time to time at what the job says of itself, as a client of ListRealtime does."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            job = self.relay.realtime.registry.job_for(TICKER) if self.relay.realtime else None
            if job is not None and 0 in job.positions:
                is_running = job.state is RealtimeState.RUNNING
                reason = job.waiting if is_running else job.error  # of a running one not why an earlier one ended
                self.samples.append(Sample(self.run.loop.now_ns, job.positions[0].settled_ns, is_running, reason))

    async def _note_provisional(self) -> None:
        while True:
            await asyncio.sleep(_PROVISIONAL_SECONDS)
            if self.relay.realtime:
                self.looks.append(self.run.loop.now_ns)
                self.watch.look((each.span for each in self._provisional()), self.exchange.now_ns)
            for each in self._provisional():
                if each.span not in self.named:
                    self.run.note(f"relay: {each.reason.name} from {seconds(each.span.start_ns)}: {each.first_id} ...")
                self.named.setdefault(each.span, self.run.loop.now_ns)


async def _later(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    await act()
