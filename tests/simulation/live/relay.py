"""The relay's realtime as processes that follow each other on one disk: subscriptions, leases, positions, live data.

The parts, their rules and the RPCs are the product's. The store is SQLite in memory: what was not synced is lost with
the process. History is not fetched here; the requests for it are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from dexorder_common.model.dispatch_id import DispatchNumbers, new_dispatch_id
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_relay.broker import router
from dexorder_relay.broker.dispatcher import JobDispatcher, ToIngestor
from dexorder_relay.config import RelaySettings
from dexorder_relay.engine import RelayEngine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.realtime.control import ControlChannel
from dexorder_relay.realtime.jobs import FLUSH_SECONDS, RealtimeJobs
from dexorder_relay.realtime.live import LiveHub
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.jobs import HistoryJobs
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.service.realtime import RealtimeReports, RealtimeRpcs
from dexorder_relay.service.reports import PipelineReports
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.workers import TrialRules
from tests.simulation.chain.rpc import handler_of
from tests.simulation.disk import Disk
from tests.simulation.live.venue import VENUE
from tests.simulation.loop import Process
from tests.simulation.run import Run

_METRICS = RelayMetrics(CollectorRegistry())
_SETTINGS = RelaySettings()
_TICK_SECONDS = 1.0
_SYNC_SECONDS = (0.0005, 0.02)


class Peer(Protocol):
    """An ingestor as the relay's broker sees it."""

    process: Process

    def receive(self, message: pb.DataRequest | pb.WorkStop) -> None:
        """Take a frame."""

    def connected(self) -> None:
        """Take note of a new connection."""


class _Requests:
    """Takes the place of `Submitter` and `HistoryJobs`: history is another part's."""

    def __init__(self) -> None:
        self.submitted: list[HistoryRequest] = []

    async def submit(self, request: HistoryRequest) -> None:
        self.submitted.append(request)

    async def report_jobs(self, pages: object, finals: object) -> None:
        pass


@dataclass
class _Engine:
    """The parts of `RelayEngine` that the RPCs of realtime use."""

    context: Context
    realtime: RealtimeJobs
    live: LiveHub
    control: ControlChannel
    jobs: HistoryJobs


@dataclass
class SimulatedRelay:
    """The relay; `start` it again after `kill`."""

    run: Run
    peers: dict[bytes, Peer] = field(default_factory=dict)
    process: Process = field(default_factory=lambda: Process("relay"))
    realtime: RealtimeJobs | None = None
    """None until it has loaded its state."""

    def __post_init__(self) -> None:
        self._random = self.run.generator("relay")
        self._disk = Disk(self.run.generator("live disk"))
        self._dispatcher: JobDispatcher | None = None

    def start(self) -> None:
        """Start a process on the disk as the last one has left it."""
        self.process = Process("relay")
        self.run.loop.spawn(self.process, self._run())

    def kill(self) -> None:
        """End the process; what it has not synced is lost."""
        self.run.note("relay: killed")
        self.run.loop.kill(self.process)
        self.realtime = self._dispatcher = None

    async def _run(self) -> None:
        clock, random = self.run.clock(self.process), self._random
        store = self._disk.store(self.process, clock.wall_ns())
        numbers = DispatchNumbers()
        leases = Leases(
            lease_ns=int(_SETTINGS.lease_seconds * SECOND_NS),
            new_id=lambda context="": new_dispatch_id(numbers.next(), f"{random.getrandbits(64):016x}{context}"),
            max_slots=_SETTINGS.max_slots_per_ingestor,
            trials=TrialRules(),
        )
        policy = RetryPolicy(_SETTINGS.max_attempts, int(_SETTINGS.retry_backoff_seconds * SECOND_NS))
        state = HistoryState(leases, policy, job_periods=_SETTINGS.job_periods, page_periods=_SETTINGS.page_periods)
        context = Context(_SETTINGS, frozenset({VENUE}), state, store, cast(Any, None), clock, _METRICS)
        registry = Registry(leases, lambda: f"realtime-{random.getrandbits(64):016x}")
        await store.load(state, registry, now_ns=clock.monotonic_ns())
        numbers.restart(await store.last_number(), wall_ns=clock.wall_ns())
        requests, live = _Requests(), LiveHub(_SETTINGS.live_queue)
        self.realtime = RealtimeJobs(context, registry, cast(Submitter, requests), live)
        live.state = self.realtime.state
        self._dispatcher = dispatcher = JobDispatcher(context, [self.realtime])
        control = ControlChannel(_SETTINGS.control_timeout_seconds)
        self._serve(_Engine(context, self.realtime, live, control, cast(HistoryJobs, requests)))
        self.run.note(f"relay: started with {len(registry.subscriptions)} subscriptions")
        for peer in self.peers.values():
            if peer.process.is_alive:
                self.run.network.post(peer.process, peer.connected)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(dispatcher.run(self))
            tasks.create_task(self._tick(context, dispatcher))
            tasks.create_task(self._tick_realtime(self.realtime))
            context.wake.set()

    async def _tick(self, context: Context, dispatcher: JobDispatcher) -> None:
        last_ns = context.clock.monotonic_ns()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now_ns = context.clock.monotonic_ns()
            suspended = now_ns - last_ns > context.settings.lease_seconds * SECOND_NS / 2
            dispatcher.take_back_expired(now_ns=now_ns, suspended=suspended)
            last_ns = now_ns
            context.wake.set()

    async def _tick_realtime(self, realtime: RealtimeJobs) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await realtime.tick()

    def _serve(self, engine: _Engine) -> None:
        whole = cast(RelayEngine, engine)
        rpcs, reports, pipeline = RealtimeRpcs(whole), RealtimeReports(whole), PipelineReports(whole)
        served: dict[str, Callable[[Any, object], Awaitable[Message]]] = {
            "StartRealtime": rpcs.StartRealtime,
            "ListRealtime": rpcs.ListRealtime,
            "ResumeRealtime": reports.ResumeRealtime,
            "ReportRealtime": reports.ReportRealtime,
            "ReportJobs": pipeline.ReportJobs,
        }
        for method, rpc in served.items():
            self.run.network.serve(self.process, method, handler_of(rpc))

        async def push(message: Any) -> Message:
            async def one() -> Any:
                yield message

            return await reports.PushMarketData(one(), None)

        self.run.network.serve(self.process, "PushMarketData", push)

    # --- the broker

    def receive(self, identity: bytes, message: Any) -> None:
        """Take a frame of an ingestor."""
        if self._dispatcher is None:
            return
        if isinstance(message, pb.WorkerReady):
            router._handle_ready(identity, message, self._dispatcher)
        else:
            router._handle_dispatch(identity, message, self._dispatcher)

    async def send(self, identity: bytes, message: ToIngestor) -> bool:
        """See `IngestorSender.send`."""
        peer, frame = self.peers.get(identity), router._encode(message)
        if peer is None or not peer.process.is_alive:
            return False
        self.run.network.post(peer.process, lambda: peer.receive(frame))
        return True
