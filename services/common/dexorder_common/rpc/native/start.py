"""The native server in place of the one of grpcio: all that others import; it needs the package only when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from dexorder_common.config import BadSettings
from dexorder_common.packages import install_command

if TYPE_CHECKING:
    from dexorder_common.rpc.native.server import NativeServer

log = structlog.get_logger(__name__)
_MISSING = (
    "transport 'native' needs the package dexorder_http2, which is not installed: `make setup` builds it where "
    "cargo is, and images have it; with a wheel of it: {command}"
)
_OLD = "transport 'native' needs a newer package dexorder_http2: `make setup` builds it where cargo is, or {command}"


def _problem() -> str | None:
    """Return why the package can't be used, as a format of the install command; None if it can."""
    try:
        import dexorder_common.rpc.native.server  # noqa: F401
    except ImportError as error:
        if error.name != "dexorder_http2":
            raise
        return _MISSING if isinstance(error, ModuleNotFoundError) else _OLD
    return None


def is_usable() -> bool:
    """Return whether the package is installed and fits; log a warning if it is too old."""
    problem = _problem()
    if problem == _OLD:
        log.warning("dexorder_http2 is too old, grpcio serves", command=install_command("fast"))
    return problem is None


def native_server(interceptors: Sequence[Any], max_message_bytes: int, options: Mapping[str, Any]) -> NativeServer:
    """Return a server with the limits that grpcio's options of the same meaning give.

    Raises:
        BadSettings: Its package is not installed, or too old.
    """
    if problem := _problem():
        raise BadSettings(problem.format(command=install_command("fast")))
    from dexorder_common.rpc.native.limits import Limits
    from dexorder_common.rpc.native.server import NativeServer

    limits = Limits(
        max_message_bytes=max_message_bytes,
        idle_seconds=options["grpc.max_connection_idle_ms"] / 1_000,
        handshake_seconds=options["grpc.server_handshake_timeout_ms"] / 1_000,
        ping_seconds=options["grpc.keepalive_time_ms"] / 1_000,
        pong_seconds=options["grpc.keepalive_timeout_ms"] / 1_000,
    )
    return NativeServer(interceptors, limits)


def bind_native(server: NativeServer, address: str, tls: tuple[Path, Path, Path | None] | None) -> int:
    """Bind one address and return the port; OSError if that is impossible, or a file of TLS can't be used.

    Args:
        tls: Certificate, key and the authority of clients' certificates; None for plaintext.
    """
    from dexorder_common.rpc.native.listening import server_tls

    return server.bind(address, server_tls(*tls) if tls else None)
