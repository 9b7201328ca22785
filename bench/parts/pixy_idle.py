"""Cost of groups that wait for records: callers in long polls of topics to which nobody writes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.parts.pixy_processes import Server, gateway
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub

PAIRS = 200
GROUPS = (1, 8, 40)
_JOIN_SECONDS, _MEASURED_SECONDS = 40.0, 20.0


@dataclass(frozen=True)
class Idle:
    """Cost of ``PAIRS`` pairs of group and topic; ``cores`` is a share of one."""

    groups: int
    threads: int
    cores: float
    megabytes: float


def measure(bootstrap: str, groups: int) -> Idle:
    """Return the cost of a gateway that reads the same number of topics in each group."""
    topics = [f"idle-{number}" for number in range(PAIRS // groups)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    missing = [name for name in topics if name not in admin.list_topics(timeout=10).topics]
    for created in admin.create_topics([NewTopic(name, 1) for name in missing]).values() if missing else ():
        created.result(60)
    with gateway(bootstrap) as server:
        pairs = [(f"group-{groups}-{number}", topic) for number in range(groups) for topic in topics]
        cores = asyncio.run(_cores(server, pairs))
        status = dict(line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
        return Idle(groups, int(status["Threads"]), cores, int(status["VmRSS"].split()[0]) / 1024)


async def _cores(server: Server, pairs: list[tuple[str, str]]) -> float:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = KafkaPixyStub(channel)

        async def poll(group: str, topic: str) -> None:
            while True:
                try:
                    await stub.ConsumeNAck(pixy.ConsNAckRq(group=group, topic=topic, auto_ack=True))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise

        polls = asyncio.gather(*(poll(*pair) for pair in pairs))
        await asyncio.wait((polls,), timeout=_JOIN_SECONDS)
        start_s, used_s = time.monotonic(), server.cpu_seconds()
        await asyncio.wait((polls,), timeout=_MEASURED_SECONDS)
        cores = (server.cpu_seconds() - used_s) / (time.monotonic() - start_s)
        if polls.done():
            polls.result()
        polls.cancel()
        await asyncio.wait((polls,))
    return cores
