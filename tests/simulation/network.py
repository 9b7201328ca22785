"""Calls and messages between simulated processes, with delays, losses, doubled deliveries and partitions.

Messages are copied as bytes, so that no two processes share an object. Each fault is drawn from the run's generator and
noted in its story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.simulation.loop import CURRENT, WORLD, Process, ProcessEnded, SimulatedLoop

REPEATED_SECONDS = 40.0


@dataclass
class Weather:
    """Faults of the network, which a scenario changes while it runs.

    Attributes:
        delay: Shortest and longest time of one way, in seconds.
        lost: Share of calls whose request or answer, each with half of it, does not arrive.
        doubled: Share of one-way messages that arrive twice.
        repeated: Share of calls that arrive a second time, up to ``REPEATED_SECONDS`` later and perhaps at a process
            that was started since: a proxy repeats them, or the target was frozen. Nobody waits for that answer.
        once: Methods whose calls never arrive again, since a later call of their client may have changed what they set.
        cut: Pairs of names between which nothing passes.
    """

    delay: tuple[float, float] = (0.0005, 0.01)
    lost: float = 0.0
    doubled: float = 0.0
    repeated: float = 0.0
    once: frozenset[str] = frozenset()
    cut: set[frozenset[str]] = field(default_factory=set)


class CallFailed(grpc.aio.AioRpcError):
    """A call that failed as in gRPC."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


Handler = Callable[[Any], Awaitable[Message]]
"""Serves one RPC: takes the request; raises `CallFailed` with the status that a client sees."""


class Network:
    """All links. A name has at most one living process; calls to a name without one fail at once.

    Args:
        repeats: Generator of its own for calls that arrive again, so that runs without any stay what they were.
    """

    def __init__(self, loop: SimulatedLoop, random: Random, repeats: Random, note: Callable[[str], None]) -> None:
        self.weather = Weather()
        self._loop = loop
        self._random = random
        self._repeats = repeats
        self._note = note
        self._servers: dict[tuple[str, str], tuple[Process, Handler]] = {}

    def serve(self, process: Process, method: str, handler: Handler) -> None:
        """Serve a method under the process's name, in place of an earlier process of that name."""
        self._servers[process.name, method] = process, handler

    async def call(self, target: str, method: str, request: Message, *, timeout: float | None = None) -> Any:
        """Call a method of another process.

        Raises:
            CallFailed: With the status that the handler gave; UNAVAILABLE if the target is away or the connection
                broke, in which case the handler may have run; DEADLINE_EXCEEDED.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._call(target, method, request)
        except TimeoutError:
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, f"{method}: no answer in {timeout} s") from None

    async def _call(self, target: str, method: str, request: Message) -> Any:
        source = CURRENT.get()
        fate = self._random.random()
        await asyncio.sleep(self._delay())
        if self._is_cut(source.name, target) or fate < self.weather.lost / 2:
            self._note(f"{source.name} -> {target} {method}: the request is lost")
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, f"{target} is unreachable")
        if self._repeats.random() < self.weather.repeated and method.rpartition("/")[2] not in self.weather.once:
            self._loop.spawn(WORLD, self._repeat(source.name, target, method, _copied(request)))
        process, handler = self._servers.get((target, method), (None, None))
        if process is None or handler is None or not process.is_alive:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, f"{target} is not running")
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._loop.spawn(process, _serve(handler, _copied(request), answer))
        process.peers.add(answer)
        try:
            result = await answer
        except ProcessEnded as error:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        finally:
            process.peers.discard(answer)
        await asyncio.sleep(self._delay())
        if self._is_cut(source.name, target) or fate > 1 - self.weather.lost / 2:
            self._note(f"{target} -> {source.name} {method}: the answer is lost")
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, f"the connection to {target} broke")
        return _copied(result)

    async def _repeat(self, source: str, target: str, method: str, request: Message) -> None:
        await asyncio.sleep(self._repeats.uniform(0.0, REPEATED_SECONDS))
        process, handler = self._servers.get((target, method), (None, None))
        if process is None or handler is None or not process.is_alive:
            return
        self._note(f"{source} -> {target} {method}: the request arrives again")
        unheard: asyncio.Future[Message] = self._loop.create_future()
        unheard.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._loop.spawn(process, _serve(handler, request, unheard))

    def post(self, target: Process, deliver: Callable[[], None]) -> None:
        """Deliver a one-way message after a delay, in any order; doubled as the weather says, lost on a cut link."""
        source = CURRENT.get()
        if self._is_cut(source.name, target.name):
            return
        copies = 2 if self._random.random() < self.weather.doubled else 1
        for _ in range(copies):
            self._loop.spawn(target, _later(self._delay(), deliver))

    def _delay(self) -> float:
        return self._random.uniform(*self.weather.delay)

    def _is_cut(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self.weather.cut


async def _serve(handler: Handler, request: Message, answer: asyncio.Future[Message]) -> None:
    try:
        result = await handler(request)
    except CallFailed as error:
        if not answer.done():
            answer.set_exception(error)
    except Exception as error:  # as a server answers an exception of a handler
        if not answer.done():
            answer.set_exception(CallFailed(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"))
    else:
        if not answer.done():
            answer.set_result(result)


async def _later(seconds: float, act: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    act()


def _copied(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())
