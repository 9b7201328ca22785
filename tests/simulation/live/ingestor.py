"""An ingestor's realtime as processes that follow each other: runner, reports and live data, slots and heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
from prometheus_client import CollectorRegistry

from dexorder_common.model.realtime import RealtimeDispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.dispatches import StopSignal, read_dispatch, slot_of, used_slot, work_complete
from dexorder_ingestor.broker.slots import JobKind, JobSlots, SlotType
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.job import RealtimeRunner
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.simulation.exchange.live import Exchange
from tests.simulation.live.relay import SimulatedRelay
from tests.simulation.live.venue import VENUE, SimulatedSockets, SimulatedVenue
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.run import Run

_METRICS = IngestorMetrics(CollectorRegistry())
_SETTINGS = IngestorSettings(name="ingestor", rate_limit_dir=Path("unused"))
_SLOTS = 4


class SimulatedChannel:
    """What the generated stubs use of a gRPC channel, over the run's network."""

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target

    def unary_unary(self, path: str, **_: object) -> Callable[..., Awaitable[Any]]:
        method = path.rpartition("/")[2]

        async def call(request: Any, *, timeout: float | None = None, metadata: object = None) -> Any:
            return await self._network.call(self._target, method, request, timeout=timeout)

        return call

    def stream_unary(self, path: str, **_: object) -> Callable[..., Awaitable[Any]]:
        method = path.rpartition("/")[2]

        async def call(requests: AsyncIterable[Any]) -> Any:
            async for request in requests:
                await self._network.call(self._target, method, request)

        return call

    def unary_stream(self, path: str, **_: object) -> None:
        """Nothing here reads a stream."""


@dataclass
class SimulatedIngestor:
    """An ingestor; `start` it again after `kill`."""

    run: Run
    name: str
    relay: SimulatedRelay
    exchange: Exchange
    dialect: str
    process: Process = field(default_factory=lambda: Process("unborn"))
    starts: int = 0

    def start(self, *, skew_ns: int = 0) -> None:
        """Start a process, which knows nothing of the one before."""
        self.starts += 1
        self.process = Process(self.name, skew_ns=skew_ns)
        self.run.loop.spawn(self.process, self._run())

    def kill(self) -> None:
        """End the process with its connections."""
        self.run.note(f"{self.name}: killed")
        self.run.loop.kill(self.process)
        self.relay.peers.pop(self._identity, None)
        self.exchange.disconnect(lambda each: each.process is self.process, "killed")

    async def _run(self) -> None:
        random, clock = self.run.generator(f"{self.name} {self.starts}"), self.run.clock(self.process)
        settings = _SETTINGS.model_copy(update={"name": self.name})
        gateway, relay = (cast(grpc.aio.Channel, SimulatedChannel(self.run.network, t)) for t in ("gateway", "relay"))
        publisher = IngestorPublisher(gateway, relay, settings, _METRICS, random=random)
        venue = SimulatedVenue(self.dialect, self.exchange, settings, _METRICS, clock, random)
        sockets = partial(SimulatedSockets, exchange=self.exchange, process=self.process, random=random)
        self._runner = RealtimeRunner({VENUE: LiveQueries(venue)}, publisher, settings, _METRICS, sockets=sockets)
        self._slots = JobSlots({SlotType(VENUE, JobKind.REALTIME): _SLOTS}, repeat_ns=60 * SECOND_NS)
        self._stops: dict[str, StopSignal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._connections = 0
        self.connected()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._runner.reports.run())
            tasks.create_task(self._runner.live.run())
            while True:
                await asyncio.sleep(settings.heartbeat_seconds)
                self._beat()

    # --- the broker

    @property
    def _identity(self) -> bytes:
        return f"{self.name} {self.starts} {self._connections}".encode()

    def connected(self) -> None:
        """Tell the relay everything that it can't know on a new connection."""
        self.relay.peers.pop(self._identity, None)
        self._connections += 1
        self.relay.peers[self._identity] = self
        for completion in self._slots.unsettled(now_ns=self._clock.monotonic_ns()):
            self._send(work_complete(completion))
        self._beat()
        self._slots.forget_offers()
        self._offer()

    def receive(self, message: pb.DataRequest | pb.WorkStop) -> None:
        """Take a frame of the relay."""
        if isinstance(message, pb.WorkStop):
            if stop := self._stops.get(message.job_id):
                stop.set(success=True)
            return
        if message.job_id in self._slots.running:
            return
        self._slots.use_offer(used_slot(message))
        dispatch = read_dispatch(message)
        assert isinstance(dispatch, RealtimeDispatch)
        reason = self._slots.take(dispatch.dispatch_id, slot_of(dispatch))
        if reason is not None:
            self._send(pb.WorkReject(job_id=message.job_id, reason=reason))
        else:
            self._stops[dispatch.dispatch_id] = StopSignal()
            task = asyncio.create_task(self._work(dispatch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._offer()

    async def _work(self, dispatch: RealtimeDispatch) -> None:
        dispatch_id = dispatch.dispatch_id
        self.run.note(f"{self.name}: dispatch {dispatch_id[:16]} of {dispatch.ticker} begins")
        end = await self._runner.run(dispatch, self._stops[dispatch_id])
        outcome = "fenced" if end is None else end.message or ("stopped" if end.success else "failed")
        self.run.note(f"{self.name}: dispatch {dispatch_id[:16]} ends: {outcome}")
        del self._stops[dispatch_id]
        self._slots.release(dispatch_id)
        if end is not None:
            self._slots.complete(end)
            self._send(work_complete(end))
            self._slots.note_sent(dispatch_id, now_ns=self._clock.monotonic_ns())
        self._offer()

    def _offer(self) -> None:
        for venue, _ in self._slots.take_offers():
            self._send(pb.WorkerReady(exchanges=[venue], job_type=pb.REALTIME))

    def _beat(self) -> None:
        for dispatch_id in self._slots.running:
            self._send(pb.WorkHeartbeat(job_id=dispatch_id))

    def _send(self, message: Any) -> None:
        identity = self._identity
        self.run.network.post(self.relay.process, lambda: self.relay.receive(identity, message))
