"""A thousand slow connections at all ports at once: each is closed, also when it comes again, and others are answered.

DEXORDER_SOAK_SLOW_SECONDS=600
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq
import zmq.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from zmq.utils.monitor import recv_monitor_message

from dexorder_common.config import split_address
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, Container, event
from tests.nightly.runner import resident_bytes
from tests.nightly.soak_suite import SoakSuite
from tests.rig.processes import until
from tests.rig.report import print_campaign, quantile
from tests.rig.suite import running_suite

SECONDS = float(os.environ.get("DEXORDER_SOAK_SLOW_SECONDS", "600"))
CONNECTIONS = 1_000
BYTE_SECONDS = 1.0
ROUND_SECONDS = 2.0
ANSWER_SECONDS = 60.0
"""Patience with an honest call; the page of the campaign says how long they took."""
HTTP2, ZMTP = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL" + b"\x00" * 48,
)
HEAD = b"POST /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000
SLOW = {
    "relay": HTTP2,
    "gateway": HTTP2,
    "web": HEAD,
    "relay_metrics": HEAD,
    "gateway_metrics": HEAD,
    "broker": ZMTP,
    "events_sub": ZMTP,
    "events_router": ZMTP,
}
"""What is sent to each port, byte by byte. The last byte never follows."""


class SlowConnections:
    """Connections that send a byte at a time, and come again when they are closed."""

    def __init__(self, suite: SoakSuite) -> None:
        self.closed: Counter[str] = Counter()
        self.longest_s: defaultdict[str, float] = defaultdict(float)
        self.waiting: Counter[str] = Counter()
        """Connections by port that were not closed once."""
        self._suite = suite

    def start(self) -> list[asyncio.Task[None]]:
        """Open all."""
        ports = [port for _, port in zip(range(CONNECTIONS), [*SLOW] * CONNECTIONS, strict=False)]
        self.waiting.update(ports)
        return [asyncio.create_task(self._run(port)) for port in ports]

    async def _run(self, port: str) -> None:
        is_first = True
        while True:
            began_s = time.monotonic()
            with suppress(OSError):
                await self._live(port)
            self.longest_s[port] = max(self.longest_s[port], time.monotonic() - began_s)
            self.closed[port] += 1
            self.waiting[port] -= is_first
            is_first = False
            await asyncio.sleep(BYTE_SECONDS)

    async def _live(self, port: str) -> None:
        reader, writer = await asyncio.open_connection(*split_address(self._suite.reached(port)))
        ended = asyncio.ensure_future(self._read_all(reader))
        try:
            for byte in SLOW[port][:-1]:
                writer.write(bytes([byte]))
                await asyncio.wait({ended}, timeout=BYTE_SECONDS)
                if ended.done():
                    return
            await ended
        finally:
            ended.cancel()
            writer.transport.abort()

    async def _read_all(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while await reader.read(4_096):
                pass


async def health(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs leave the methods out
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS)


async def page(address: str, path: str) -> None:
    """Ask for a page; a metrics port that has all its connections may close this one, and is asked again."""
    answer = b""
    while b" 200 " not in answer:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*split_address(address))
            writer.write(
                b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (path.encode(), address.encode())
            )
            answer = await reader.read()
            writer.close()


async def handshake(address: str, kind: int) -> None:
    """Connect to a ZeroMQ port."""
    with zmq.asyncio.Context() as context, context.socket(kind, socket_class=zmq.asyncio.Socket) as peer:
        monitor = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        peer.linger = 0
        peer.connect(f"tcp://{address}")
        try:
            await recv_monitor_message(monitor)
        finally:
            peer.disable_monitor()
            monitor.close(0)


async def acked(container: Container) -> None:
    await container.queued(event("honest", f"c-{time.monotonic_ns()}", CRITICAL, [given.WEB]))


async def attack(suite: SoakSuite, seconds: float) -> tuple[SlowConnections, dict[str, list[float]]]:
    """Hold the slow connections, and make honest calls one after the other; return the times of their answers."""
    reached = suite.reached
    slow, took = SlowConnections(suite), defaultdict[str, list[float]](list)
    async with Container(f"tcp://{reached('events_sub')}", f"tcp://{reached('events_router')}", None) as container:
        honest: dict[str, Callable[[], Awaitable[None]]] = {
            **{port: partial(health, reached(port)) for port in ("relay", "gateway")},
            "web": partial(page, reached("web"), "/"),
            **{port: partial(page, reached(port), "/metrics") for port in ("relay_metrics", "gateway_metrics")},
            "broker": partial(handshake, reached("broker"), zmq.DEALER),
            "events_sub": partial(handshake, reached("events_sub"), zmq.XPUB),
            "events_router": partial(acked, container),
        }
        tasks, until_s = slow.start(), time.monotonic() + seconds
        try:
            while time.monotonic() < until_s or +slow.waiting:
                assert time.monotonic() < until_s + 300, f"never closed: {+slow.waiting}"
                for port, call in honest.items():
                    began_s = time.monotonic()
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await call()
                    took[port].append(time.monotonic() - began_s)
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return slow, dict(took)


def run(folder: Path, seconds: float) -> None:
    """Run a relay and a gateway, attack them, and print what was seen."""
    began_s = time.monotonic()
    with running_suite(folder / "suite", "--only", "relay,gateway") as each:
        suite = SoakSuite(each.directory, each.base_port, each.process, each.environment)
        pids = {part: suite.pid(part) for part in ("relay", "gateway")}
        before = {part: resident_bytes(pid) for part, pid in pids.items()}
        slow, took = asyncio.run(attack(suite, seconds))
        grown = {part: (resident_bytes(pid) - before[part]) / (1 << 20) for part, pid in pids.items()}
        until(lambda: all(suite.is_new(part, 0) for part in pids), 60, suite.logs)
        assert {part: suite.pid(part) for part in pids} == pids, "a part has ended"
    print_campaign(
        f"{CONNECTIONS:,} slow connections for {seconds:.0f} s; memory grew by {grown} MiB",
        ["port", "closed", "longest (s)", "honest calls", "their p50, p99 (ms)"],
        *(
            [
                port,
                slow.closed[port],
                f"{slow.longest_s[port]:.1f}",
                len(took[port]),
                f"{quantile(took[port], 0.5) * 1e3:.1f}, {quantile(took[port], 0.99) * 1e3:.1f}",
            ]
            for port in SLOW
        ),
        since_s=began_s,
    )
    assert max(grown.values()) < 100


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_a_thousand_slow_connections_for_ten_minutes_are_closed_and_others_answered(tmp_path: Path) -> None:
    run(tmp_path, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_thousand_slow_connections_are_closed_and_others_answered(tmp_path: Path) -> None:
    run(tmp_path, 30)
