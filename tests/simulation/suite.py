"""The suite under one clock and one seed: history, realtime, triggers and user events, each with its faults.

The parts share the loop, the network with its bad weather, and the names of processes: a link that is cut or a call
that is lost concerns all that run there. Records of trades feed the triggers. Ends of requests, and what triggers fire,
become user events, which a container publishes; its promises hold for them as for all others.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.user_events import Priority
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.simulation.chain.client import Asked
from tests.simulation.events import EventsRun
from tests.simulation.history import Chain, drawn
from tests.simulation.loop import SECOND_NS, WORLD
from tests.simulation.network import CallFailed
from tests.simulation.realtime import TICKER, RealtimeStory
from tests.simulation.realtime_checks import breaches
from tests.simulation.realtime_evidence import Rule
from tests.simulation.realtime_profiles import HOLD
from tests.simulation.run import Run, silence
from tests.simulation.triggers import TriggersRun

TRIGGER = "on-trades"
_LOOK_SECONDS = 5.0
_FOLLOWER, _CONTAINER = "ann", "bot-0"
_FAULTY_SECONDS, _QUIET_SECONDS = 720.0, 480.0
"""Time in which anything may fail, and time after it at whose end trades have to be settled. It is longer for faults of
trades that need more: what REST corrects late is found by candles, ten minutes after their end."""


class Suite:
    """One run of everything."""

    def __init__(self, seed: int) -> None:
        self.run = run = Run(seed)
        profile = Random(f"{seed} profile").choice(HOLD)
        quiet_seconds = max(_QUIET_SECONDS, profile.quiet_seconds)
        self._seconds = _FAULTY_SECONDS + quiet_seconds
        profile = replace(profile, seconds=self._seconds, quiet_seconds=quiet_seconds)
        self.history = Chain(run, replace(drawn(seed), faulty_seconds=_FAULTY_SECONDS))
        self.realtime = RealtimeStory(seed, profile, shared=run)
        self.triggers = TriggersRun(seed, shared=run)
        self.events = EventsRun(seed, run)
        self.realtime.storage.on_record = self._recorded
        self.recorded: dict[str, float] = {}
        """Prices of the trades that are in the log, by id."""
        self._told: set[str] = set()
        for client in self.history.clients:
            client.on_end = self._ended

    def check(self) -> Run:
        """Run it; `Broken` if a promise does not hold."""
        run, loop = self.run, self.run.loop
        self.history.start()
        self.realtime.begin()
        self.events.begin()
        self.triggers.begin()
        loop.spawn(WORLD, self._follow_triggers())
        self.triggers.finish()
        self._check_fired()
        loop.run_until(lambda: run.broken is not None, limit_ns=round(self._seconds * SECOND_NS))
        for breach in breaches(self.realtime.evidence()):
            if breach.rule is not Rule.SILENT:  # a link to the gateway may be cut for longer than a job may be silent
                run.fail(str(breach))
        self.history.until_calm()
        self.events.finish()
        return run

    # ---- from the log of trades to the triggers

    def _recorded(self, headers: PageHeaders, value: bytes) -> None:
        if headers.kind is not Kind.TRADES:
            return
        for trade in market_pb2.Trades.FromString(value).trades:
            self.recorded.setdefault(trade.trade_id, trade.price)
        dispatch_id = headers.dispatch_id
        issued = IssuedDispatch(dispatch_id, Series(TICKER, 60, CANDLES), TimeRange(0, 2**62), is_realtime=True)
        self.triggers.relay.issued[dispatch_id] = issued
        now_ns = self.triggers.run.clock(self.triggers.relay.process).wall_ns()
        self.triggers.trades.append(value, headers.encode(), now_ns)

    async def _follow_triggers(self) -> None:
        """Register a trigger that fires for each recorded trade, and make a user event of each time that it fires."""
        sql, fire = "SELECT trade_id FROM ticks WHERE price > 0", {"fire": "level"}
        trigger = ingest_pb2.CEPTriggerRequest(trigger_id=TRIGGER, sql_pattern=sql, tickers=[TICKER], parameters=fire)
        while True:
            try:
                request = pb.RegisterTriggerRequest(trigger=trigger)
                await self.run.network.call("relay", "RegisterTrigger", request, timeout=5.0)
                break
            except CallFailed:
                await asyncio.sleep(2.0)
        while not self.events.is_quiet:
            await asyncio.sleep(_LOOK_SECONDS)
            for number in range(len(self._told), len(self._fired())):
                self._tell(f"e-fired-{number}")

    def _fired(self) -> list[str]:
        return self.triggers.fired_by(TRIGGER)

    def _check_fired(self) -> None:
        """Check that the trigger has fired for recorded trades alone, and once for each."""
        fired = self._fired()
        if foreign := [each for each in fired if each not in self.recorded]:
            self.run.fail(f"{TRIGGER} fired for the trade {foreign[0]}, which is in no record")
        if len({*fired}) < len(fired) and not self.triggers.is_restored:
            self.run.fail(f"{TRIGGER} fired twice for a trade: {fired}")

    # ---- from the relay to the user

    def _ended(self, asked: Asked) -> None:
        self.history._ended(asked)
        if not self.events.is_quiet:
            self._tell(f"e-ready-{asked.request.request_id}")

    def _tell(self, event_id: str) -> None:
        if event_id not in self._told:
            if event_id.startswith("e-fired"):
                self._told.add(event_id)
            self.events.publish(_CONTAINER, event_id, _FOLLOWER, Priority.CRITICAL, ())


def simulate(seed: int) -> Run:
    """Run one seed; `Broken` if a promise does not hold."""
    with silence():
        suite = Suite(seed)
        try:
            return suite.check()
        finally:
            suite.run.loop.close()
