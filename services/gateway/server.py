"""What starts, and in which order it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import structlog
from prometheus_client import CollectorRegistry

from services.common.lifecycle import RunningServer, grpc_server, stop_signal
from services.gateway.config import GatewaySettings
from services.gateway.pixy.cluster import Cluster
from services.gateway.pixy.metrics import PixyMetrics
from services.gateway.pixy.service import NAME, KafkaPixy
from services.gen.kafkapixy import kafkapixy_pb2_grpc as rpc

log = structlog.get_logger(__name__)
_HEALTH_SECONDS = 0.1


@asynccontextmanager
async def gateway(settings: GatewaySettings) -> AsyncIterator[RunningServer]:
    """Serve until the block ends.

    Then, in this order: Produce and ConsumeNAck are refused and health says so; what was handed out may still be acked
    and what was accepted is written, for ``drain_seconds``; acks are committed and the groups left; the server closes.
    """
    registry = CollectorRegistry()
    metrics = PixyMetrics(registry)
    clusters = [Cluster(config, metrics) for config in settings.clusters()]
    service = KafkaPixy(clusters)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_KafkaPixyServicer_to_server(service, server)
        return [NAME]

    async with grpc_server(settings, register, registry=registry) as running, asyncio.TaskGroup() as group:
        for cluster in clusters:
            cluster.start()
        tasks = [group.create_task(cluster.watch()) for cluster in clusters]
        tasks.append(group.create_task(_report_health(running, clusters)))
        try:
            yield running
        finally:
            service.stop_taking()
            for task in tasks:
                task.cancel()
            await running.set_serving(False)
            await asyncio.gather(*(cluster.drain(settings.drain_seconds) for cluster in clusters))
            log.info("drained")


async def _report_health(running: RunningServer, clusters: Sequence[Cluster]) -> None:
    """SERVING while every cluster can be used."""
    serving = False
    while True:
        usable = all(cluster.failure is None for cluster in clusters)
        if usable != serving:
            serving = usable
            await running.set_serving(serving)
        await asyncio.sleep(_HEALTH_SECONDS)


async def main(settings: GatewaySettings) -> None:
    """Serve until SIGTERM."""
    async with stop_signal() as stop, gateway(settings):
        await stop.wait()
