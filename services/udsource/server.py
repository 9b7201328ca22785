"""What starts and in which order it stops.

    admin client -> gRPC on TCP and the unix socket -> server-info file -> health by a question to Kafka each second

The consumer group is joined by the first plain ReadFn, not here. At SIGTERM: not serving, nothing new is handed out,
acks and running ranges come to their end within ``drain_seconds``, the streams end, the acked is committed. A
stream whose client reads no more is cut, at the latest a second after that. What nobody foresaw, in a handler or in the
background, is answered and ends the process the same way, with exit status 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import grpc
import structlog
from prometheus_client import CollectorRegistry

from services.common.model.errors import Unavailable
from services.common.rpc.lifecycle import RunningServer, grpc_server, stop_signal
from services.gen.source.v1 import source_pb2
from services.gen.source.v1 import source_pb2_grpc as rpc
from services.udsource import server_info
from services.udsource.config import UdsourceSettings
from services.udsource.metrics import UdsourceMetrics
from services.udsource.numaflow import FatalFailure, end_within
from services.udsource.replay_reader import ReplayPool
from services.udsource.service import SourceService
from services.udsource.topic_reader import TopicReader
from services.udsource.topic_state import TopicMonitor

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.5
CLOSE_SECONDS = 15.0
"""Beyond ``drain_seconds``, how long a failed process may take for its last commit and for leaving the group."""


async def main(settings: UdsourceSettings) -> None:
    """Serve until SIGTERM, SIGINT or a failure.

    Raises:
        Exception: The failure.
    """
    async with stop_signal() as stop:

        def failed() -> None:
            stop.set()
            end_within(settings.drain_seconds + CLOSE_SECONDS)

        async with serve(settings, FatalFailure(failed)):
            await stop.wait()


@asynccontextmanager
async def serve(settings: UdsourceSettings, failure: FatalFailure | None = None) -> AsyncIterator[RunningServer]:
    """Serve until the block ends, then drain.

    Args:
        failure: Gets what nobody foresaw; the block should end then.
    Raises:
        OSError: An address can't be bound or the server-info file not be written.
        Exception: What nobody foresaw, behind everything else.
    """
    failure = failure or FatalFailure()
    registry = CollectorRegistry()
    metrics = UdsourceMetrics(registry)
    watch = TopicMonitor(settings)
    topic = TopicReader(settings, metrics, lambda: watch.failure is None)
    ranges = ReplayPool(settings, watch)
    service = SourceService(watch, topic, ranges, metrics)
    source = source_pb2.DESCRIPTOR.services_by_name["Source"].full_name

    def register(server: grpc.aio.Server) -> Sequence[str]:
        # The service does not know its transport, so it is no subclass of grpcio's.
        rpc.add_SourceServicer_to_server(cast(rpc.SourceServicer, service), server)
        return [source]

    def internal_text(method: str, error: BaseException) -> str | None:
        # Health, reflection and channelz are not what a source is for.
        return failure.note(method, error) if method.startswith(f"{source}/") else None

    info = settings.server_info_file
    if info is not None:
        server_info.remove(info)
    sockets = [f"unix:{settings.socket}"] if settings.socket else []
    try:
        async with grpc_server(
            settings, register, registry=registry, extra_addresses=sockets, internal_text=internal_text
        ) as running:
            if info is not None:
                server_info.write(info)
            watching = partial(_watch_kafka, settings, running, watch, topic, ranges, metrics)
            ticking = partial(_keep_ticking, topic)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(failure.guard("the watch of Kafka", watching)),
                    group.create_task(failure.guard("the care of the consumer", ticking)),
                ]
                try:
                    yield running
                finally:
                    tasks[0].cancel()
                    if info is not None:
                        server_info.remove(info)  # who connects anew waits for the next process
                    await running.begin_stop()
                    await service.drain(settings.drain_seconds)
                    tasks[1].cancel()
    finally:
        await topic.close()
        await ranges.close(reachable=watch.ready)
        await watch.close()
    if failure.error is not None:
        raise failure.error


async def _watch_kafka(
    settings: UdsourceSettings,
    running: RunningServer,
    watch: TopicMonitor,
    topic: TopicReader,
    ranges: ReplayPool,
    metrics: UdsourceMetrics,
) -> None:
    """Keep health, metrics and what is remembered of the topic true."""
    serving: bool | None = None
    while True:
        try:
            state = await watch.look()
            metrics.pending.set(topic.pending(state))
        except Unavailable as error:
            metrics.pending.set(-1)
            if serving is not False:
                log.warning("not serving", reason=str(error))
        if serving is not watch.ready:
            serving = watch.ready
            await running.set_serving(serving)
            metrics.kafka_up.set(serving)
            if serving:
                log.info("serving", topic=settings.topic, partitions=len(watch.state.ends))
        ranges.trim()
        await asyncio.sleep(settings.poll_seconds)


async def _keep_ticking(topic: TopicReader) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        await topic.tick()
