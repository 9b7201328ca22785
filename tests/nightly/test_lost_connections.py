"""A stream that begins while its connection is lost ends: with grpcio's retries, one in a hundred may not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, TypeAlias

import grpc
import pytest

from dexorder_common.rpc.channel import open_sync_channel

pytestmark = pytest.mark.nightly

Talk: TypeAlias = "grpc.StreamStreamMultiCallable[bytes, bytes]"
RESTARTS, PATIENCE_SECONDS = 500, 15.0
"""Restarts for one client; with several in a process, or with a deadline, the fault is rarer."""
OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


def _echo(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
    yield from requests


def serve(address: str) -> tuple[grpc.Server, str]:
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Talk": grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
    port = server.add_insecure_port(address)
    server.start()
    return server, f"127.0.0.1:{port}"


def restart_often(progress: Callable[[], None]) -> None:
    """Begin a stream just after its server has stopped under another one, many times."""
    server, address = serve("127.0.0.1:0")
    with open_sync_channel(address, options=OPTIONS) as channel:
        talk: Talk = channel.stream_stream("/test.Echo/Talk")
        for _ in range(RESTARTS):
            while not answered(before := begin(talk)):
                progress()
            server.stop(None).wait()
            answered(begin(talk))
            progress()
            before.cancel()
            server, _ = serve(address)
    server.stop(None).wait()


def begin(talk: Talk) -> Any:
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    requests.put(b"hello")
    call = talk(iter(requests.get, None))
    call.add_callback(lambda: requests.put(None))
    return call


def answered(call: Any) -> bool:
    try:
        return bool(next(call) == b"hello")
    except grpc.RpcError:
        return False


@pytest.mark.timeout(600)
def test_a_stream_that_begins_while_its_connection_is_lost_ends() -> None:
    beat = threading.Event()
    client = threading.Thread(target=restart_often, args=(beat.set,), daemon=True)  # it may hang for ever
    client.start()
    while client.is_alive():
        beat.clear()
        assert beat.wait(PATIENCE_SECONDS) or not client.is_alive(), "a stream does not end"
