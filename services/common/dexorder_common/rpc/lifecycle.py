"""Start and stop of every service: a gRPC server with health, reflection, channelz and metrics; SIGTERM as an event.

Stop order: health reports NOT_SERVING, calls are still served for ``lame_duck_seconds``, then new calls are refused,
running calls get ``drain_seconds``, and sockets close. A service that drains by itself first calls
`RunningServer.begin_stop`; running calls then get the rest of ``drain_seconds``.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
import uvloop
from grpc_channelz.v1 import channelz, channelz_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import CollectorRegistry
from pydantic_settings import BaseSettings

from dexorder_common import logs, tracing
from dexorder_common.config import BadSettings, split_address
from dexorder_common.metrics import CallMetrics, metrics_endpoint
from dexorder_common.model.errors import Unavailable
from dexorder_common.proxies import parse_networks
from dexorder_common.rpc.identity import SERVER_INFO, Admission, Role, read_callers
from dexorder_common.rpc.native.start import bind_native, is_usable, native_server
from dexorder_common.rpc.policy import Admit, InternalText
from dexorder_common.rpc.server_info import add_server_info
from dexorder_common.rpc.server_interceptor import PolicyInterceptor
from dexorder_common.rpc.server_tracing import TracingInterceptor
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_common.storage.watched_file import WatchedFile

log = structlog.get_logger(__name__)

# By default an aio server answers clients that ping every 10 s with GOAWAY too_many_pings; these options allow one
# each second, because some proxies send them; an early ping must not end all streams of a proxy.
KEEPALIVE = (("grpc.http2.min_ping_interval_without_data_ms", 900), ("grpc.keepalive_permit_without_calls", 1))
# A connection without calls is closed, and so is one with a handshake that does not end. Pings detect a host that has
# vanished; the peer's transport answers them, whether its program reads or not.
MAX_IDLE_SECONDS = 300
IDLE = (
    ("grpc.max_connection_idle_ms", MAX_IDLE_SECONDS * 1_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# gRPC cancels random calls once 1,000 wait to be accepted; a request for a list of tickers makes more.
BACKLOG = (("grpc.server.max_pending_requests", 20_000), ("grpc.server.max_pending_requests_hard_limit", 40_000))
MIN_GRACE_SECONDS = 1.0
"""Least time for running calls to end, even if the service has used up ``drain_seconds``."""

_PROBE_SECONDS = 1.0


@dataclass
class RunningServer:
    """Server that accepts calls.

    Attributes:
        address: host:port, with the real port if the settings say port 0.
        calls: Metrics of the calls, for a second transport.
        admit: Admission of the calls, likewise; None if no identity is required.
    """

    address: str
    server: grpc.aio.Server
    calls: CallMetrics
    admit: Admit | None
    _health: health.aio.HealthServicer
    _services: tuple[str, ...]
    _lame_duck_seconds: float = 0.0
    _is_leaving: bool = False
    _stopping_since_s: float | None = None
    _serving: bool = False

    def is_serving(self) -> bool:
        """Return the health of the whole server."""
        return self._serving

    async def set_serving(self, serving: bool, names: Sequence[str] | None = None) -> None:
        """Set the health of these services; by default of all of them and of "", which stands for the whole server.

        A server that is leaving stays NOT_SERVING.
        """
        serving = serving and not self._is_leaving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        if names is None or "" in names:
            self._serving = serving
        for name in ("", *self._services) if names is None else names:
            await self._health.set(name, status)

    async def leave(self) -> None:
        """Report NOT_SERVING, and return after ``lame_duck_seconds``, in which load balancers notice it."""
        self._is_leaving = True
        await self.set_serving(False)
        if self._lame_duck_seconds:
            log.info("leaving", lame_duck_seconds=self._lame_duck_seconds)
            await asyncio.sleep(self._lame_duck_seconds)

    async def begin_stop(self) -> None:
        """Report NOT_SERVING from now on and start ``drain_seconds`` now instead of at the end of the block."""
        self._is_leaving = True
        self._stopping_since_s = time.monotonic()
        await self.set_serving(False)

    def grace_seconds(self, drain_seconds: float) -> float:
        """Return the time that running calls get after the end of the block."""
        if self._stopping_since_s is None:
            return drain_seconds
        return max(MIN_GRACE_SECONDS, drain_seconds - (time.monotonic() - self._stopping_since_s))


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
    trace_roots: Collection[str] = (),
    limits_of: Sequence[BaseSettings] = (),
) -> AsyncIterator[RunningServer]:
    """Run a server until the block ends, then drain it.

    Args:
        register: Adds the servicers and returns their full service names, for reflection and health.
        registry: Metrics of this process, served at ``metrics_listen``; metrics of calls are added to it.
        extra_addresses: More plaintext addresses such as ``unix:/path``, where file permissions replace identity.
        roles: Roles that may call a service, by full service name; other services accept identity.STAFF.
        own_identity: Services that check their callers in another way than by the callers file. They receive every
            call, and check the rules of its fields; `identity.current_caller` is set if that file knows the caller.
        trace_roots: Methods (``service/method``); their calls start a trace if the caller does not trace them.
        limits_of: More settings with limits that GetServerInfo returns.
    Yields:
        The bound server; its health is NOT_SERVING until ``set_serving``.
    Raises:
        OSError: An address can't be bound.
    """
    registry = registry or CollectorRegistry()
    admit, calls = None, CallMetrics(registry)
    if settings.identity != "none" and settings.tokens:
        callers = WatchedFile(settings.tokens, "callers", read_callers)
        proxies = parse_networks(settings.forwarded_from)
        admit = Admission(settings.identity, callers, roles or {}, own_identity, proxies, settings.forwarded_jwt).admit
    interceptors = [
        *([TracingInterceptor(trace_roots)] if tracing.is_on() else []),
        PolicyInterceptor(calls, admit, internal_text, own_identity, settings.keep_alive_seconds),
    ]
    server = _server(settings, interceptors, options)
    names = tuple(register(server))
    add_server_info(server, settings, names, limits_of)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if settings.introspection:
        channelz_pb2_grpc.add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), server)
        reflected = [*names, SERVER_INFO, health.SERVICE_NAME, reflection.SERVICE_NAME, "grpc.channelz.v1.Channelz"]
        servicer = reflection.aio.ReflectionServicer(reflected)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        stack.callback(getattr(server, "close", lambda: None))  # grpcio's server closes its sockets by itself
        port = bind(server, settings.listen, settings)
        for address in extra_addresses:
            bind(server, address, None)
        address = f"{split_address(settings.listen)[0]}:{port}"
        running = RunningServer(address, server, calls, admit, health_servicer, names, settings.lame_duck_seconds)
        await running.set_serving(False)
        with listening_on(settings.metrics_listen):
            endpoint = metrics_endpoint(settings.metrics_listen, registry, running.is_serving)
            metrics_address = stack.enter_context(endpoint)
        await server.start()
        transport = "grpcio" if isinstance(server, grpc.aio.Server) else "native"
        log.info("listening", address=running.address, metrics=metrics_address or None, transport=transport)
        try:
            yield running
        finally:
            await health_servicer.enter_graceful_shutdown()
            await server.stop(running.grace_seconds(settings.drain_seconds))


def _server(settings: ServiceSettings, interceptors: Sequence[Any], options: Sequence[tuple[str, Any]]) -> Any:
    """Return the server of the transport that the settings name."""
    given, size = [*KEEPALIVE, *IDLE, *BACKLOG, *options], settings.max_message_bytes
    if settings.transport == "native" or (settings.transport == "auto" and is_usable()):
        return native_server(interceptors, size, dict(given))
    sizes = (("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size))
    return grpc.aio.server(interceptors=interceptors, options=[*given, *sizes, ("grpc.so_reuseport", 0)])


def bind(server: Any, address: str, settings: ServiceSettings | None) -> int:
    """Bind one address, with TLS if the settings have it, and return the port; OSError if it can't be bound."""
    if address.startswith("unix:"):
        with listening_on(address):
            refuse_if_served(Path(address.removeprefix("unix:")))
    if not isinstance(server, grpc.aio.Server):
        files = None
        if settings and settings.tls_certificate and settings.tls_key:
            files = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
        with listening_on(address):
            return bind_native(server, address, files)
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
    except RuntimeError as error:  # grpcio raises it for a port in use
        raise CannotListen(f"can't listen on {address}: {error}") from error
    if port == 0:
        raise CannotListen(f"can't listen on {address}")
    return port


class CannotListen(OSError):
    """An address that can't be bound: it is in use, or not one of this machine. Its text is the whole explanation."""


@contextmanager
def listening_on(address: str) -> Iterator[None]:
    """Raise CannotListen, with the address and the reason, if the block can't bind it."""
    try:
        yield
    except CannotListen:
        raise
    except OSError as error:
        raise CannotListen(f"can't listen on {address}: {error.strerror or error}") from error


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
    raise CannotListen(f"can't listen on unix:{path}: another process does")


@asynccontextmanager
async def stop_signal() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets; a second SIGTERM ends the process at once."""
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
    """Configure logs and traces, warn about insecure listening, and run ``main`` on uvloop until it returns."""
    logs.configure(service, level=settings.log_level, style=settings.log_format)
    tracing.configure(service)
    if settings.allow_insecure:
        log.warning("DEXORDER_ALLOW_INSECURE is set: plaintext and unknown callers are accepted beyond loopback")
    try:
        uvloop.run(main())
    except (
        BadSettings,
        CannotListen,
        Unavailable,
    ) as error:  # from the channels that main opens and the files that it reads at start
        raise SystemExit(str(error)) from None
    finally:
        tracing.shutdown()
