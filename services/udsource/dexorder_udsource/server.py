"""Start and stop of udsource.

    admin client -> gRPC on TCP and the unix socket -> server-info file -> health by a query to Kafka each second

The first plain ReadFn joins the consumer group. On SIGTERM the service reports NOT_SERVING and issues no new records;
acks and running ranges finish within ``drain_seconds``; the streams end, and the acked records are committed. If its
client no longer reads, a stream is cut at most a second later. An unexpected failure, in a handler or in the
background, is answered and ends the process in the same way, with exit status 1.
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

from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server, stop_signal
from dexorder_protos.source.v1 import source_pb2
from dexorder_protos.source.v1 import source_pb2_grpc as rpc
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.numaflow import FatalFailure, exit_after, remove_server_info, write_server_info
from dexorder_udsource.replay_reader import ReplayPool, ReplayTopic, ReplayTopics
from dexorder_udsource.service import SourceService
from dexorder_udsource.topic_monitor import TopicMonitor
from dexorder_udsource.topic_reader import TopicReader, UdsourceMetrics

log = structlog.get_logger(__name__)
CLOSE_SECONDS = 15.0
"""Time after ``drain_seconds`` for a failed process to commit and leave the group."""


async def main(settings: UdsourceSettings) -> None:
    """Serve until SIGTERM, SIGINT or a failure, which is raised."""
    async with stop_signal() as stop:

        def failed() -> None:
            stop.set()
            exit_after(settings.drain_seconds + CLOSE_SECONDS)

        failure = FatalFailure(failed)
        async with serve(settings, failure) as running:
            await stop.wait()
            if failure.error is None:
                await running.leave()


@asynccontextmanager
async def serve(settings: UdsourceSettings, failure: FatalFailure | None = None) -> AsyncIterator[RunningServer]:
    """Serve until the block ends, then drain.

    Args:
        failure: Notes unexpected failures; the block should end then.
    Raises:
        OSError: An address can't be bound, or the server-info file can't be written.
        Exception: The first unexpected failure, after everything has stopped.
    """
    failure = failure or FatalFailure()
    registry = CollectorRegistry()
    metrics = UdsourceMetrics(registry)
    monitor = TopicMonitor(settings)
    topic = TopicReader(settings, metrics, lambda: monitor.failure is None)
    topics = ReplayTopics(settings, ReplayTopic(monitor, ReplayPool(settings, monitor)))
    service = SourceService(monitor, topic, topics, metrics)
    source = source_pb2.DESCRIPTOR.services_by_name["Source"].full_name

    def register(server: grpc.aio.Server) -> Sequence[str]:
        # The service does not depend on its transport, so it is not a subclass of grpcio's servicer.
        rpc.add_SourceServicer_to_server(cast(rpc.SourceServicer, service), server)
        return [source]

    def internal_text(method: str, error: BaseException) -> str | None:
        # A failure of health, reflection or channelz does not concern the source.
        return failure.note(method, error) if method.startswith(f"{source}/") else None

    info = settings.server_info_file
    if info is not None:
        remove_server_info(info)
    sockets = [f"unix:{settings.socket}"] if settings.socket else []
    try:
        async with grpc_server(
            settings, register, registry=registry, extra_addresses=sockets, internal_text=internal_text
        ) as running:
            if info is not None:
                write_server_info(info)
            monitoring = partial(_monitor_kafka, settings, running, monitor, topic, topics, metrics)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(failure.guard("the monitor of Kafka", monitoring))
                try:
                    yield running
                finally:
                    task.cancel()
                    if info is not None:
                        remove_server_info(info)  # clients that connect again wait for the next process
                    await running.begin_stop()
                    await service.drain(settings.drain_seconds)
    finally:
        await topic.close()
        await topics.close()
    if failure.error is not None:
        raise failure.error


async def _monitor_kafka(
    settings: UdsourceSettings,
    running: RunningServer,
    monitor: TopicMonitor,
    topic: TopicReader,
    topics: ReplayTopics,
    metrics: UdsourceMetrics,
) -> None:
    """Keep health, metrics and the cached state of the topic up to date."""
    serving: bool | None = None
    while True:
        try:
            state = await monitor.probe()
            metrics.pending.set(topic.pending(state))
            if state.topic_id:
                topic.note_topic_id(state.topic_id)
        except Unavailable as error:
            metrics.pending.set(-1)
            if serving is not False:
                log.warning("not serving", reason=str(error))
        if serving is not monitor.ready:
            serving = monitor.ready
            await running.set_serving(serving)
            metrics.kafka_up.set(serving)
            if serving:
                log.info("serving", topic=settings.topic, partitions=len(monitor.state.ends))
        topics.trim()
        await asyncio.sleep(settings.poll_seconds)
