"""Client process of ``bench.pixy``: one job per line on stdin, one result per line on stdout.

One connection per job; every caller repeats its call until the time is up. The gateway and the empty server get the
same calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import uvloop

from services.gen.kafkapixy import kafkapixy_pb2 as pixy
from services.gen.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub

VALUE = os.urandom(1_024)
Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Job:
    """Measurement to run.

    Attributes:
        kind: A key of ``UNARY``.
        warm_seconds: Time of unary calls before the measurement begins.
        seconds: Time during which unary calls are counted.
    """

    kind: str
    address: str
    topic: str
    group: str = ""
    callers: int = 1
    warm_seconds: float = 0.3
    seconds: float = 2.0


@dataclass(frozen=True)
class Measured:
    """Result: ``rate`` per second; ``calls`` include those before the measurement."""

    rate: float
    calls: int


def produce(stub: Any, job: Job, *, async_mode: bool) -> Call:
    """Return a caller that writes the same record repeatedly, to any partition."""
    request = pixy.ProdRq(topic=job.topic, key_undefined=True, message=VALUE, async_mode=async_mode)

    async def call() -> None:
        await stub.Produce(request)

    return call


def consume_auto(stub: Any, job: Job) -> Call:
    """Return a caller that reads with ``auto_ack``."""
    request = pixy.ConsNAckRq(topic=job.topic, group=job.group, auto_ack=True)

    async def call() -> None:
        await stub.ConsumeNAck(request)

    return call


def consume_chained(stub: Any, job: Job) -> Call:
    """Return a caller that acks the previous record with each call."""
    request = pixy.ConsNAckRq(topic=job.topic, group=job.group, no_ack=True)

    async def call() -> None:
        nonlocal request
        got = await stub.ConsumeNAck(request)
        request = pixy.ConsNAckRq(topic=job.topic, group=job.group, ack_partition=got.partition, ack_offset=got.offset)

    return call


UNARY: dict[str, Callable[[Any, Job], Call]] = {
    "produce sync": lambda stub, job: produce(stub, job, async_mode=False),
    "produce async": lambda stub, job: produce(stub, job, async_mode=True),
    "consume auto": consume_auto,
    "consume chained": consume_chained,
}


async def unary(channel: grpc.aio.Channel, job: Job) -> Measured:
    """Run the callers; count the calls that ended within the measurement."""
    stub = KafkaPixyStub(channel)
    begin = time.perf_counter() + job.warm_seconds
    end = begin + job.seconds
    counted = calls = 0

    async def caller(call: Call) -> None:
        nonlocal counted, calls
        while True:
            await call()
            now = time.perf_counter()
            calls += 1
            if now >= end:
                return
            counted += now >= begin

    async with asyncio.TaskGroup() as group:
        for _ in range(job.callers):
            group.create_task(caller(UNARY[job.kind](stub, job)))
    return Measured(counted / job.seconds, calls)


async def measure(job: Job) -> Measured:
    """Run one job over its own connection."""
    async with grpc.aio.insecure_channel(job.address) as channel:
        await channel.channel_ready()
        return await unary(channel, job)


async def main() -> None:
    """Run jobs until stdin ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(await measure(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
