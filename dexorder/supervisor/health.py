"""Health checks of the parts by ``grpc://``, ``http://`` or ``kafka://`` and host:port.

``grpc://host:port/SERVICE`` is the health of one service instead of the whole server.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder.supervisor.plan import KAFKA_PIXY
from dexorder_common.config import split_address
from dexorder_common.model.errors import Code
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import code_of
from dexorder_common.rpc.error_details import STATUS_DETAILS
from dexorder_protos.dexorder.server.v1.server_info_service_pb2 import GetServerInfoRequest
from dexorder_protos.dexorder.server.v1.server_info_service_pb2_grpc import ServerInfoServiceStub
from dexorder_protos.kafkapixy import kafkapixy_pb2, kafkapixy_pb2_grpc


@dataclass(frozen=True)
class Health:
    """Readiness of a part, with the reason if it is not ready."""

    ready: bool
    detail: str = ""


async def check(address: str, *, timeout_s: float = 2.0) -> Health:
    """Check once within about ``timeout_s`` seconds; a part that is down is not an error."""
    scheme, _, target = address.partition("://")
    probe = {"grpc": _check_grpc, "http": _check_http, "kafka": _check_kafka}[scheme]
    try:
        async with asyncio.timeout(timeout_s + 1.0):
            return await probe(target, timeout_s)
    except TimeoutError:
        return Health(False, f"no answer within {timeout_s:g} s")


async def kafka_problem(gateway: str, *, timeout_s: float = 2.0) -> str:
    """Return why a gateway does not serve KafkaPixy, for which it needs Kafka; empty if it does, or can't be asked.

    For some seconds after its start a gateway lets calls wait for Kafka's first answer.
    """
    async with open_channel(gateway) as channel:
        stub: Any = kafkapixy_pb2_grpc.KafkaPixyStub(channel)  # it has the type stubs of the blocking client
        try:
            await stub.ListTopics(kafkapixy_pb2.ListTopicRq(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            # Our services send details with each status; an error of the connection lacks them.
            if code_of(error) is Code.UNAVAILABLE and STATUS_DETAILS in dict(error.trailing_metadata()):
                return f"{KAFKA_PIXY} is unavailable: {error.details()}"
            if code_of(error) is Code.DEADLINE_EXCEEDED:
                return f"{KAFKA_PIXY} is unavailable: Kafka has not answered the gateway within {timeout_s:g} s"
    return ""


async def version_of(address: str, *, timeout_s: float = 2.0) -> str | None:
    """Return the version of the part with this health address; None if it reports none, like a part without gRPC."""
    scheme, _, target = address.partition("://")
    if scheme != "grpc":
        return None
    async with open_channel(target.partition("/")[0]) as channel:
        stub: Any = ServerInfoServiceStub(channel)  # it has the type stubs of the blocking client
        try:
            return str((await stub.GetServerInfo(GetServerInfoRequest(), timeout=timeout_s)).version)
        except grpc.aio.AioRpcError:
            return None


async def _check_grpc(target: str, timeout_s: float) -> Health:
    target, _, service = target.partition("/")
    # A new channel for each check: an old one would wait for its reconnect backoff after the part has restarted.
    async with open_channel(target) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs lack the methods
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            match code_of(error):
                case Code.UNAVAILABLE:
                    return Health(False, "does not accept connections")
                case Code.DEADLINE_EXCEEDED:
                    return Health(False, f"no answer within {timeout_s:g} s")
                case other:
                    return Health(False, f"health check failed: {other.name}")
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return Health(True)
    return Health(False, f"runs, but {f'its service {service} ' if service else ''}is not serving yet")


async def _check_http(target: str, timeout_s: float) -> Health:
    return await asyncio.to_thread(_get_healthz, target, timeout_s)


def _get_healthz(target: str, timeout_s: float) -> Health:
    # Without the environment's proxy, which is not meant for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{target}/healthz", timeout=timeout_s):
            return Health(True)
    except urllib.error.HTTPError as error:
        with error:
            return Health(False, f"/healthz answers {error.code}")
    except urllib.error.URLError as error:
        refused = isinstance(error.reason, ConnectionRefusedError)
        return Health(False, "does not accept connections" if refused else str(error.reason))
    except OSError as error:
        return Health(False, str(error) or type(error).__name__)


async def _check_kafka(target: str, timeout_s: float) -> Health:
    host, port = split_address(target)
    try:  # librdkafka would wait for its whole timeout on a closed port
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()
    except OSError as error:
        text = "does not accept connections" if isinstance(error, ConnectionRefusedError) else str(error)
        return Health(False, text or f"no answer within {timeout_s:g} s")
    return await asyncio.to_thread(_list_topics, target, timeout_s)


def _list_topics(target: str, timeout_s: float) -> Health:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        brokers = AdminClient({"bootstrap.servers": target, "log_level": 0}).list_topics(timeout=timeout_s).brokers
    except KafkaException as error:
        return Health(False, str(error.args[0]))
    return Health(True) if brokers else Health(False, "no broker in the cluster")
