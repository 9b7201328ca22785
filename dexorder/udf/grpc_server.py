"""Server of a function over gRPC: one stream is one session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from dexorder.errors import UdfServeError
from dexorder.udf.agent import Agent
from dexorder.udf.function import Function
from dexorder_common.rpc.lifecycle import KEEPALIVE
from dexorder_udf.framing import DEFAULT_LIMIT_BYTES, FrameSplitter, unwrap, wrap

SERVICE = "dexorder.udf.v1.UdfService"
_SESSIONS = 64


def start_server(function: type[Function[Any]], address: str) -> tuple[grpc.Server, int]:
    """Start a server; return it and its port. At most 64 sessions run at a time.

    Raises:
        UdfServeError: The address can't be bound.
    """

    def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        agent = Agent(function)
        for message in requests:
            yield from _messages(agent.feed(unwrap(message)))
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
