"""One life of the relay: the product's engine of history over the models of disk, table, broker and network."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from dexorder_common.messaging.unread_bytes import UnreadBytes
from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_relay.broker.router import Broker
from dexorder_relay.config import RelaySettings
from dexorder_relay.engine import RelayEngine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.retraction_log import RetractionLog
from dexorder_relay.service.reports import JobReports, PipelineReports
from dexorder_relay.service.requests import RequestRpcs
from dexorder_relay.start import empty_state, load
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.udfs import UdfRegistry
from dexorder_relay.store.database import Store
from tests.simulation.chain.parts import Parts
from tests.simulation.chain.rpc import handler_of, serve
from tests.simulation.exchange.history import LISTED
from tests.simulation.loop import Process

NAME = "relay"
POLL = "/simulation/Poll"
POLL_SECONDS = 300.0
TICK_SECONDS, RECHECK_SECONDS = 4.0, 15.0
_METRICS = RelayMetrics(CollectorRegistry())
SETTINGS = RelaySettings(
    max_attempts=1_000,
    job_periods=400,
    page_periods=100,
    recheck_after_seconds=(60.0, 300.0, 1_500.0),
    request_timeout_seconds=900.0,
)
_SERVICES = "dexorder.relay.v1."


class Relay:
    """What outlives the process: its disk."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.disk = parts.disk
        self.engine: RelayEngine | None = None
        """Of the life that is ready; read by the checks only."""

    async def live(self, process: Process) -> None:
        """Run one life."""
        self.engine = None
        parts, clock = self.parts, self.parts.run.clock(process)
        random = parts.supervisor.generator(process)
        store = self.disk.store(process, clock.wall_ns())
        numbers = DispatchNumbers(lambda: f"{random.getrandbits(64):016x}")
        state, table = empty_state(SETTINGS, numbers), cast(Any, parts.table)
        context = Context(SETTINGS, frozenset({LISTED}), state, store, table, clock, _METRICS, random)
        registry = Registry(state.leases, lambda: context.new_id("part-"))
        await parts.table.pause()
        numbers.restart(await load(context, registry, table), wall_ns=clock.wall_ns())
        retraction_log = RetractionLog(table, numbers, clock, random=random)
        none = cast(Any, None)
        engine = self.engine = RelayEngine(context, registry, retraction_log, UdfRegistry({}), none, none)
        self._serve(process, engine)
        socket = parts.wires.bind(process)
        broker = Broker(socket, cast(Any, None), _METRICS, "", UnreadBytes())
        async with asyncio.TaskGroup() as tasks:
            context.tasks = tasks
            tasks.create_task(engine.dispatcher.run(broker))
            tasks.create_task(broker._receive_frames(engine.dispatcher))  # its other tasks watch sockets
            tasks.create_task(engine.upkeep.run(TICK_SECONDS))
            tasks.create_task(engine.rechecker.run(RECHECK_SECONDS))
            tasks.create_task(_fail_stop(store))
            engine.completion.check_ready()
            context.wake.set()

    def _serve(self, process: Process, engine: RelayEngine) -> None:
        network, rpcs = self.parts.run.network, RequestRpcs(engine)
        serve(network, process, f"{_SERVICES}IngestorService", JobReports(engine), "ReportPage", "ReportDelay")
        serve(
            network, process, f"{_SERVICES}PipelineService", PipelineReports(engine), "ReportJobs", "DescribeDispatches"
        )
        serve(network, process, f"{_SERVICES}HistoryService", rpcs, "SubmitHistorical", "GetRequest", "CancelRequest")
        serve(network, process, f"{_SERVICES}OperatorService", rpcs, "RefreshHistorical")

        async def poll(request: history_pb.WatchNotificationsRequest, _: object) -> Message:
            """Return the first notification after a cursor, or a reset; after a while, that there is none."""
            found = history_pb.WatchNotificationsResponse()
            try:
                async with (
                    asyncio.timeout(POLL_SECONDS),
                    aclosing(cast(Any, rpcs.WatchNotifications(request, None))) as stream,
                ):
                    async for found in stream:
                        if found.WhichOneof("message") != "opened":
                            break
            except TimeoutError:
                pass
            return found

        network.serve(process, POLL, handler_of(poll))


async def _fail_stop(store: Store) -> None:
    await asyncio.shield(store.failed)
