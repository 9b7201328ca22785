"""Process that serves KafkaPixy with empty handlers, to measure grpcio's limit.

    python -m bench.parts.pixy_empty HOST:PORT bare|suite

``bare`` is plain grpcio; ``suite`` has the options, the interceptor and the extra services of our servers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import uvloop

from dexorder_common.rpc.lifecycle import grpc_server, stop_signal
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc


class EmptyPixy(rpc.KafkaPixyServicer):
    """Handlers with responses as large as the gateway's."""

    def __init__(self) -> None:
        self._written = pb.ProdRs(partition=1, offset=1_000_000)
        self._read = pb.ConsRs(partition=1, offset=1_000_000, key_undefined=True, message=os.urandom(1_024))

    async def Produce(self, request: pb.ProdRq, context: Any) -> pb.ProdRs:  # noqa: N802
        """Respond as if the record were written."""
        return self._written

    async def ConsumeNAck(self, request: pb.ConsNAckRq, context: Any) -> pb.ConsRs:  # noqa: N802
        """Return the same record each time."""
        return self._read


def register(server: grpc.aio.Server) -> Sequence[str]:
    servicer = EmptyPixy()  # type: ignore[abstract]  # the other methods stay UNIMPLEMENTED
    rpc.add_KafkaPixyServicer_to_server(servicer, server)
    return ["KafkaPixy"]


@asynccontextmanager
async def bare(listen: str) -> AsyncIterator[None]:
    server = grpc.aio.server()
    register(server)
    server.add_insecure_port(listen)
    await server.start()
    yield
    await server.stop(0)


async def main(listen: str, kind: str) -> None:
    """Serve until SIGTERM."""
    settings = ServiceSettings(listen=listen, metrics_listen="", drain_seconds=0)
    async with stop_signal() as stop, bare(listen) if kind == "bare" else grpc_server(settings, register):
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
