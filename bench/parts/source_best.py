"""Upper limit of grpcio for source.v1: a process that repeats the same prepared bytes by ``context.write`` on uvloop.

    python -m bench.parts.source_best SOCKET PAYLOAD_BYTES

It creates and stores no records, ignores acks, and has no interceptor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from dexorder_common.rpc.lifecycle import stop_signal
from dexorder_protos.source.v1 import source_pb2 as pb

_SUCCESS = pb.AckResponse.Result(success=Empty())
_ACKED = pb.AckResponse(result=_SUCCESS).SerializeToString()
_ACK_GREETING = pb.AckResponse(handshake=pb.Handshake(sot=True), result=_SUCCESS).SerializeToString()
_READ_GREETING = pb.ReadResponse(
    handshake=pb.Handshake(sot=True), status=pb.ReadResponse.Status(eot=False)
).SerializeToString()
_EOT = pb.ReadResponse(status=pb.ReadResponse.Status(eot=True)).SerializeToString()
_READY = pb.ReadyResponse(ready=True).SerializeToString()


def record(payload_bytes: int) -> bytes:
    """Return the bytes of every record; the other servers' records have the same size."""
    result = pb.ReadResponse.Result(
        payload=os.urandom(payload_bytes),
        offset=pb.Offset(offset=b"123456", partition_id=1),
        event_time=Timestamp(seconds=1_700_000_000, nanos=123_000_000),
        keys=["key-1"],
        headers={"h": "v"},
    )
    return pb.ReadResponse(result=result, status=pb.ReadResponse.Status(eot=False)).SerializeToString()


async def main(path: str, payload_bytes: str) -> None:
    """Serve until SIGTERM."""
    ready = record(int(payload_bytes))

    async def read(requests: AsyncIterator[bytes], context: Any) -> None:
        await anext(requests)
        await context.write(_READ_GREETING)
        async for request in requests:
            for _ in range(pb.ReadRequest.FromString(request).request.num_records):
                await context.write(ready)
            await context.write(_EOT)

    async def ack(requests: AsyncIterator[bytes], context: Any) -> None:
        await anext(requests)
        await context.write(_ACK_GREETING)
        async for _ in requests:
            await context.write(_ACKED)

    async def is_ready(request: bytes, context: Any) -> bytes:
        return _READY

    handlers: Any = {
        "ReadFn": grpc.stream_stream_rpc_method_handler(read),
        "AckFn": grpc.stream_stream_rpc_method_handler(ack),
        "IsReady": grpc.unary_unary_rpc_method_handler(is_ready),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("source.v1.Source", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    async with stop_signal() as stop:
        await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
