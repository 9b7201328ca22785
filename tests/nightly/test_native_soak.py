"""Memory and descriptors of a gateway on the native transport under calls, cancelled calls and lost connections."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.parts import pixy_processes
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.report import print_campaign
from tests.unit.services.common.rpc.native import NEEDS_MODULE

CALLERS = 8
SAMPLES = 40
MORE_MIB = 12.0
"""Growth from the second quarter of the time to the last one; a leak of 1 KiB a call is hundreds of MiB."""
MORE_DESCRIPTORS = 8
"""Kafka's client opens some connections late."""


@NEEDS_MODULE
@pytest.mark.kafka
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(300, marks=[pytest.mark.nightly, pytest.mark.timeout(600)]),
        pytest.param(1_800, marks=[pytest.mark.soak, pytest.mark.timeout(2_400)]),
    ],
)
async def test_memory_and_descriptors_stay(tmp_path: Path, seconds: float) -> None:
    seconds = float(os.environ.get("DEXORDER_TEST_SOAK_SECONDS", seconds))
    since_s, broker = time.monotonic(), RunningKafka(tmp_path)
    try:
        for topic in ("written", "empty"):
            create_topic(broker.bootstrap, 4, topic)
        with pixy_processes.gateway(broker.bootstrap, "native") as gateway:
            calls: Counter[str] = Counter()
            load = [asyncio.create_task(use(gateway.address, calls)) for _ in range(CALLERS)]
            load.append(asyncio.create_task(leave(gateway.address)))
            memory, descriptors = [], []
            for _ in range(SAMPLES):
                done, _ = await asyncio.wait(load, timeout=seconds / SAMPLES, return_when=asyncio.FIRST_EXCEPTION)
                assert not done, [each.exception() for each in done]
                memory.append(rss_mib(gateway.pid))
                descriptors.append(descriptors_of(gateway.pid))
            for each in load:
                each.cancel()
            await asyncio.wait(load)
            deadline_s = time.monotonic() + 60
            before = statistics.median(descriptors[: SAMPLES // 4])
            while (left := descriptors_of(gateway.pid)) > before + MORE_DESCRIPTORS:
                assert time.monotonic() < deadline_s, (before, left)
                await asyncio.sleep(0.1)
    finally:
        broker.stop()
    early, late = statistics.median(memory[10:20]), statistics.median(memory[30:])
    found = f"{calls['ok']:,}", str(calls["unavailable"]), f"{early:.1f} to {late:.1f}", f"{before:g} to {left}"
    print_campaign("Native transport", ("calls", "UNAVAILABLE", "MiB", "descriptors"), found, since_s=since_s)
    assert calls["ok"] > 1_000 and calls["unavailable"] < calls["ok"] / 100, calls
    assert late - early < MORE_MIB, memory


async def use(address: str, calls: Counter[str]) -> None:
    """Produce and read as one caller, with a new connection now and then.

    A call is UNAVAILABLE while Kafka does not answer, as a broker that gets no processor for long does.
    """
    while True:
        async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = KafkaPixyStub(channel)
            for turn in range(2_000):
                record = pb.ProdRq(topic="written", message=b"x" * 1_024, key_undefined=True, async_mode=turn % 2 == 0)
                wanted = pb.ConsNAckRq(topic="written", group="soak", auto_ack=True)
                for method, request in ((stub.Produce, record), (stub.ConsumeNAck, wanted)):
                    calls[await ended(method(request, timeout=60))] += 1


async def ended(call: Any) -> str:
    """Return how a call has ended; nothing to read is as good as a record."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE), error
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            await asyncio.sleep(1)
            return "unavailable"
    return "ok"


async def leave(address: str) -> None:
    """Wait for records that never come, cancel half of the calls, and lose the connection with the others."""
    while True:
        channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub: Any = KafkaPixyStub(channel)
        waiting = [stub.ConsumeNAck(pb.ConsNAckRq(topic="empty", group="soak", no_ack=True)) for _ in range(20)]
        await asyncio.sleep(0.3)
        for each in waiting[::2]:
            each.cancel()
        await asyncio.sleep(0.05)
        await channel.close()


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1_024


def descriptors_of(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
