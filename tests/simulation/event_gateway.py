"""The gateway of user events as a process of a run: its dispatcher, its sessions and its channels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import SuiteError
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.dispatcher.cycle import DispatcherCycle
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics, SendMetrics
from dexorder_gateway.events.dispatcher.port import DispatcherOutputs
from dexorder_gateway.events.dispatcher.sender import ChannelSender
from dexorder_gateway.events.dispatcher.start import processor_of
from dexorder_gateway.events.ingress.containers import Containers
from dexorder_gateway.events.model import Contacts, Event, EventMessage, Later, Result, SendRefused, Sent
from dexorder_gateway.events.proto_mapping import ack_of, cursor_of
from dexorder_gateway.events.publisher_service import EventPublisherService
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.session import UserSession
from dexorder_gateway.events.sessions.session_frames import OpenedFrame
from dexorder_gateway.events.sessions.user_tokens import TokenUser
from dexorder_gateway.events.store import schema
from dexorder_gateway.events.store.event_log import EventLog, Replay
from dexorder_gateway.events.store.outbox import EventOutbox
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.network import CallFailed, Handler
from tests.simulation.run import Run
from tests.simulation.sqlite_disk import InlineExecutor, SqliteDisk
from tests.simulation.zmq_wires import SimulatedSockets, Wires

CHANNELS = (Channel.TELEGRAM, Channel.EMAIL, Channel.DISCORD)
SEND_SECONDS = 5.0
_IDLE_MS = 600_000
_EVER_NS = 4 * 10**9 * SECOND_NS


@cache
def settings() -> EventsSettings:
    """Return the gateway's settings: the defaults but for shorter waits between rounds."""
    return EventsSettings(retry_max_seconds=30.0, send_timeout_seconds=SEND_SECONDS)


@cache
def _metrics() -> tuple[DispatcherMetrics, SendMetrics, SessionMetrics]:
    registry = CollectorRegistry()
    return DispatcherMetrics(registry), SendMetrics(registry), SessionMetrics(registry)


@dataclass
class Providers:
    """All providers of channels, outside of the gateway.

    Attributes:
        failing: Channels that are out of order, each in its way.
        got: Events by id, with the users that got them: how often.
        under_way: Events of calls that have not returned.
        excused: How many repeats of an event the documented rules explain.
    """

    run: Run
    random: Random
    failing: dict[Channel, str] = field(default_factory=dict)
    got: dict[str, Counter[str]] = field(default_factory=dict)
    under_way: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)

    def take(self, channel: Channel, address: str, events: Iterable[str]) -> None:
        """Note what a provider delivers."""
        for event_id in events:
            self.got.setdefault(event_id, Counter())[address] += 1
            self.run.note(f"{channel.name} delivers {event_id} to {address}")

    def gateway_killed(self, queued: Iterable[str]) -> None:
        """Excuse one repeat of each call that was under way, up to the commit of its result."""
        self.excused.update({*self.under_way} | {event_id for event_id in queued if event_id in self.got})
        self.under_way.clear()


class FakeChannel:
    """Channel adapter: accepts, fails, refuses, answers late, or answers after the deadline though it has accepted."""

    def __init__(self, channel: Channel, providers: Providers) -> None:
        self._channel = channel
        self._providers = providers

    def reachable(self, contacts: Contacts) -> str:
        """See `ChannelAdapter`."""
        return "" if contacts.on(self._channel) else "no contact"

    async def send(self, message: EventMessage, contacts: Contacts) -> Result:
        """See `ChannelAdapter`."""
        providers, random = self._providers, self._providers.random
        way = (
            providers.failing.get(self._channel)
            or random.choices(("accepts", "fails", "pauses", "is late", "refuses"), (20, 2, 1, 1, 1))[0]
        )
        events = events_of(message)
        providers.under_way.update(events)
        await asyncio.sleep(random.uniform(0.02, 0.4))
        if way == "is silent":
            await asyncio.sleep(2 * SEND_SECONDS)
        address = contacts.address(self._channel)
        result: Result = Sent()
        if way == "fails":
            result = Later("no connection")
        elif way == "pauses":
            result = Later("too many requests", random.randrange(500, 20_000))
        elif way == "refuses" and self._channel is not CHANNELS[-1]:
            result = SendRefused("blocked by the user")
        else:
            providers.take(self._channel, address, events)
            if way == "is late":
                providers.excused.update(events)
                await asyncio.sleep(2 * SEND_SECONDS)
            await asyncio.sleep(random.uniform(0.02, 0.4))
        providers.under_way -= events
        return result


class Stream:
    """One call of WatchEvents: responses arrive in order, and None at the end, unless the link is cut."""

    def __init__(self, wires: Wires, client: Process, user_id: str, deliver: Callable[[bytes | None], None]) -> None:
        self.client = client
        self.user_id = user_id
        self.hang_up: Callable[[], None] = lambda: None
        self.pump: asyncio.Future[None] | None = None
        self._wires = wires
        self._deliver = deliver
        self._arrives_s = 0.0
        self._is_broken = False

    def send(self, content: bytes | None) -> None:
        """Send from the gateway; over a cut link the call fails, and nothing more arrives."""
        wires, now_s = self._wires, self._wires.run.loop.time()
        self._is_broken |= frozenset((self.client.name, "gateway")) in wires.run.network.weather.cut
        if self._is_broken:
            content = None
        self._arrives_s = max(self._arrives_s, now_s + wires.delay())
        wires.later(self.client, self._arrives_s - now_s, lambda: self._deliver(content))


class MemoryLog(EventLog):
    """Reader of an outbox in memory.

    Args:
        passed_over: Gets users and positions of the events that had ended when a session without a cursor began; it
            shows what waits, and what is new.
    """

    def __init__(self, uri: str, passed_over: set[tuple[str, int]]) -> None:
        self._uri = uri
        self._passed_over = passed_over

    def replay(self, epoch: str, user_id: str, cursor: Cursor | None, newest: int, *, reset: bool) -> Replay:
        """See `EventLog`."""
        found = super().replay(epoch, user_id, cursor, newest, reset=reset)
        sql = "SELECT sequence FROM events WHERE user_id = ? AND sequence BETWEEN ? AND ? AND status != 1"
        with self._open() as db:
            ended = db.execute(sql, (user_id, found.sequence + 1, found.waiting_to)).fetchall()
        self._passed_over.update((user_id, sequence) for (sequence,) in ended)
        return found


class _Cycles:
    """Runs the dispatcher's cycle as a task, in place of `DispatcherThread`."""

    def __init__(
        self, gateway: EventGateway, cycle: DispatcherCycle, ended: Callable[[Exception | None], object]
    ) -> None:
        self._gateway = gateway
        self._cycle = cycle
        self._ended = ended
        self._woken = asyncio.Event()
        gateway.sockets.wake = self._woken.set  # type: ignore[method-assign]

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Do nothing: a simulated gateway ends by a kill."""

    def join(self) -> None:
        """Do nothing."""

    async def _run(self) -> None:
        gateway, cycle = self._gateway, self._cycle
        try:
            while True:
                timeout_ms = cycle.timeout_ms(_IDLE_MS)
                if timeout_ms and not gateway.sockets.has_messages:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timeout_ms / 1_000):
                            await self._woken.wait()
                self._woken.clear()
                await asyncio.sleep(gateway.random.uniform(*gateway.commit_seconds))
                cycle.run(0)
        except Exception as error:
            self._ended(error)


class EventGateway:
    """One life of the gateway.

    Attributes:
        commit_seconds: Shortest and longest time of a cycle.
    """

    commit_seconds = (0.001, 0.005)

    def __init__(
        self,
        run: Run,
        process: Process,
        wires: Wires,
        disk: SqliteDisk,
        providers: Providers,
        containers: Containers,
        streams: Mapping[str, Stream],
        passed_over: set[tuple[str, int]],
    ) -> None:
        self.run = run
        self.process = process
        self.random = run.generator(f"gateway {run.loop.now_ns}")
        self.sockets = SimulatedSockets(wires, process, containers)
        self._wires = wires
        self._disk = disk
        self._providers = providers
        self._containers = containers
        self._streams = streams
        self._passed_over = passed_over

    async def main(self, users: Iterable[str], people: Mapping[str, Contacts]) -> None:
        """Run until the process is killed, with these contacts in place of those that are stored."""
        run, disk, process = self.run, self._disk, self.process
        dispatch_metrics, send_metrics, session_metrics = _metrics()
        clock = run.clock(process)
        outbox = EventOutbox(disk.connect(schema.STEPS), InlineExecutor())
        processor = processor_of(outbox, settings(), dispatch_metrics, clock, render=render)
        dispatcher = EventDispatcher(
            processor,
            self.sockets,
            MemoryLog(disk.uri, self._passed_over),
            self.sockets._containers,
            clock,
            lambda cycle, ended: _Cycles(self, cycle, ended),
        )
        adapters = {channel: FakeChannel(channel, self._providers) for channel in CHANNELS}
        sender = ChannelSender(adapters, settings(), dispatcher.finished, send_metrics)
        sessions = SessionRegistry(dispatcher, render, settings(), session_metrics, clock)
        dispatcher.outputs = DispatcherOutputs(sender.send, sessions.show, sessions.show_transient)
        publisher = EventPublisherService(dispatcher, lambda: self._containers)
        await sender.__aenter__()  # it never ends otherwise than by a kill
        dispatcher.start()
        for user_id, contacts in people.items():
            await dispatcher.set_contacts(user_id, contacts)
        self._serve(dispatcher, sessions, publisher, users)
        await dispatcher.failed

    def _serve(
        self,
        dispatcher: EventDispatcher,
        sessions: SessionRegistry,
        publisher: EventPublisherService,
        users: Iterable[str],
    ) -> None:
        network, process = self.run.network, self.process

        async def publish(request: pb.PublishRequest) -> pb.PublishResponse:
            return await _answered(publisher.Publish(request, None))  # type: ignore[arg-type,no-any-return]

        def ack_of_user(user_id: str) -> Handler:
            async def ack(request: pb.AckEventRequest) -> pb.AckEventResponse:
                (epoch, sequence), seen = ack_of(request)
                await _answered(dispatcher.acked(user_id, epoch, sequence, seen=seen))
                return pb.AckEventResponse()

            return ack

        async def watch(request: pb.WatchEventsRequest) -> pb.WatchEventsResponse:
            await _answered(self._open(sessions, request))
            return pb.WatchEventsResponse()

        network.serve(process, "Publish", publish)
        network.serve(process, "WatchEvents", watch)
        for user_id in users:
            network.serve(process, f"AckEvent of {user_id}", ack_of_user(user_id))

    async def _open(self, sessions: SessionRegistry, request: pb.WatchEventsRequest) -> None:
        stream = self._streams.get(request.client_name)
        if stream is None:  # the client has given up
            return
        cursor = cursor_of(request.cursor) if request.HasField("cursor") else None
        session = await sessions.open(TokenUser(stream.user_id, _EVER_NS), cursor, "grpc")
        stream.hang_up = lambda: self._wires.later(self.process, self._wires.delay(), lambda: session.end(None))
        stream.pump = asyncio.ensure_future(self._pump(session, stream, cursor))

    async def _pump(self, session: UserSession, stream: Stream, cursor: Cursor | None) -> None:
        try:
            while frames := await session.next():
                for frame in frames:
                    if isinstance(frame, OpenedFrame) and frame.place == cursor and cursor.sequence:
                        self._judge_cursor(stream.user_id, cursor)
                    stream.send(frame.wire)
        except SuiteError as error:
            self.run.note(f"gateway: a session of {stream.user_id} ends: {error}")
        finally:
            session.close()
        stream.send(None)

    def _judge_cursor(self, user_id: str, cursor: Cursor) -> None:
        sql = "SELECT 1 FROM events WHERE user_id = ? AND sequence = ?"
        if not self._disk.rows(sql, user_id, cursor.sequence):
            self.run.fail(f"a session of {user_id} continues after a cursor that the file does not know")


def render(event: Event) -> EventMessage:
    """Return a message whose title is the event's id."""
    return EventMessage("0" * 32, event.key.event_id, "", event.priority, event.timestamp_ms)


def events_of(message: EventMessage) -> Counter[str]:
    """Return the events that a message names; a digest has several."""
    return Counter(word for word in f"{message.title} {message.body}".split() if word.startswith("e-"))


async def _answered(call: Any) -> Any:
    try:
        return await call
    except SuiteError as error:
        raise CallFailed(grpc.StatusCode[error.code.name], str(error)) from None
