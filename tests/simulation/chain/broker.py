"""Connections between ingestors and the relay's broker, in place of ZeroMQ's sockets.

Frames of a connection arrive in order, or the connection is lost: then what is under way in either direction is gone,
and the ingestor opens another one, with another identity.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Self

import zmq

from dexorder_ingestor.broker.sockets import BrokerSocket
from tests.simulation.loop import CURRENT, SECOND_NS, Process, SimulatedLoop
from tests.simulation.network import Network

RETRY_SECONDS = 1.0


class Inbox:
    """Frames that wait for their reader."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._frames: deque[list[bytes]] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, frames: list[bytes]) -> None:
        """Add frames."""
        self._frames.append(frames)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> list[bytes]:
        """Wait for frames."""
        while not self._frames:
            self._reader = self._loop.create_future()
            await self._reader
        return self._frames.popleft()


class _Frame(zmq.Frame):
    """Frame of no real connection."""

    def __getitem__(self, name: Any, /) -> Any:
        return ""


class RouterSocket:
    """The relay's end of all connections, as `dexorder_relay.broker.router.Broker` uses it."""

    def __init__(self, wires: Wires, process: Process) -> None:
        self.process = process
        self.inbox = Inbox(wires.loop)
        self._wires = wires

    async def recv_multipart(self, *, copy: bool) -> list[zmq.Frame]:
        """Wait for frames behind the identity of their sender."""
        return [_Frame(content) for content in await self.inbox.get()]

    async def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        """Send frames behind an identity; EHOSTUNREACH as ZeroMQ, if nobody has it."""
        wire = self._wires.of(frames[0])
        if wire is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        wire.to_ingestor(frames[1:])


class Wire:
    """One connection."""

    def __init__(self, wires: Wires, identity: bytes, ingestor: Process, router: RouterSocket) -> None:
        self.identity = identity
        self.ingestor = ingestor
        self.router = router
        self.inbox = Inbox(wires.loop)
        self.is_up = True
        self.gone: asyncio.Future[None] = wires.loop.create_future()
        self._wires = wires
        self._last_ns = {True: 0, False: 0}
        self._contexts = {True: _context(router.process), False: _context(ingestor)}

    def to_relay(self, frames: list[bytes]) -> None:
        """Send frames to the relay."""
        self._send(True, lambda: self.router.inbox.put([self.identity, *frames]))

    def to_ingestor(self, frames: list[bytes]) -> None:
        """Send frames to the ingestor."""
        self._send(False, lambda: self.inbox.put(frames))

    def _send(self, upwards: bool, deliver: Callable[[], None]) -> None:
        loop = self._wires.loop
        due_ns = max(loop.now_ns + round(self._wires.delay() * SECOND_NS), self._last_ns[upwards] + 1)
        self._last_ns[upwards] = due_ns

        def arrive() -> None:
            if self.is_up:
                deliver()

        loop.call_at(due_ns / SECOND_NS, arrive, context=self._contexts[upwards])

    def drop(self) -> None:
        """Lose the connection."""
        self.is_up = False
        if not self.gone.done():
            self.gone.set_result(None)


class Wires:
    """All connections, and the router of the relay that lives."""

    def __init__(self, loop: SimulatedLoop, network: Network, random: Random) -> None:
        self.loop = loop
        self.router: RouterSocket | None = None
        self._network = network
        self._random = random
        self._wires: dict[bytes, Wire] = {}

    def bind(self, process: Process) -> Any:
        """Return the router's socket of a new life of the relay."""
        self.router = RouterSocket(self, process)
        return self.router

    def of(self, identity: bytes) -> Wire | None:
        """Return a connection that is up."""
        wire = self._wires.get(identity)
        return wire if wire is not None and wire.is_up and wire.ingestor.is_alive else None

    def sockets(self, process: Process) -> IngestorSockets:
        """Return what an ingestor opens its sockets with."""
        return IngestorSockets(self, process)

    def drop(self, process: Process) -> None:
        """Lose all connections of a process."""
        for wire in list(self._wires.values()):
            if process in (wire.ingestor, wire.router.process):
                self._remove(wire)

    def drop_between(self, pair: frozenset[str]) -> None:
        """Lose the connections between two processes."""
        for wire in list(self._wires.values()):
            if {wire.ingestor.name, wire.router.process.name} == pair:
                self._remove(wire)

    def delay(self) -> float:
        """Return the time of one way."""
        return self._random.uniform(*self._network.weather.delay)

    def connect(self, ingestor: Process) -> Wire | None:
        """Connect, if the relay lives and nothing is in between."""
        router = self.router
        pair = frozenset((ingestor.name, "relay"))
        if router is None or not router.process.is_alive or router.process.is_frozen or pair in self.cuts:
            return None
        wire = Wire(self, self._random.randbytes(16), ingestor, router)
        self._wires[wire.identity] = wire
        return wire

    @property
    def cuts(self) -> set[frozenset[str]]:
        """Pairs of names between which nothing passes."""
        return self._network.weather.cut

    def _remove(self, wire: Wire) -> None:
        wire.drop()
        self._wires.pop(wire.identity, None)


class IngestorSockets:
    """`dexorder_ingestor.broker.sockets.BrokerSockets` of one process."""

    def __init__(self, wires: Wires, process: Process) -> None:
        self._wires = wires
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BrokerSocket]:
        """Open a socket, which connects by itself."""
        socket = _Dealer(self._wires, self._process)
        try:
            yield socket
        finally:
            if socket.wire is not None:
                socket.wire.drop()


class _Dealer:
    def __init__(self, wires: Wires, process: Process) -> None:
        self.wire: Wire | None = None
        self._wires = wires
        self._process = process

    async def connected(self) -> None:
        await asyncio.sleep(self._wires.delay())
        while (wire := self._wires.connect(self._process)) is None:  # noqa: ASYNC110 - as ZeroMQ
            await asyncio.sleep(RETRY_SECONDS)
        self.wire = wire

    async def lost(self) -> None:
        assert self.wire is not None
        await asyncio.shield(self.wire.gone)

    async def send(self, frames: list[bytes]) -> None:
        assert self.wire is not None
        if self.wire.is_up:
            self.wire.to_relay(frames)

    async def receive(self) -> list[bytes]:
        assert self.wire is not None
        return await self.wire.inbox.get()


def _context(process: Process) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(CURRENT.set, process)
    return context
