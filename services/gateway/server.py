"""What starts, and in which order it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import structlog
from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry

from services.common.config import BadSettings
from services.common.lifecycle import RunningServer, grpc_server, stop_signal
from services.gateway.config import GatewaySettings
from services.gateway.kafka import service as kafka
from services.gateway.kafka.service import KafkaService
from services.gateway.pixy.cluster import Cluster, Clusters
from services.gateway.pixy.metrics import PixyMetrics
from services.gateway.pixy.service import NAME, KafkaPixy
from services.gateway.pixy.trouble import reason
from services.gen.dexorder.kafka.v1 import kafka_service_pb2_grpc as kafka_rpc
from services.gen.kafkapixy import kafkapixy_pb2_grpc as rpc

log = structlog.get_logger(__name__)
_HEALTH_SECONDS = 0.1
_THREADS = 4


@asynccontextmanager
async def gateway(settings: GatewaySettings) -> AsyncIterator[RunningServer]:
    """Serve until the block ends.

    Then, in this order: all calls but Ack are refused and health says so; what was handed out may still be acked
    and what was accepted is written, for ``drain_seconds``; acks are committed and the groups left; the server closes.
    """
    registry = CollectorRegistry()
    clusters = _clusters(settings, PixyMetrics(registry))
    served = Clusters(clusters)
    service, streams = KafkaPixy(served), KafkaService(served)
    # Each cluster that does not answer keeps a thread, at the stop two; those that do must not wait for them.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS + _THREADS * len(clusters)))
    sockets = [f"unix:{settings.unix}"] if settings.unix else []

    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_KafkaPixyServicer_to_server(service, server)
        kafka_rpc.add_KafkaServiceServicer_to_server(streams, server)
        return [NAME, kafka.NAME]

    server = grpc_server(settings, register, registry=registry, extra_addresses=sockets)
    async with server as running, asyncio.TaskGroup() as group:
        for cluster in clusters:
            cluster.start()
        tasks = [group.create_task(cluster.watch()) for cluster in clusters]
        tasks.append(group.create_task(_report_health(running, clusters)))
        try:
            yield running
        finally:
            service.stop_taking()
            streams.stop_taking()
            for task in tasks:
                task.cancel()
            await running.begin_stop()
            await asyncio.gather(*(cluster.drain(settings.drain_seconds) for cluster in clusters))
            log.info("drained")


def _clusters(settings: GatewaySettings, metrics: PixyMetrics) -> list[Cluster]:
    """Clients of every cluster.

    Raises:
        BadSettings: librdkafka does not take their options.
    """
    if settings.pixy and settings.pixy.without_meaning:
        log.warning(
            "settings without a meaning here",
            file=str(settings.pixy_config),
            settings=", ".join(settings.pixy.without_meaning),
        )
    made = []
    for config in settings.clusters():
        try:
            made.append(Cluster(config, metrics))
        except (KafkaException, ValueError) as error:
            raise BadSettings(f"cluster {config.name!r}: {reason(error)}") from None
    return made


async def _report_health(running: RunningServer, clusters: Sequence[Cluster]) -> None:
    """SERVING while any cluster can be used: one that is away must not take the calls to the others with it."""
    serving = False
    while True:
        usable = any(cluster.failure is None for cluster in clusters)
        if usable != serving:
            serving = usable
            await running.set_serving(serving)
        await asyncio.sleep(_HEALTH_SECONDS)


async def main(settings: GatewaySettings) -> None:
    """Serve until SIGTERM."""
    async with stop_signal() as stop, gateway(settings):
        await stop.wait()
