"""What starts and in which order it stops.

    admin client -> gRPC on TCP and the unix socket -> server-info file -> health by a question to Kafka each second

The consumer group is joined by the first plain ReadFn, not here. At SIGTERM: not serving, nothing new is handed out,
acks and running ranges come to their end within ``drain_seconds``, the streams end, the acked is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import grpc
import structlog
from prometheus_client import CollectorRegistry

from services.common.errors import Unavailable
from services.common.lifecycle import RunningServer, grpc_server, stop_signal
from services.gen.source.v1 import source_pb2
from services.gen.source.v1 import source_pb2_grpc as rpc
from services.udsource import server_info
from services.udsource.config import UdsourceSettings
from services.udsource.metrics import UdsourceMetrics
from services.udsource.replay_reader import ReplayReader
from services.udsource.service import SourceService
from services.udsource.topic_reader import TopicReader
from services.udsource.topic_watch import TopicWatch

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.5


async def main(settings: UdsourceSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with stop_signal() as stop, serve(settings):
        await stop.wait()


@asynccontextmanager
async def serve(settings: UdsourceSettings) -> AsyncIterator[RunningServer]:
    """Serve until the block ends, then drain.

    Raises:
        OSError: An address can't be bound or the server-info file not be written.
    """
    registry = CollectorRegistry()
    metrics = UdsourceMetrics(registry)
    watch = TopicWatch(settings)
    topic = TopicReader(settings, metrics, lambda: watch.failure is None)
    ranges = ReplayReader(settings, watch)
    service = SourceService(watch, topic, ranges, metrics)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        # The service does not know its transport, so it is no subclass of grpcio's.
        rpc.add_SourceServicer_to_server(cast(rpc.SourceServicer, service), server)
        return [source_pb2.DESCRIPTOR.services_by_name["Source"].full_name]

    info = settings.server_info_file
    if info is not None:
        server_info.remove(info)
    sockets = [f"unix:{settings.socket}"] if settings.socket else []
    try:
        async with grpc_server(settings, register, registry=registry, extra_addresses=sockets) as running:
            if info is not None:
                server_info.write(info)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_watch_kafka(settings, running, watch, topic, ranges, metrics)),
                    group.create_task(_keep_ticking(topic)),
                ]
                try:
                    yield running
                finally:
                    tasks[0].cancel()
                    await running.set_serving(False)
                    await service.drain(settings.drain_seconds)
                    tasks[1].cancel()
    finally:
        await topic.close()
        await ranges.close(reachable=watch.ready)
        await watch.close()
        if info is not None:
            server_info.remove(info)


async def _watch_kafka(
    settings: UdsourceSettings,
    running: RunningServer,
    watch: TopicWatch,
    topic: TopicReader,
    ranges: ReplayReader,
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
