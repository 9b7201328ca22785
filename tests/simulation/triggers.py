"""Triggers from registration to the relay's table of events: five minutes with faults, then quiet, then checks.

A client registers and deletes triggers, a market writes trades to the log, the triggers' process evaluates them with
its journal, and the relay stores what it reports. The process is killed at every step of the journal, the relay around
its commits; both are frozen and cut off; in some runs the relay continues with an older copy of its file.

Promises: each match that is settled after the answer to a registration is in the relay's table exactly once, in the
order of the trades, and none that was settled before the call; a record that does not count fires nothing; an
acknowledged registration survives; once a deletion is applied the trigger fires no more. After an older copy these hold
for what the relay's file then knows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.dispatch_id import new_dispatch_id
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.trigger_messages import decode_event
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_spark.cep.evaluator import RegistrationChanges
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.run import Run, silence
from tests.simulation.sqlite_disk import Killed
from tests.simulation.trigger_account import Change, Known, Trade
from tests.simulation.trigger_process import Trades, TriggerProcess
from tests.simulation.trigger_relay import VENUE, TriggersRelay

FAULTY_SECONDS = 300
QUIET_SECONDS = 180
_LONGEST_PAUSE_SECONDS = 60.0
"""Of the client: what it changes last is known before the last trades, which every trigger must fire for."""
TICKERS = (f"AAA.{VENUE}", f"BBB.{VENUE}")
LEVELS = range(1, 5)
"""A trade has a price of so many thousands and its number; a trigger fires above so many thousands."""
CLIENTS_CALLS = frozenset(("RegisterTrigger", "EditTrigger", "PauseTrigger", "ResumeTrigger", "DeleteTrigger"))
"""A client waits for the answer of each; one that arrives again after the next would undo that one."""


@dataclass
class TriggersRun:
    """One run.

    Attributes:
        changes: The client edits, pauses and resumes triggers, too.
    """

    seed: int
    changes: bool = False
    known: dict[str, Known] = field(default_factory=dict)
    traded: list[Trade] = field(default_factory=list)
    shared: Run | None = None

    def __post_init__(self) -> None:
        self.run = run = self.shared or Run(self.seed)
        self.random = run.generator("triggers")
        self.trades = Trades()
        self.files = MemoryFiles(run.generator("files"))
        self.relay = TriggersRelay(run, self._answer_dispatches())
        self.process: Process | None = None
        self.is_restored = self.is_quiet = self.is_over = False
        self._ends: dict[str, int] = defaultdict(lambda: run.clock(Process("market")).wall_ns())
        self._pages = 0
        self.final_at = 0

    def check(self) -> Run:
        """Run it; `Broken` if a promise does not hold."""
        self.begin()
        self.finish()
        self.run.loop.close()
        return self.run

    def begin(self) -> None:
        """Start everything but the triggers' process."""
        self.relay.start()
        for name, work in (("world", self._world()), ("client", self._client()), ("market", self._market())):
            self.run.loop.spawn(Process(name), work)

    def finish(self) -> None:
        """Run the lives of the triggers' process to the end, and check it."""
        loop = self.run.loop
        while not self.is_over:
            loop.run_until(
                lambda: self.is_over, limit_ns=loop.now_ns + round(self.random.uniform(0.5, 6.0) * SECOND_NS)
            )
            self.process = Process("triggers")
            self.run.note("triggers: the process starts")
            self._one_life(self.process)
        self._judge()

    def _one_life(self, process: Process) -> None:
        try:
            life = TriggerProcess(self.run, process, self.files, self.trades, self._is_heard)
            self.relay.follower = life
            life.main()
        except Killed:  # while it started
            process.is_alive = False
        self.files.on_step = lambda: None
        self.files.killed()

    def _is_heard(self, changes: RegistrationChanges) -> None:
        for each in changes.changes:
            if each.trigger is not None and each.trigger.trigger_id in self.known:
                known = self.known[each.trigger.trigger_id]
                known.is_heard_of(resumed=bool(each.changed_ns and not each.is_paused))
                if known.silent:
                    self.run.note(
                        f"triggers: hears of {each.trigger.trigger_id} {len(known.silent)} trades after a pause"
                    )

    # ---- faults

    async def _world(self) -> None:
        random = self.random
        kinds = ["kill", "kill at step", "freeze", "relay", "relay at commit", "cut", "source", "loss"]
        if random.random() < 0.3:
            kinds += ["copy", "restore"]
        while self.run.loop.time() < FAULTY_SECONDS:
            await asyncio.sleep(random.expovariate(1 / 12))
            self._fault(random.choice(kinds))
        self.run.note("faults cease")
        self.is_quiet = True
        self._heal()
        await asyncio.sleep(QUIET_SECONDS)
        self.is_over = True
        if self.process:
            self.run.loop.kill(self.process)

    def _fault(self, kind: str) -> None:
        random, run = self.random, self.run
        weather, process = run.network.weather, self.process
        pair = frozenset(("relay", "triggers"))
        if kind == "kill" and process and process.is_alive:
            self._kill("is killed")
        elif kind == "kill at step":
            self._kill_at_step(random.randrange(1, 12))
        elif kind == "freeze" and process:
            run.note("triggers: frozen")
            run.loop.freeze(process)
            self._later(random.uniform(0.5, 20.0), lambda: run.loop.thaw(process))
        elif kind == "relay":
            self.relay.kill()
            self._later(random.uniform(0.1, 20.0), self.relay.start)
        elif kind == "relay at commit":
            self.relay.kills_at_next_call = True
            self._later(random.uniform(5.0, 25.0), self.relay.start)
        elif kind == "cut":
            run.note("triggers and relay are cut off")
            weather.cut.add(pair)
            self._later(random.uniform(1.0, 40.0), lambda: weather.cut.discard(pair))
        elif kind == "source":
            self.trades.is_down = True
            self._later(random.uniform(1.0, 20.0), lambda: setattr(self.trades, "is_down", False))
        elif kind == "loss":
            weather.lost = random.choice((0.0, 0.1, 0.4))
            weather.repeated, weather.once = weather.lost / 4, CLIENTS_CALLS
        elif kind == "copy":
            self.relay.disk.copy()
        elif kind == "restore" and self.relay.disk.backup:
            self.relay.kill()
            self.relay.restore()
            self.is_restored = True
            self._later(random.uniform(0.5, 5.0), self.relay.start)

    def _heal(self) -> None:
        self.run.network.weather.cut.clear()
        self.run.network.weather.lost = self.run.network.weather.repeated = 0.0
        self.trades.is_down = self.relay.kills_at_next_call = False
        self.files.on_step = lambda: None
        if self.process:
            self.run.loop.thaw(self.process)
        self.relay.start()

    def _kill(self, how: str) -> None:
        assert self.process
        self.run.note(f"triggers: {how}")
        self.run.loop.kill(self.process)

    def _kill_at_step(self, steps: int) -> None:
        left = steps

        def on_step() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._kill("is killed within a write of the journal")
                raise Killed

        self.files.on_step = on_step

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.run.loop.call_later(seconds, lambda: None if self.is_quiet else act())

    # ---- the market

    async def _market(self) -> None:
        random = self.random
        while self.run.loop.time() < FAULTY_SECONDS + QUIET_SECONDS / 2:
            await asyncio.sleep(random.expovariate(1 / 2))
            self._record(
                random.choice(TICKERS), random.choice(("counts", "counts", "counts", "counts", "twice", "bad"))
            )
        self.final_at = len(self.traded)
        for ticker in TICKERS * 3:  # all triggers that run must fire for these
            await asyncio.sleep(2.0)
            self._record(ticker, "counts", level=LEVELS[-1])
        for ticker in TICKERS:  # a trade fires once a later record has moved the watermark beyond it
            await asyncio.sleep(5.0)
            self._record(ticker, "counts", level=0)

    def _record(self, ticker: str, kind: str, *, level: int | None = None) -> None:
        random, now_ns = self.random, self.run.clock(Process("market")).wall_ns()
        span = TimeRange(self._ends[ticker], now_ns)
        if span.end_ns <= span.start_ns:
            return
        level = random.choice(LEVELS) if level is None else level
        price = 1_000.0 * level + (500 if kind == "bad" else 1) + self._pages / 100
        at_ns = random.randrange(max(span.start_ns, now_ns - 5 * SECOND_NS), now_ns)  # may precede a registration
        dispatch = _dispatch_of(ticker, is_issued=kind != "bad")
        found = [market_pb2.Trade(trade_id=f"{self._pages}", time_ns=at_ns, price=price, amount=1.0, ticker=ticker)]
        headers = PageHeaders(Kind.TRADES, ticker, 0, dispatch, self._pages, span, now_ns).encode()
        self._pages += 1
        payload = market_pb2.Trades(trades=found).SerializeToString()
        if kind == "bad":
            self.run.note(f"market: a trade at {price} of a dispatch that nobody has issued")
            self.trades.append(payload, headers, now_ns)
            return
        self._ends[ticker] = now_ns
        self.traded.append(Trade(ticker, price, level))
        for _ in range(2 if kind == "twice" else 1):
            self.trades.append(payload, headers, now_ns)
        self.run.note(f"market: {ticker} trades at {price}{' (the record comes twice)' if kind == 'twice' else ''}")

    def _answer_dispatches(self) -> list[IssuedDispatch]:
        return [
            IssuedDispatch(
                _dispatch_of(ticker, is_issued=True),
                Series(ticker, 60, CANDLES),
                TimeRange(0, 2**62),
                is_realtime=True,
            )
            for ticker in TICKERS
        ]

    # ---- the client

    async def _client(self) -> None:
        random = self.random
        while self.run.loop.time() < FAULTY_SECONDS:
            await asyncio.sleep(min(random.expovariate(1 / 10), _LONGEST_PAUSE_SECONDS))
            known = [name for name, each in self.known.items() if each.registered and not each.deleted]
            if known and random.random() < 0.35:
                await self._delete(random.choice(known))
            elif known and self.changes and random.random() < 0.7:
                await self._change(random.choice(known))
            else:
                name = await self._register()
                if self.changes and random.random() < 0.3:
                    await self._pause_at_once(name)
            await self._look()
        while True:
            await asyncio.sleep(10.0)
            await self._look()

    async def _register(self) -> str:
        name = f"t-{len(self.known)}"
        each = self.known[name] = Known(self.random.choice(TICKERS), self.random.choice(LEVELS))
        each.asked_at = len(self.traded)
        sql = f"SELECT price FROM ticks WHERE price > {1_000 * each.level}"
        trigger = ingest_pb2.CEPTriggerRequest(
            trigger_id=name, sql_pattern=sql, tickers=[each.ticker], parameters={"fire": "level"}
        )
        answer = await self._until_answered("RegisterTrigger", pb.RegisterTriggerRequest(trigger=trigger))
        if answer.ack.status not in (ingest_pb2.CEPTriggerAck.REGISTERED, ingest_pb2.CEPTriggerAck.ALREADY_REGISTERED):
            self.run.fail(f"{name} was refused: {answer.ack.error_message}")
        each.registered = True
        each.running_at = len(self.traded)
        self.run.note(f"client: {name} is registered, above {1_000 * each.level} of {each.ticker}")
        return name

    async def _pause_at_once(self, name: str) -> None:
        """Pause a new trigger and resume it, if need be before its process hears of it."""
        for value, method, request in (
            (True, "PauseTrigger", pb.PauseTriggerRequest(trigger_id=name)),
            (False, "ResumeTrigger", pb.ResumeTriggerRequest(trigger_id=name)),
        ):
            change = self._asked(name, value)
            self.known[name].pauses.append(change)
            await self._until_answered(method, request)
            change.answered_at = len(self.traded)
            await asyncio.sleep(self.random.expovariate(1 / 8))
        self.run.note(f"client: {name} was paused at once, and is resumed")

    async def _delete(self, name: str) -> None:
        self.known[name].deleted = True
        await self._until_answered("DeleteTrigger", pb.DeleteTriggerRequest(trigger_id=name))
        self.run.note(f"client: {name} is deleted")

    async def _change(self, name: str) -> None:
        each, random = self.known[name], self.random
        if random.random() < 0.4:
            level = random.choice(LEVELS)
            sql = f"SELECT price FROM ticks WHERE price > {1_000 * level}"
            change = self._asked(name, level)
            each.edits.append(change)
            request = pb.EditTriggerRequest(trigger_id=name, sql_pattern=sql, wait_ms=random.choice((0, 3_000)))
            await self._taken(change, request)
            change.answered_at = len(self.traded)
            self.run.note(f"client: {name} fires above {1_000 * level} now{', taken' * (change.taken_at is not None)}")
            return
        change = self._asked(name, not each.is_paused)
        each.pauses.append(change)
        if change.value:
            await self._until_answered("PauseTrigger", pb.PauseTriggerRequest(trigger_id=name))
        else:
            await self._until_answered("ResumeTrigger", pb.ResumeTriggerRequest(trigger_id=name))
        change.answered_at = len(self.traded)
        if random.random() < 0.5:  # an edit that changes nothing tells whether the process has the last change
            await self._taken(change, pb.EditTriggerRequest(trigger_id=name, wait_ms=3_000))
        taken = ", taken" * (change.taken_at is not None)
        self.run.note(f"client: {name} is {'paused' if change.value else 'resumed'}{taken}")

    def _asked(self, name: str, value: int) -> Change:
        """Return a change that is asked for now; what the trigger has fired for was evaluated, and what came before."""
        fired = [*map(float, self.fired_by(name))][-1:]
        evaluated = next((place + 1 for place, each in enumerate(self.traded) if each.price in fired), 0)
        return Change(value, evaluated, len(self.traded))

    async def _taken(self, change: Change, request: pb.EditTriggerRequest) -> None:
        answer = await self._until_answered("EditTrigger", request)
        if answer is not None and answer.taken:
            change.taken_at = len(self.traded)

    async def _look(self) -> None:
        try:
            answer = await self.run.network.call("relay", "ListTriggers", pb.ListTriggersRequest(), timeout=5.0)
        except grpc.aio.AioRpcError:
            return
        listed = {each.trigger.trigger_id: each for each in answer.triggers}
        for name, each in self.known.items():
            if each.registered and not each.deleted and name not in listed and not self.is_restored:
                self.run.fail(f"{name} was acknowledged, but the relay does not list it")

    async def _until_answered(self, method: str, request: Any) -> Any:
        while True:
            try:
                return await self.run.network.call("relay", method, request, timeout=5.0)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:  # an attempt before has deleted it, or an older copy
                    return None
                await asyncio.sleep(self.random.uniform(0.2, 3.0))

    # ---- promises

    def fired_by(self, trigger_id: str) -> list[str]:
        """Return the first column of each match of a trigger, in order."""
        sql = "SELECT message FROM trigger_events WHERE kind = 1 AND trigger_id = ? ORDER BY sequence"
        return [_first_column(message) for (message,) in self.relay.rows(sql, trigger_id)]

    def _judge(self) -> None:
        for context in self.run.loop.errors:
            error = context.get("exception")
            if not isinstance(error, Killed):
                self.run.fail(f"a task failed: {context.get('message')} {error!r}")
        live = {row[0] for row in self.relay.rows("SELECT trigger_id FROM triggers WHERE deleted_ns IS NULL")}
        for name, each in self.known.items():
            self._judge_trigger(name, each, list(map(float, self.fired_by(name))), is_live=name in live)

    def _judge_trigger(self, name: str, known: Known, fired: list[float], *, is_live: bool) -> None:
        run = self.run
        traded = [each.price for each in self.traded if each.ticker == known.ticker]
        if foreign := [price for price in fired if price not in traded]:
            run.fail(f"{name} fired for {foreign[0]}, which counts nowhere")
        if len({*fired}) < len(fired):
            run.fail(f"{name} has fired twice for one trade: {fired}")
        final = [each for each in self.traded[self.final_at :] if each.ticker == known.ticker]
        wanted = [each.price for each in final if is_live and known.fires_last(each.level)]
        if not (self.is_restored and self.changes) and [each.price for each in final if each.price in fired] != wanted:
            run.fail(f"{name} fired for {fired[-3:]}; of the last trades {wanted} fire it")
        if self.is_restored:
            return
        if fired != [price for price in traded if price in fired]:
            run.fail(f"{name} has fired in another order: {fired} of {traded}")
        wrong = known.unexplained(self.traded, fired, final_at=self.final_at)
        if wrong is not None:
            how = "fired" if wrong.price in fired else "did not fire"
            place = self.traded.index(wrong)
            run.fail(f"{name} {how} for {wrong.price}, trade {place}, whichever changes it had then: {known}")


def _first_column(message: bytes) -> str:
    """Return the first column of a firing."""
    return str(decode_event(ingest_pb2.CEPTriggerEvent.FromString(message)).rows[-1][0])


def _dispatch_of(ticker: str, *, is_issued: bool) -> str:
    number = 1 + TICKERS.index(ticker)
    return new_dispatch_id(number if is_issued else number + 50, f"{number:016x}")


def simulate(seed: int, *, changes: bool = False) -> Run:
    """Run one seed; `Broken` if a promise does not hold."""
    with silence():
        return TriggersRun(seed, changes).check()


def simulate_changes(seed: int) -> Run:
    """Run one seed with edits, pauses and resumptions."""
    return simulate(seed, changes=True)
