"""Servers of a function: over the stdin and stdout of a process, over a unix socket, over gRPC."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dexorder.errors import UdfServeError
from dexorder.udf.agent import Agent
from dexorder.udf.function import Function
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import DEFAULT_LIMIT_BYTES, FrameSplitter, unwrap, wrap

if TYPE_CHECKING:
    import grpc

SERVICE = "dexorder.udf.v1.UdfService"
_SESSIONS = 64

_READ_BYTES = 256 * 1024
_SMALL_BYTES, _SOON_SECONDS = 8_192, 0.001
_GATHER_SECONDS = 0.002
"""Time for which small messages that follow each other closely are gathered."""


def serve_stdio(function: type[Function[Any]]) -> int:
    """Serve one session over stdin and stdout; return the exit code.

    ``print`` goes to stderr while the session runs, as stdout carries the protocol.
    """
    out = os.dup(1)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        return _session(function, 0, out)


def serve_socket(function: type[Function[Any]], path: str | Path, *, stop: threading.Event | None = None) -> None:
    """Serve sessions over a unix socket, each in a thread, until ``stop`` or SIGTERM.

    A socket file without a listener is replaced.

    Raises:
        UdfServeError: Something else is at the path, or another server listens there.
    """
    stop = stop or _stop_at_signals()
    path = Path(path)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(path))
        except OSError as error:
            raise UdfServeError(f"socket {path}: {error}") from None
        listener.listen(64)
        listener.settimeout(0.2)
        try:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    threading.Thread(target=_socket_session, args=(function, connection), daemon=True).start()
        finally:
            path.unlink(missing_ok=True)


def serve_grpc(function: type[Function[Any]], address: str, *, stop: threading.Event | None = None) -> None:
    """Serve sessions as ``dexorder.udf.v1.UdfService`` on host:port, without TLS, until ``stop`` or SIGTERM.

    Raises:
        UdfServeError: The address can't be bound.
    """
    stop = stop or _stop_at_signals()
    server, port = start_server(function, address)
    print(f"listening on port {port}", file=sys.stderr, flush=True)
    stop.wait()
    server.stop(1).wait()


def start_server(function: type[Function[Any]], address: str) -> tuple[grpc.Server, int]:
    """Start a server over gRPC; return it and its port. One stream is one session, at most 64 run at a time.

    Raises:
        UdfServeError: The address can't be bound.
    """
    # Deferred: a function that is started over stdin and stdout starts without them.
    import grpc

    from dexorder_common.rpc.lifecycle import KEEPALIVE

    def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        agent = Agent(function)
        for message in requests:
            try:
                pieces = unwrap(message)
            except ProtocolError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            for frames in agent.answers(pieces):
                yield from _messages(frames)
            if agent.ended:
                return
        yield from _messages(agent.end())

    # Raw bytes: the frames in a message are the agent's to parse.
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        run, request_deserializer=None, response_serializer=None
    )
    server = grpc.server(
        ThreadPoolExecutor(_SESSIONS),
        handlers=[grpc.method_handlers_generic_handler(SERVICE, {"Run": handler})],
        options=[
            *KEEPALIVE,
            ("grpc.max_receive_message_length", DEFAULT_LIMIT_BYTES + 64),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UdfServeError(f"gRPC {address}: {error}") from None
    server.start()
    return server, port


def _messages(frames: bytes) -> Iterator[bytes]:
    if frames:
        yield wrap(FrameSplitter().feed(frames))


def _stop_at_signals() -> threading.Event:
    stop = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop.set())
    return stop


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UdfServeError(f"socket {path}: a file that is not a socket is in the way")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UdfServeError(f"socket {path}: another server listens there")


def _socket_session(function: type[Function[Any]], connection: socket.socket) -> None:
    with connection:
        _session(function, connection.fileno(), connection.fileno())
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def _session(function: type[Function[Any]], source: int, sink: int) -> int:
    """Read, answer and write until the end of the input; one write answers messages that were read together."""
    agent = Agent(function)
    try:
        for data in _pieces(source):
            for frames in agent.answers(data):
                _write(sink, frames)
            if agent.ended:
                break
        else:
            _write(sink, agent.end())
    except BrokenPipeError:
        return 1  # the host has gone
    except OSError:
        traceback.print_exc()
        return 1
    if agent.error:
        print(agent.error, file=sys.stderr, flush=True)
    return 1 if agent.error else 0


def _pieces(source: int) -> Iterator[bytes]:
    """Yield the input. A host that writes each message alone, as Kapacitor's does, is given time to write more.

    A message that was waited for is answered at once; one of many small ones waits for some milliseconds.
    """
    while True:
        asked_s = time.monotonic()
        data = os.read(source, _READ_BYTES)
        if not data:
            return
        if len(data) < _SMALL_BYTES and time.monotonic() - asked_s < _SOON_SECONDS:
            time.sleep(_GATHER_SECONDS)
            if select.select([source], [], [], 0)[0]:
                data += os.read(source, _READ_BYTES)
        yield data


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(sink, view) :]
        except BlockingIOError:
            select.select([], [sink], [])
