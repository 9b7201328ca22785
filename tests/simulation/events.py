"""User events from containers to users: one run of ten minutes with faults, then quiet, then every promise is checked.

Three containers publish through the library's rules, a service hands over alerts, and clients of three users follow
their sessions. The gateway, containers and clients are killed (also in the midst of a commit), frozen and cut off;
providers fail, pause, answer late or not at all; in some runs the gateway continues with an older copy of its file.

Promises: an event answered QUEUED survives kills and becomes final; a CRITICAL event reaches its user; a container
learns the end of every event; no event reaches another user; a provider gets an event again only where a kill or a late
answer explains it; a session misses nothing after its cursor, in order and once each, or it is reset; once faults cease
nothing stays queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any

from dexorder.events.outcomes import FinalStatus
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.ingress.containers import Containers, _Entry
from dexorder_gateway.events.model import Contacts
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.simulation.event_gateway import CHANNELS, EventGateway, Providers, Stream
from tests.simulation.event_peers import Alerts, Client, Container, Told
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.run import Run, silence
from tests.simulation.sqlite_disk import Killed, Moment, SqliteDisk
from tests.simulation.zmq_wires import Wires, key_of

FAULTY_SECONDS = 600
QUIET_SECONDS = 3_600
OWNED = {"bot-0": ("ann", "bob", "cid"), "bot-1": ("bob", "dan"), "bot-2": ("ann", "dan", "eve")}
ADDRESSES = {"ann": 3, "bob": 2, "cid": 3, "dan": 1, "eve": 3}
"""Number of channels, from the last one, on which each user can be reached; the last one never refuses for good."""
FOLLOWED = ("ann", "bob", "cid")
"""Users with a client."""
WAYS: tuple[tuple[int, ...], ...] = (
    (),
    (pb.TELEGRAM, pb.DISCORD),
    (pb.ACTIVE_SESSION, pb.EMAIL, pb.DISCORD),
    (pb.WEB, pb.TELEGRAM, pb.DISCORD),
    (pb.WEB,),
)


@cache
def _containers() -> Containers:
    return Containers(
        _Entry(container=name, curve=(key_of(name),), users=users, client_id=name) for name, users in OWNED.items()
    )


def _contacts() -> dict[str, Contacts]:
    return {
        user: Contacts(dict.fromkeys(CHANNELS[-number:], (f"address-of-{user}",))) for user, number in ADDRESSES.items()
    }


class EventsRun:
    """One run."""

    def __init__(self, seed: int, shared: Run | None = None) -> None:
        self.run = run = shared or Run(seed)
        self.random = run.generator("events")
        self.wires = Wires(run)
        self.providers = Providers(run, run.generator("providers"))
        self.disks = {name: SqliteDisk(f"{name}-{seed}") for name in ("gateway", *OWNED)}
        self.processes: dict[str, Process] = {}
        self.containers: dict[str, Container] = {}
        self.told = {name: Told() for name in OWNED}
        self.alerts = Alerts(run)
        self.streams: dict[str, Stream] = {}
        self.passed_over: set[tuple[str, int]] = set()
        self.clients = {f"{user}'s phone": Client(run, self.wires, "", user, self.streams) for user in FOLLOWED}
        self.events: dict[str, pb.UserEvent] = {}
        self.foreign: set[str] = set()
        self.copy: tuple[int, bytes] | None = None
        self.is_restored = False
        self.lives = 0
        self.is_quiet = self.is_over = False
        for name, client in self.clients.items():
            client.name = name

    def check(self) -> Run:
        """Run it; `Broken` if a promise does not hold."""
        self.begin()
        self.finish()
        self.run.loop.close()
        return self.run

    def begin(self) -> None:
        """Start everything."""
        for name in ("gateway", *OWNED, "alerts", *self.clients):
            self.start(name)
        self._spawn("world", self._world())

    def finish(self) -> None:
        """Run to the end, and check it."""
        limit_ns = (FAULTY_SECONDS + QUIET_SECONDS + 60) * SECOND_NS
        self.run.loop.run_until(lambda: self.is_over, limit_ns=limit_ns)
        self._judge()

    # ---- processes

    def start(self, name: str) -> None:
        """Start a process that is not running."""
        known = self.processes.get(name)
        if known is not None and known.is_alive:
            return
        process = self.processes[name] = Process(name)
        self.lives += 1
        if self.lives > len(self.disks) + len(self.clients) + 1:
            self.run.note(f"{name} starts")
        self.run.loop.spawn(process, self._main(name, process, is_first=known is None))

    def _main(self, name: str, process: Process, *, is_first: bool) -> Coroutine[Any, Any, None]:
        if name == "gateway":
            disk, people = self.disks[name], _contacts() if is_first else {}
            gateway = EventGateway(
                self.run, process, self.wires, disk, self.providers, _containers(), self.streams, self.passed_over
            )
            return gateway.main(ADDRESSES, people)
        if name in OWNED:
            return self._container(name, process)
        return self.alerts.main() if name == "alerts" else self.clients[name].main(process)

    async def _container(self, name: str, process: Process) -> None:
        container = self.containers[name] = Container(self.run, process, self.wires, self.disks[name], self.told[name])
        await container.main()

    def kill(self, name: str, why: str = "is killed") -> None:
        """Kill a process, if it runs."""
        process = self.processes[name]
        if not process.is_alive:
            return
        self.run.note(f"{name} {why}")
        self.run.loop.kill(process)
        self.wires.killed(process)
        if name in self.disks:
            self.disks[name].on_commit = lambda moment: None
            self.disks[name].lose_uncommitted()
        if name == "gateway":
            queued = self.disks[name].rows("SELECT event_id FROM events WHERE status = 1")
            self.providers.gateway_killed(event_id for (event_id,) in queued)
            for stream in list(self.streams.values()):
                stream.send(None)
        if name in self.clients:
            for stream in [each for each in self.streams.values() if each.client is process]:
                stream.hang_up()

    def kill_at_commit(self, name: str, commits: int, moment: Moment) -> None:
        """Kill a process before or after one of its next commits."""
        left = commits

        def on_commit(now: Moment) -> None:
            nonlocal left
            left -= now == moment
            if left <= 0:
                self.kill(name, f"is killed {moment} a commit")
                raise Killed

        self.disks[name].on_commit = on_commit

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.run.loop.spawn(Process(name), work)

    # ---- what happens

    async def _world(self) -> None:
        random = self.random
        await asyncio.sleep(1.0)
        self._spawn("publishing", self._publish())
        kinds = ["kill", "kill at commit", "freeze", "cut", "outage", "lag"]
        if random.random() < 0.3:
            kinds += ["copy", "restore"] * 2
        rate = random.choice((15.0, 40.0, 120.0))
        while self.run.loop.time() < FAULTY_SECONDS:
            await asyncio.sleep(random.expovariate(1 / rate))
            await self._fault(random.choice(kinds))
        await self._heal()
        for _ in range(QUIET_SECONDS // 5):
            if self._is_settled():
                break
            await asyncio.sleep(5.0)
        self.is_over = True

    async def _publish(self) -> None:
        random = self.random
        pause = random.choice((4.0, 8.0, 16.0))
        while not self.is_quiet:
            await asyncio.sleep(random.expovariate(1 / pause))
            for _ in range(random.choice((1, 1, 1, 4))):
                self._one_event()

    def _one_event(self) -> None:
        random, event_id = self.random, f"e-{len(self.events)}"
        container = random.choice((*OWNED, "alerts"))
        users = OWNED.get(container, tuple(ADDRESSES))
        if container in OWNED and random.random() < 0.05:
            users = tuple(user for user in ADDRESSES if user not in users)
            self.foreign.add(event_id)
        user = random.choice(users)
        ways = random.choice(WAYS if user in FOLLOWED else WAYS[:-1])
        priority = random.choices([*Priority], [1 if each is not Priority.CRITICAL else 2 for each in Priority])[0]
        if container == "alerts" and priority is Priority.INFORMATIONAL:
            priority = Priority.CRITICAL
        self.publish(container, event_id, user, priority, ways)

    def publish(self, container: str, event_id: str, user: str, priority: Priority, ways: tuple[int, ...]) -> None:
        """Let a container publish an event, unless it is dead."""
        event = pb.UserEvent(
            user_id=user,
            event_id=event_id,
            timestamp=1 + len(self.events),
            event_type=pb.ORDER_FILLED,
            payload=b"{}",
            delivery=pb.DeliverySpec(
                priority=int(priority),  # type: ignore[arg-type]
                channels=[pb.ChannelPreference(channel=each) for each in ways],  # type: ignore[arg-type]
            ),
        )
        self.events[event_id] = event
        if container == "alerts":
            self.alerts.waiting.append(event)
        elif self.processes[container].is_alive:
            self.containers[container].publish(event)
        else:
            return
        self.run.note(f"{container} publishes {event_id} {priority.name} for {user}")

    async def _fault(self, kind: str) -> None:
        random, run, wires = self.random, self.run, self.wires
        name = random.choice(("gateway", "gateway", "gateway", *OWNED, *self.clients))
        if kind == "kill":
            self.kill(name)
            self._later(random.uniform(0.1, 20.0), lambda: self.start(name))
        elif kind == "kill at commit" and name in self.disks:
            self.kill_at_commit(name, random.randrange(1, 6), random.choice(("before", "after")))
            self._later(random.uniform(1.0, 40.0), lambda: self.start(name))
        elif kind == "freeze" and not self.processes[name].is_frozen:
            process = self.processes[name]
            run.note(f"{name} is frozen")
            run.loop.freeze(process)
            if name == "gateway":  # it finds the calls beyond their deadline when it continues, as with late answers
                self.providers.excused.update({*self.providers.under_way})
            wires.silent(process)
            self._later(random.uniform(0.2, 10.0), lambda: run.loop.thaw(process))
        elif kind == "cut" and name != "gateway":
            pair = frozenset((name, "gateway"))
            run.note(f"{name} and gateway are cut off")
            run.network.weather.cut.add(pair)
            wires.silent(self.processes["gateway"])
            self._later(random.uniform(0.2, 30.0), lambda: run.network.weather.cut.discard(pair))
        elif kind == "outage":
            channel, way = random.choice(CHANNELS), random.choice(("fails", "pauses", "is late", "is silent"))
            run.note(f"{channel.name}: every call {way}")
            self.providers.failing[channel] = way
            self._later(random.uniform(5.0, 60.0), lambda: self.providers.failing.pop(channel, None))
        elif kind == "lag":
            wires.lag = random.choice(((0.0001, 0.001), (0.001, 0.05)))
        elif kind == "copy":
            self.copy = run.loop.now_ns, self.disks["gateway"].image()
        elif kind == "restore" and self.copy:
            self.kill("gateway")
            self.disks["gateway"].restore(self.copy[1])
            run.note(f"the gateway's file is replaced by its copy of {self.copy[0] / SECOND_NS:.0f} s")
            self.is_restored = True
            self._later(random.uniform(0.5, 10.0), lambda: self.start("gateway"))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self.run.loop.call_later(seconds, lambda: None if self.is_quiet else act())

    async def _heal(self) -> None:
        run = self.run
        self.is_quiet = True
        run.note("faults cease")
        run.network.weather.cut.clear()
        self.providers.failing.clear()
        self.wires.lag = (0.0001, 0.001)
        for disk in self.disks.values():
            disk.on_commit = lambda moment: None
        for process in self.processes.values():
            run.loop.thaw(process)
        for name, client in self.clients.items():  # a cursor acks all before it
            client.ack_share = 1.0
            self.kill(name)
        await asyncio.sleep(1.0)
        for name in self.processes:
            self.start(name)
        await asyncio.sleep(60.0)

    def _is_settled(self) -> bool:
        waiting = self.disks["gateway"].rows("SELECT event_id FROM events WHERE status = 1")
        unsent = [row for name in OWNED for row in self.disks[name].rows("SELECT event_id FROM events")]
        return not (waiting or unsent or self.alerts.waiting)

    # ---- promises

    def _judge(self) -> None:
        run = self.run
        for context in run.loop.errors:
            error = context.get("exception")
            if not isinstance(error, Killed):
                run.fail(f"a task failed: {context.get('message')} {error!r}")
        for (event_id,) in self.disks["gateway"].rows("SELECT event_id FROM events WHERE status = 1"):
            run.fail(f"{event_id} is still queued an hour after the faults ceased")
        for name, told in self.told.items():
            for (event_id,) in self.disks[name].rows("SELECT event_id FROM events"):
                run.fail(f"{name} was never told the end of {event_id}")
            for event_id, event in told.written.items():
                self._judge_outcome(name, event_id, event, told)
        for event_id, event in self.alerts.accepted.items():
            if event.delivery.priority == pb.CRITICAL and not self.is_restored and not self._has_reached(event_id):
                run.fail(f"the CRITICAL alert {event_id} was accepted, but {event.user_id} never got it")
        self._judge_providers()
        for client in self.clients.values():
            self._judge_client(client)

    def _judge_outcome(self, name: str, event_id: str, event: pb.UserEvent, told: Told) -> None:
        outcome = told.outcomes.get(event_id)
        if outcome is None:
            self.run.fail(f"{name} was never told the end of {event_id}")
        elif event_id in self.foreign:
            if event.delivery.priority == pb.CRITICAL and outcome.error != "user not owned":
                self.run.fail(f"{event_id} of {name} for the foreign {event.user_id} ended as {outcome}")
        elif event.delivery.priority == pb.CRITICAL:
            if outcome.status is not FinalStatus.DELIVERED or not self._has_reached(event_id):
                self.run.fail(f"the CRITICAL {event_id} ended as {outcome.status}, {event.user_id} never got it")
        elif outcome.status is FinalStatus.DELIVERED and not self._has_reached(event_id):
            self.run.fail(f"{event_id} ended as DELIVERED, but {event.user_id} never got it")

    def _has_reached(self, event_id: str) -> bool:
        return event_id in self.providers.got or any(event_id in client.ever for client in self.clients.values())

    def _judge_providers(self) -> None:
        for event_id, got in self.providers.got.items():
            wanted = f"address-of-{self.events[event_id].user_id}"
            if set(got) != {wanted} or event_id in self.foreign:
                self.run.fail(f"{event_id}, which is for {wanted}, was delivered to {sorted(got)}")
            if got[wanted] > 1 + self.providers.excused[event_id] and not self.is_restored:
                self.run.fail(f"{event_id} was delivered {got[wanted]} times; no kill and no late answer explains it")

    def _judge_client(self, client: Client) -> None:
        sql = "SELECT sequence, event_id FROM events WHERE user_id = ? AND sequence > ? ORDER BY sequence"
        for sequence, event_id in self.disks["gateway"].rows(sql, client.user_id, client.start):
            if client.has.get(sequence) != event_id and (client.user_id, sequence) not in self.passed_over:
                self.run.fail(f"{client.name} never received {event_id}, at {sequence} in the log")
        if client.resets and not self.is_restored:
            self.run.fail(f"{client.name} was reset, but the file was never replaced")


def simulate(seed: int) -> Run:
    """Run one seed; `Broken` if a promise does not hold."""
    with silence():
        return EventsRun(seed).check()
