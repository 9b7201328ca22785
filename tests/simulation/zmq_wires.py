"""ZeroMQ connections between containers and the gateway: what libzmq and TCP do, without sockets.

A message that a socket has taken waits in a pipe for the I/O thread, which writes it to TCP; the peer's I/O thread
hands it to the peer's socket. A pipe has a limit, and the I/O thread gives room back by halves of it. What was written
to a connection whose other end died is lost without notice. A container closes a connection whose peer is silent for
two heartbeats, and connects again; the gateway learns of a lost container when TCP tells it.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import zmq

from dexorder_common.messaging.unread_bytes import UnreadBytes
from dexorder_gateway.events.ingress.containers import Containers
from dexorder_gateway.events.ingress.sockets import EventSockets
from dexorder_gateway.events.ingress.unsent_acks import UnsentAcks
from tests.simulation.loop import CURRENT, Process
from tests.simulation.run import Run

CLIENT_LIMIT, SERVER_LIMIT = 10_000, 1_000
"""Messages in a container's pipe, and in the gateway's: libzmq's default where no limit is set."""
HEARTBEAT_SECONDS = 0.5
FORGET_SECONDS = 20.0
"""Time after which TCP keepalive tells the gateway of a container that is gone without a word."""


class Wires:
    """All connections of a run, and the gateway's listening sockets.

    Attributes:
        lag: Shortest and longest time until an I/O thread runs, in seconds.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.random: Random = run.generator("wires")
        self.lag = (0.0001, 0.001)
        self.gateway: SimulatedSockets | None = None
        self.all: list[Wire] = []
        self._contexts: dict[Process, contextvars.Context] = {}
        self._numbers = count(1)

    def later(self, process: Process, seconds: float, act: Callable[[], None]) -> None:
        """Do something in a process after a time, unless it ends before."""
        context = self._contexts.get(process)
        if context is None:
            context = self._contexts[process] = contextvars.copy_context()
            context.run(CURRENT.set, process)
        self.run.loop.call_later(seconds, act, context=context)

    def delay(self) -> float:
        """Return a time of one way."""
        return self.random.uniform(*self.run.network.weather.delay)

    def is_cut(self, a: Process, b: Process) -> bool:
        """Return whether nothing passes between two processes."""
        return frozenset((a.name, b.name)) in self.run.network.weather.cut

    def routing_id(self) -> bytes:
        """Return a new routing id, as ROUTER assigns it."""
        return b"\x00" + next(self._numbers).to_bytes(4)

    def killed(self, process: Process) -> None:
        """Tell the peers of a process that its connections are closed: at once, or late over a cut link."""
        for wire in self.all:
            for own, other in ((wire.client, wire.server), (wire.server, wire.client)):
                if own is process:
                    seconds = FORGET_SECONDS if self.is_cut(own, other) else self.delay()
                    self.later(other, seconds, wire.closed_for_client if other is wire.client else wire.closed)

    def silent(self, process: Process) -> None:
        """Note that a process is frozen or a link of it is cut; its peers close connections that stay silent."""
        for wire in self.all:
            if wire.client is process:
                self.later(wire.server, 3 * HEARTBEAT_SECONDS, wire.close_by_server_if_silent)
            if wire.server is process:
                self.later(wire.client, 2 * HEARTBEAT_SECONDS, wire.close_by_client_if_silent)


class Pipe:
    """Messages in one direction of a connection, in order."""

    def __init__(self, wires: Wires, source: Process, target: Process, limit: int) -> None:
        self._wires = wires
        self._source = source
        self._target = target
        self._limit = limit
        self._unwritten: list[list[bytes]] = []
        self._taken = self._written = self._room_from = 0
        self._arrives_s = 0.0
        self.deliver: Callable[[list[list[bytes]]], None] = lambda messages: None
        self.on_room: Callable[[], None] = lambda: None

    @property
    def has_room(self) -> bool:
        """Return whether the pipe takes a message; libzmq learns of written ones by halves of the limit."""
        return self._taken - self._room_from < self._limit

    def send(self, frames: list[bytes]) -> None:
        """Take a message; the I/O thread writes it later."""
        self._taken += 1
        if not self._unwritten:
            self._wires.later(self._source, self._wires.random.uniform(*self._wires.lag), self._write)
        self._unwritten.append(frames)

    def _write(self) -> None:
        if self._wires.is_cut(self._source, self._target):
            self._wires.later(self._source, 0.2, self._write)  # TCP sends it again
            return
        messages, self._unwritten = self._unwritten, []
        self._written += len(messages)
        was_full = not self.has_room
        half = (self._limit + 1) // 2
        self._room_from = self._written // half * half
        if was_full and self.has_room:
            self.on_room()
        self._pass(lambda: self.deliver(messages))

    def close(self, act: Callable[[], None]) -> None:
        """Do something in the target behind all that was written."""
        self._pass(act)

    def _pass(self, act: Callable[[], None]) -> None:
        now_s = self._wires.run.loop.time()
        self._arrives_s = max(self._arrives_s, now_s + self._wires.delay())
        self._wires.later(self._target, self._arrives_s - now_s, act)


class Wire:
    """One connection of a container's socket."""

    def __init__(self, wires: Wires, link: SimulatedLink, sockets: SimulatedSockets) -> None:
        self.client, self.server = link.process, sockets.process
        self.link = link
        self.sockets = sockets
        self.routing_id = wires.routing_id()
        self.to_server = Pipe(wires, self.client, self.server, CLIENT_LIMIT)
        self.to_client = Pipe(wires, self.server, self.client, SERVER_LIMIT)
        self._wires = wires
        wires.all.append(self)

    def closed_for_client(self) -> None:
        """The container's socket learns that the connection is gone."""
        self.link.lost(self)

    def closed(self) -> None:
        """The gateway's socket learns it."""
        self.sockets.lost(self)
        if self in self._wires.all:
            self._wires.all.remove(self)

    def close_by_client_if_silent(self) -> None:
        """Close the connection if the gateway does not answer heartbeats."""
        if self.server.is_frozen or self._wires.is_cut(self.client, self.server):
            self.link.lost(self)
            self._wires.later(self.server, FORGET_SECONDS if not self.server.is_frozen else 0.0, self.closed)

    def close_by_server_if_silent(self) -> None:
        """Close the connection if the container sends no heartbeats."""
        if self.client.is_frozen or self._wires.is_cut(self.client, self.server):
            self.closed()
            self._wires.later(self.client, 0.0, self.closed_for_client)


class SimulatedLink:
    """`dexorder.events.sender.Link` of a container: a DEALER, or an XPUB if ``is_fast``.

    Attributes:
        wake: Called when the container has something to read, or room to send.
    """

    def __init__(self, wires: Wires, process: Process, *, is_fast: bool, wake: Callable[[], None]) -> None:
        self.connected = False
        self.due_ns: int | None = None
        self.process = process
        self.is_fast = is_fast
        self.wire: Wire | None = None
        self._wires = wires
        self._wake = wake
        self._inbox: deque[list[bytes]] = deque()
        self._topics: set[bytes] = set()
        self._has_reconnected = False
        self._wait_s = 0.1
        self._connect_later()

    def poll(self, *, now_ns: int) -> bool:
        """See `Link`."""
        reconnected, self._has_reconnected = self._has_reconnected, False
        return reconnected

    def receive(self) -> list[bytes] | None:
        """See `Link`."""
        return self._inbox.popleft() if self._inbox else None

    def send(self, frames: list[bytes]) -> bool:
        """See `Link`. A message under a topic without a subscription is dropped."""
        wire = self.wire
        if self.is_fast and (wire is None or frames[0] not in self._topics):
            return True
        if wire is None or not wire.to_server.has_room:
            return False
        wire.to_server.send(frames)
        return True

    def _connect_later(self) -> None:
        self._wires.later(self.process, self._wait_s, self._connect)
        self._wait_s = min(2 * self._wait_s, 2.0)

    def _connect(self) -> None:
        wires, sockets = self._wires, self._wires.gateway
        is_there = sockets and sockets.process.is_alive and not sockets.process.is_frozen
        if sockets is None or not is_there or wires.is_cut(self.process, sockets.process):
            self._connect_later()
            return
        wire = Wire(wires, self, sockets)
        wire.to_client.deliver = lambda messages: self._received(wire, messages)
        wire.to_client.on_room = wire.to_server.on_room = self._wake
        wire.to_server.close(lambda: sockets.accept(wire))
        self.wire = wire
        wires.later(self.process, 3 * wires.delay(), lambda: self._established(wire))
        if sockets.process.is_frozen:
            wires.silent(sockets.process)

    def _established(self, wire: Wire) -> None:
        if self.wire is wire and self._wires.gateway is wire.sockets and wire.server.is_alive:
            self.connected = self._has_reconnected = True
            self._wait_s = 0.1
            self._wake()
        elif self.wire is wire:
            self.lost(wire)

    def _received(self, wire: Wire, messages: list[list[bytes]]) -> None:
        if self.wire is not wire:
            return
        for frames in messages:
            if self.is_fast:
                (self._topics.add if frames[0][:1] == b"\x01" else self._topics.discard)(frames[0][1:])
            self._inbox.append(frames)
        self._wake()

    def lost(self, wire: Wire) -> None:
        """The connection is gone; subscriptions end with it."""
        if self.wire is not wire:
            return
        self.wire = None
        self.connected = False
        self._inbox.extend([b"\x00" + topic] for topic in sorted(self._topics))
        self._topics.clear()
        self._wake()
        self._connect_later()


class _Frame:
    def __init__(self, content: bytes, sender: str, *, more: bool) -> None:
        self.bytes = content
        self.more = more
        self._sender = sender

    def __getitem__(self, name: str) -> str:
        return self._sender


class _Socket:
    """Receiving side of ROUTER and XSUB, and ROUTER's sending side, as far as `EventSockets` uses pyzmq."""

    def __init__(self) -> None:
        self.wires: dict[bytes, Wire] = {}
        self.frames: deque[_Frame] = deque()
        self._sending: list[bytes] = []

    def arrive(self, prefix: list[bytes], messages: list[list[bytes]], sender: str) -> None:
        """Add messages of a container."""
        for frames in messages:
            parts = [*prefix, *frames]
            last = len(parts) - 1
            self.frames.extend(_Frame(each, sender, more=number < last) for number, each in enumerate(parts))

    def recv(self, flags: int, *, copy: bool) -> _Frame:
        """Return the next frame; Again if none has arrived."""
        if not self.frames:
            raise zmq.Again
        return self.frames.popleft()

    def send(self, frame: bytes, flags: int) -> None:
        """Take the next frame of a message for the connection that its first frame names."""
        if not self._sending:
            wire = self.wires.get(frame)
            if wire is None:
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            if not wire.to_client.has_room:
                raise zmq.ZMQError(zmq.EAGAIN)
        self._sending.append(frame)
        if not flags & zmq.SNDMORE:
            routing_id, *frames = self._sending
            self._sending = []
            self.wires[routing_id].to_client.send(frames)


class _SubSocket(_Socket):
    """XSUB, which sends subscriptions to all."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        super().__init__()
        self._tell = tell

    def send(self, frame: bytes, flags: int = 0) -> None:
        """Send a subscription."""
        self._tell(frame)


class _NoFile:
    """Containers file that does not change."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    def current(self) -> Containers:
        """Return the containers."""
        return self._containers


class SimulatedSockets(EventSockets):
    """`EventSockets` over simulated connections: what it receives, sends and drops is decided by its own code."""

    def __init__(self, wires: Wires, process: Process, containers: Containers) -> None:
        self.process = process
        self.sub_address, self.router_address = "5570", "5571"
        self.wake = lambda: None  # type: ignore[method-assign]
        self._wires = wires
        self._containers: Any = _NoFile(containers)
        self._curve = True
        self._dropped = lambda reason: wires.run.note(f"gateway drops a message or an ack: {reason}")
        self._topics = set()
        self._unsubscribed = False
        self._unsent = UnsentAcks(self._send_ack, self._dropped)
        self._router: Any = _Socket()
        self._sub: Any = _SubSocket(self._tell)
        self._router_unread = self._sub_unread = UnreadBytes()
        wires.gateway = self

    @property
    def has_messages(self) -> bool:
        """Return whether a message waits."""
        return bool(self._router.frames or self._sub.frames)

    def wait(self, timeout_ms: int, *, router: bool, sub: bool) -> tuple[bool, bool]:
        """See `EventSockets`; returns at once."""
        return router and bool(self._router.frames), sub and bool(self._sub.frames)

    def accept(self, wire: Wire) -> None:
        """Take a new connection."""
        key = wire.client.name
        if wire.link.is_fast:
            self._sub.wires[wire.routing_id] = wire
            wire.to_server.deliver = lambda messages: self._arrived(self._sub, [], messages, key)
            for topic in sorted(self._topics):
                wire.to_client.send([b"\x01" + topic])
        else:
            self._router.wires[wire.routing_id] = wire
            wire.to_server.deliver = lambda messages: self._arrived(self._router, [wire.routing_id], messages, key)

    def lost(self, wire: Wire) -> None:
        """Forget a connection."""
        self._router.wires.pop(wire.routing_id, None)
        self._sub.wires.pop(wire.routing_id, None)

    def _arrived(self, socket: Any, prefix: list[bytes], messages: list[list[bytes]], key: str) -> None:
        socket.arrive(prefix, messages, key_of(key))
        self.wake()

    def _tell(self, message: bytes) -> None:
        for wire in self._sub.wires.values():
            wire.to_client.send([message])


def key_of(container: str) -> str:
    """Return the public key of a container: 40 characters that only it has."""
    return container.replace("-", "").ljust(40, "0")
