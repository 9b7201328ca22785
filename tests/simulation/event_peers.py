"""Containers that publish user events, a service that hands over alerts, and the clients of users, as processes."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import grpc

from dexorder.events.commands import Command, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.outbox import STEPS, Outbox
from dexorder.events.outcomes import FinalStatus, Outcome, OutcomeTracker
from dexorder.events.sender import Sender
from dexorder_common.messaging.frames import encode_event
from dexorder_common.model.user_events import Priority
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.simulation.event_gateway import Stream
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.run import Run
from tests.simulation.sqlite_disk import SqliteDisk
from tests.simulation.zmq_wires import SimulatedLink, Wires


@cache
def _settings() -> PublisherSettings:
    return PublisherSettings()


@dataclass
class Told:
    """What a container was told of its events, over all its lives.

    Attributes:
        written: Events that `publish` has returned for.
        queued: Events that the gateway has on disk.
        outcomes: Events that are final for the container.
    """

    written: dict[str, given.UserEvent] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)
    outcomes: dict[str, Outcome] = field(default_factory=dict)


class Container:
    """One life of a container: the publisher's rules over simulated links."""

    def __init__(self, run: Run, process: Process, wires: Wires, disk: SqliteDisk, told: Told) -> None:
        self.process = process
        self.told = told
        self._run = run
        self._wires = wires
        self._disk = disk
        self._random = run.generator(f"{process.name} {run.loop.now_ns}")
        self._commands: list[Command] = []
        self._woken = asyncio.Event()

    def publish(self, event: given.UserEvent) -> None:
        """Publish an event, as an application does; it is lost if the container ends before it is written."""
        written: Future[str] = Future()
        written.add_done_callback(lambda _: self.told.written.setdefault(event.event_id, event))
        frame = encode_event(event)[1]
        priority = Priority(event.delivery.priority)
        promise = None if priority is Priority.INFORMATIONAL else written
        self._commands.append(PublishCommand(event.event_id, event.user_id, priority, frame, promise))
        self._woken.set()

    async def main(self) -> None:
        """Run until the process is killed."""
        clock = self._run.clock(self.process)
        fast, guaranteed = (
            SimulatedLink(self._wires, self.process, is_fast=is_fast, wake=self._woken.set) for is_fast in (True, False)
        )
        outbox = Outbox(self._disk.connect(STEPS), self._disk.name)
        outcomes = OutcomeTracker(self._settled, self._queued)
        jitter = self._random
        sender = Sender(_settings(), outbox, fast, guaranteed, outcomes, lambda: jitter.uniform(0.9, 1.1))
        while True:
            now_ns = clock.monotonic_ns()
            due_ns = sender.due_ns(now_ns)
            if not self._woken.is_set() and (due_ns is None or due_ns > now_ns):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due_ns is None else (due_ns - now_ns) / SECOND_NS):
                        await self._woken.wait()
            self._woken.clear()
            sender.is_blocked = False  # tried again: the link says whether it has room
            commands, self._commands = self._commands, []
            sender.iterate(commands, clock.monotonic_ns())

    def _settled(self, outcome: Outcome) -> None:
        before = self.told.outcomes.get(outcome.event_id)
        ends = {FinalStatus.DELIVERED, FinalStatus.ERROR}
        if before and {before.status, outcome.status} == ends:
            self._run.fail(f"{outcome.event_id} was {before.status}, then {outcome.status} {outcome.error}")
        self.told.outcomes[outcome.event_id] = outcome
        self._run.note(f"{self.process.name} learns that {outcome.event_id} is {outcome.status} {outcome.error}")

    def _queued(self, event_id: str) -> None:
        self.told.queued.add(event_id)


@dataclass
class Alerts:
    """Alerts of a service that hands each to the gateway until it answers, and then forgets it.

    Attributes:
        waiting: On the service's disk.
        accepted: Answered QUEUED or DELIVERED.
    """

    run: Run
    waiting: deque[given.UserEvent] = field(default_factory=deque)
    accepted: dict[str, given.UserEvent] = field(default_factory=dict)

    async def main(self) -> None:
        """Send, one after the other."""
        random = self.run.generator("alerts")
        while True:
            if not self.waiting:
                await asyncio.sleep(1.0)
                continue
            event = self.waiting[0]
            try:
                answer: pb.PublishResponse = await self.run.network.call(
                    "gateway", "Publish", pb.PublishRequest(event=event), timeout=10.0
                )
            except grpc.aio.AioRpcError:
                await asyncio.sleep(random.uniform(0.2, 5.0))
                continue
            self.waiting.popleft()
            if answer.ack.status != given.ACK_ERROR:
                self.accepted[event.event_id] = event
                self.run.note(f"alerts: the gateway answers that {event.event_id} is {_name(answer.ack.status)}")


@dataclass
class Client:
    """A user's client over all its lives: it resumes from its cursor, which it keeps.

    Attributes:
        start: Position after which the client must have every event of the log.
        has: Events by sequence, since the last reset.
        given: Events by sequence, ever.
        ever: Events that it ever received.
    """

    run: Run
    wires: Wires
    name: str
    user_id: str
    streams: dict[str, Stream]
    ack_share: float = 0.8
    cursor: pb.Cursor | None = None
    start: int = 0
    resets: int = 0
    has: dict[int, str] = field(default_factory=dict)
    given: dict[int, str] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    async def main(self, process: Process) -> None:
        """Follow the events until the process is killed."""
        random = self.run.generator(f"{self.name} {self.run.loop.now_ns}")
        while True:
            number = f"{self.name}#{next(self._numbers)}"
            arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
            stream = self.streams[number] = Stream(self.wires, process, self.user_id, arrived.put_nowait)
            request = pb.WatchEventsRequest(client_name=number, cursor=self.cursor)
            with suppress(grpc.aio.AioRpcError, TimeoutError):
                await self.run.network.call("gateway", "WatchEvents", request, timeout=5.0)
                await self._follow(arrived, random.random)
            stream.hang_up()
            del self.streams[number]
            await asyncio.sleep(random.uniform(0.1, 2.0))

    async def _follow(self, arrived: asyncio.Queue[bytes | None], draw: object) -> None:
        assert callable(draw)
        while True:
            async with asyncio.timeout(40.0):  # as keepalive: a new session after a silence
                content = await arrived.get()
            if content is None:
                return
            answer = pb.WatchEventsResponse.FromString(content)
            if answer.HasField("event"):
                self._take(answer.event)
                if answer.event.sequence and draw() < self.ack_share:
                    await self._ack()
            else:
                self._open(answer)

    def _open(self, answer: pb.WatchEventsResponse) -> None:
        if answer.HasField("reset"):
            self.run.note(f"{self.name} is reset")
            self.cursor, self.start, self.has = answer.reset.cursor, answer.reset.cursor.sequence, {}
            self.resets += 1
        elif self.cursor is None:
            self.cursor, self.start = answer.opened.cursor, answer.opened.cursor.sequence
        elif answer.opened.cursor != self.cursor:
            self.run.fail(f"{self.name} asked for events after {self.cursor.sequence}, but got another position")

    def _take(self, shown: pb.SessionEvent) -> None:
        event_id = shown.event.event_id
        if shown.event.user_id != self.user_id:
            self.run.fail(f"{self.name} of {self.user_id} received {event_id} of {shown.event.user_id}")
        if not shown.sequence:
            self.ever.add(event_id)
            return
        assert self.cursor is not None
        if shown.sequence <= self.cursor.sequence:
            self.run.fail(f"{self.name} received {event_id} at {shown.sequence}, not after its cursor")
        if self.given.setdefault(shown.sequence, event_id) != event_id:
            self.run.fail(f"{event_id} has the position {shown.sequence}, which {self.given[shown.sequence]} had")
        self.has[shown.sequence] = event_id
        self.ever.add(event_id)
        self.cursor = pb.Cursor(epoch=self.cursor.epoch, sequence=shown.sequence)
        self.run.note(f"{self.name} receives {event_id}{' settled' if shown.settled else ''}")

    async def _ack(self) -> None:
        request = pb.AckEventRequest(cursor=self.cursor, kind=pb.ACK_KIND_RECEIVED)
        with suppress(grpc.aio.AioRpcError):
            await self.run.network.call("gateway", f"AckEvent of {self.user_id}", request, timeout=5.0)


def _name(status: int) -> str:
    return given.AckStatus.Name(status)  # type: ignore[arg-type]
