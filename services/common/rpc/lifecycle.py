"""Start and stop of every service: one gRPC server with its usual companions, and SIGTERM as an event.

Order at the end: health says NOT_SERVING, no new calls, running calls get ``drain_seconds``, sockets close. A part that
drains by itself first calls `RunningServer.begin_stop`; running calls then get what it leaves of ``drain_seconds``.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
import uvloop
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from services.common import logs
from services.common.config import BadSettings, ServiceSettings, split_address
from services.common.metrics import CallMetrics, metrics_endpoint
from services.common.rpc.identity import CallersFile, Gate, Role
from services.common.rpc.policy import InternalText
from services.common.rpc.server_interceptor import PolicyInterceptor

log = structlog.get_logger(__name__)

# A default aio server ends connections that ping every 10 s with GOAWAY too_many_pings; these two let them stay.
KEEPALIVE = (("grpc.http2.min_ping_interval_without_data_ms", 5_000), ("grpc.keepalive_permit_without_calls", 1))
# gRPC drops calls at random, as CANCELLED, once 1,000 wait to be taken up; a list of tickers is more than that.
BACKLOG = (("grpc.server.max_pending_requests", 20_000), ("grpc.server.max_pending_requests_hard_limit", 40_000))
LAST_SECONDS = 1.0
"""What running calls get at least, to end by themselves, when a part has drained for all of ``drain_seconds``."""

_PROBE_SECONDS = 1.0


@dataclass
class RunningServer:
    """A server that listens.

    Attributes:
        address: host:port it is bound to; the real port where 0 was asked for.
    """

    address: str
    server: grpc.aio.Server
    _health: health.aio.HealthServicer
    _services: tuple[str, ...]
    _stopping_since_s: float | None = None

    async def set_serving(self, serving: bool, names: Sequence[str] | None = None) -> None:
        """Set the health of these services; of "" and of each one by default."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._services) if names is None else names:
            await self._health.set(name, status)

    async def begin_stop(self) -> None:
        """Say NOT_SERVING; from now on ``drain_seconds`` run. Without this they do when the block ends."""
        self._stopping_since_s = time.monotonic()
        await self.set_serving(False)

    def grace_seconds(self, drain_seconds: float) -> float:
        """What running calls get when the block has ended."""
        if self._stopping_since_s is None:
            return drain_seconds
        return max(LAST_SECONDS, drain_seconds - (time.monotonic() - self._stopping_since_s))


@asynccontextmanager
async def grpc_server(
    settings: ServiceSettings,
    register: Callable[[grpc.aio.Server], Sequence[str]],
    *,
    registry: CollectorRegistry | None = None,
    extra_addresses: Sequence[str] = (),
    roles: Mapping[str, Collection[Role]] | None = None,
    own_identity: Collection[str] = (),
    options: Sequence[tuple[str, Any]] = (),
    internal_text: InternalText | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve until the block ends, then drain.

    Args:
        register: Adds the servicers; returns their full service names, which reflection and health then know.
        registry: Metrics of this process; the calls' are added to it and it is served at ``metrics_listen``.
        extra_addresses: Further plaintext addresses, for example ``unix:/path``; there the file's permissions are all
            the identity that is asked for.
        roles: With identity on, which roles may call which service (full names); the others are for identity.STAFF.
        own_identity: Services that check their callers themselves, by something other than the callers file; they get
            every call, and `identity.current_caller` where that file knows the caller all the same.
        options: Further gRPC options of the server.
        internal_text: See `policy.InternalText`.
    Yields:
        The server, bound, with health NOT_SERVING until ``set_serving``.
    Raises:
        OSError: An address can't be bound.
    """
    registry = registry or CollectorRegistry()
    size = settings.max_message_bytes
    gate = None
    if settings.identity != "none" and settings.tokens:
        gate = Gate(settings.identity, CallersFile(settings.tokens), roles or {}, own_identity)
    server = grpc.aio.server(
        interceptors=[PolicyInterceptor(CallMetrics(registry), gate.admit if gate else None, internal_text)],
        options=[
            *KEEPALIVE,
            *BACKLOG,
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
            ("grpc.so_reuseport", 0),
            *options,
        ],
    )
    names = tuple(register(server))
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if settings.introspection:
        channelz.add_channelz_servicer(server)
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME, "grpc.channelz.v1.Channelz"], server
        )
    port = bind(server, settings.listen, settings)
    for address in extra_addresses:
        bind(server, address, None)
    running = RunningServer(f"{split_address(settings.listen)[0]}:{port}", server, health_servicer, names)
    await running.set_serving(False)
    with metrics_endpoint(settings.metrics_listen, registry) as metrics_address:
        await server.start()
        log.info("listening", address=running.address, metrics=metrics_address or None)
        try:
            yield running
        finally:
            await health_servicer.enter_graceful_shutdown()
            await server.stop(running.grace_seconds(settings.drain_seconds))


def bind(server: grpc.aio.Server, address: str, settings: ServiceSettings | None) -> int:
    """Bind one address, with TLS where the settings have it; the port that was bound.

    Raises:
        OSError: It can't be bound.
    """
    if address.startswith("unix:"):
        refuse_if_served(Path(address.removeprefix("unix:")))
    try:
        if settings and settings.tls_certificate and settings.tls_key:
            ca = settings.tls_client_ca
            credentials = grpc.ssl_server_credentials(
                [(settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())],
                root_certificates=ca.read_bytes() if ca else None,
                require_client_auth=ca is not None,
            )
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:  # what grpcio raises for a taken port
        raise OSError(f"can't listen on {address}: {error}") from error
    if port == 0:
        raise OSError(f"can't listen on {address}")
    return port


def refuse_if_served(path: Path) -> None:
    """Check that no process listens on a unix socket: gRPC takes the path over even from a living process.

    A socket that a killed process left behind is free; gRPC replaces it.

    Raises:
        OSError: A process listens there.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(TimeoutError):  # too busy to answer is alive
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return
        except OSError as error:
            if error.errno is None:
                return  # the name is too long, as bind will say
            raise
    raise OSError(f"can't listen on unix:{path}: another process does")


@asynccontextmanager
async def stop_signal() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets; a second SIGTERM ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def terminate() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGTERM)

    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run(service: str, settings: ServiceSettings, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Configure logs, warn of insecure listening, run ``main`` on uvloop until it returns."""
    logs.configure(service, level=settings.log_level, style=settings.log_format)
    if settings.allow_insecure:
        log.warning("DEXORDER_ALLOW_INSECURE is set: plaintext and unknown callers are accepted beyond loopback")
    try:
        uvloop.run(main())
    except BadSettings as error:  # of the channels that main opens
        raise SystemExit(str(error)) from None
