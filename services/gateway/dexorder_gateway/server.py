"""Start and stop of the gateway, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import structlog
from confluent_kafka import KafkaException
from prometheus_client import CollectorRegistry

from dexorder_common.config import BadSettings
from dexorder_common.kafka.client_errors import error_text
from dexorder_common.rpc.lifecycle import MIN_GRACE_SECONDS, RunningServer, grpc_server, stop_signal
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.kafkapixy.bulk import NAME as RECORDS
from dexorder_gateway.kafkapixy.bulk import RecordService
from dexorder_gateway.kafkapixy.cluster import Cluster, Clusters
from dexorder_gateway.kafkapixy.metrics import KafkaMetrics
from dexorder_gateway.kafkapixy.peers import Peers
from dexorder_gateway.kafkapixy.service import NAME, KafkaPixy
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2_grpc as record_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc

if TYPE_CHECKING:
    from dexorder_gateway.events.server import UserEvents

log = structlog.get_logger(__name__)
KAFKA = (NAME, RECORDS)
"""Services that need a Kafka cluster."""
_HEALTH_SECONDS = 0.1
_THREADS = 4


@asynccontextmanager
async def gateway(settings: GatewaySettings, events: EventsSettings | None = None) -> AsyncIterator[RunningServer]:
    """Serve until the block ends.

    Then, in this order: all calls but Ack are refused, and health reports it; delivered records may still be acked and
    accepted ones are written, for ``drain_seconds``; acks are committed and the groups left; the server closes; user
    events are written.
    """
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        users = None
        if events and events.db:
            # imported only here: a gateway of Kafka alone does not need it
            from dexorder_gateway.events.server import user_events

            _refuse_if_exposed(events, settings)
            users = await stack.enter_async_context(user_events(events, registry, admits=settings.proxies_only()))
        elif not settings.clusters():
            raise BadSettings("DEXORDER_GATEWAY_KAFKA and DEXORDER_EVENTS_DB are both empty; set at least one of them")
        running = await stack.enter_async_context(_serve(settings, users, registry))
        yield running


@asynccontextmanager
async def _serve(
    settings: GatewaySettings, users: UserEvents | None, registry: CollectorRegistry
) -> AsyncIterator[RunningServer]:
    clusters = _clusters(settings, KafkaMetrics(registry))
    # Each cluster that does not answer blocks a thread, at the stop two; the others must not wait for them.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS + _THREADS * len(clusters)))
    sockets = [f"unix:{settings.unix}"] if settings.unix else []
    peers = Peers([each.strip() for each in settings.peers.split(",") if each.strip()])
    kafka = KafkaPixy(Clusters(clusters), peers) if clusters else None

    def register(server: grpc.aio.Server) -> Sequence[str]:
        names: list[str] = []
        if kafka:
            rpc.add_KafkaPixyServicer_to_server(kafka, server)
            records = RecordService(Clusters(clusters), kafka.refuse_if_stopping)
            record_rpc.add_RecordServiceServicer_to_server(records, server)
            names += KAFKA
        if users:
            names += users.register(server, identity=settings.identity != "none")
        return names

    server = grpc_server(
        settings,
        register,
        registry=registry,
        extra_addresses=sockets,
        roles=users.roles if users else None,
        own_identity=users.own_identity if users else (),
        options=users.options if users else (),
        limits_of=[users.settings] if users else (),
    )
    # The peers last: acks that the server still answers may be forwarded.
    async with aclosing(peers), server as running, _http(settings, kafka, running), asyncio.TaskGroup() as group:
        tasks = [group.create_task(cluster.watch()) for cluster in clusters]
        tasks.append(group.create_task(_report_health(running, clusters, users)))
        if users:
            tasks.append(group.create_task(users.until_failed()))
        try:
            yield running
        finally:
            if kafka:
                kafka.stop_taking()
            if users:
                users.stop_taking()
            for task in tasks:
                task.cancel()
            await running.begin_stop()
            await asyncio.gather(*(cluster.drain(settings.drain_seconds) for cluster in clusters))
            log.info("drained")


@asynccontextmanager
async def _http(settings: GatewaySettings, kafka: KafkaPixy | None, running: RunningServer) -> AsyncIterator[None]:
    """Serve Kafka-Pixy's HTTP API where the settings have an address for it."""
    addresses = [settings.http_listen] if settings.http_listen else []
    addresses += [f"unix:{settings.http_unix}"] if settings.http_unix else []
    if kafka is None or not addresses:
        yield
        return
    # imported only here: a gateway of gRPC alone does not need it
    from dexorder_gateway.http1.limits import HttpLimits
    from dexorder_gateway.http1.server import http1_server, server_tls
    from dexorder_gateway.kafkapixy.http_api import HttpApi

    tls = None
    if settings.tls_certificate and settings.tls_key:
        tls = server_tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    api = HttpApi(kafka, running.calls, running.admit, settings.max_message_bytes, settings.http_hosts.split(","))
    limits = HttpLimits(settings.max_message_bytes)
    async with http1_server(api.serve, addresses, tls, limits, stop_seconds=MIN_GRACE_SECONDS) as bound:
        log.info("HTTP API", addresses=bound, tls=tls is not None)
        yield


def _refuse_if_exposed(events: EventsSettings, settings: GatewaySettings) -> None:
    exposed = events.exposed_addresses()
    if exposed and not settings.allow_insecure and settings.identity != "forwarded":
        raise BadSettings(
            f"{', '.join(exposed)} is reachable from outside without encryption; set DEXORDER_EVENTS_CURVE_KEY, "
            "DEXORDER_EVENTS_WEB_TLS_CERTIFICATE or DEXORDER_ALLOW_INSECURE=1"
        )


def _clusters(settings: GatewaySettings, metrics: KafkaMetrics) -> list[Cluster]:
    """Return the clients of every cluster; BadSettings if librdkafka refuses their options."""
    if settings.pixy and settings.pixy.ignored_settings:
        log.warning(
            "settings without effect",
            file=str(settings.pixy_config),
            settings=", ".join(settings.pixy.ignored_settings),
        )
    made = []
    for config in settings.clusters():
        try:
            made.append(Cluster(config, metrics))
        except (KafkaException, ValueError) as error:
            raise BadSettings(f"cluster {config.name!r}: {error_text(error)}") from None
    return made


async def _report_health(running: RunningServer, clusters: Sequence[Cluster], users: UserEvents | None) -> None:
    """Report the health of each service, and of the whole server as "", which is SERVING while any service is.

    KafkaPixy and RecordService are SERVING while any cluster can be used: one that is unavailable must not affect
    calls to the others.
    User events need no cluster, so they are SERVING at once, with or without Kafka, except while their disk is full.
    """
    if users:
        await running.set_serving(True, ("", *users.names))
    if users and not clusters:
        await users.report_space(lambda serving: running.set_serving(serving, ("", *users.names)))
    async with asyncio.TaskGroup() as group:
        if users:
            group.create_task(users.report_space(lambda serving: running.set_serving(serving, users.names)))
        group.create_task(_report_clusters(running, clusters, KAFKA if users else ("", *KAFKA)))


async def _report_clusters(running: RunningServer, clusters: Sequence[Cluster], names: Sequence[str]) -> None:
    served = None
    while True:
        usable = any(cluster.failure is None for cluster in clusters)
        if usable != served:
            served = usable
            await running.set_serving(usable, names)
        await asyncio.sleep(_HEALTH_SECONDS)


async def main(settings: GatewaySettings, events: EventsSettings | None = None) -> None:
    """Serve until SIGTERM."""
    async with stop_signal() as stop, gateway(settings, events) as running:
        await stop.wait()
        await running.leave()
