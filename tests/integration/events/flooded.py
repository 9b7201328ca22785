"""Acks of one container while another one floods."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import CRITICAL, Container, event
from tests.integration.events.rig import Rig
from tests.paths import ROOT

RATE = 10_000
BEGIN_S, PAUSE_S, WARM_S = 0.5, 0.002, 0.5
FLOODER = "flooder"


@dataclass
class Seen:
    """Ack times of the honest container, acks of the flooding one, and the number of its events."""

    quiet: list[float] = field(default_factory=list)
    flooded: list[float] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)


async def run(rig: Rig, *, rounds: int, seconds: float) -> Seen:
    """Alternate quiet and flooded phases; starts the rig's gateway."""
    start(rig)
    seen = Seen()
    async with rig.container() as honest:
        await acks(honest, WARM_S)
        for _ in range(rounds):
            seen.quiet += await acks(honest, seconds)
            with flood(rig, seconds, seen.told):
                await asyncio.sleep(BEGIN_S)
                seen.flooded += await acks(honest, seconds)
    return seen


def start(rig: Rig) -> None:
    """Start the rig's gateway, and admit the flooding container."""
    rig.keys.container(FLOODER)
    rig.keys.write()
    rig.gateway.start()


async def acks(container: Container, seconds: float) -> list[float]:
    """Return the seconds to the ack of each CRITICAL event, sent one after the other."""
    took: list[float] = []
    until_s = time.monotonic() + seconds
    while (begun_s := time.monotonic()) < until_s:
        await container.queued(event("honest", f"c-{time.monotonic_ns()}", CRITICAL, [pb.WEB]))
        took.append(time.monotonic() - begun_s)
        await asyncio.sleep(PAUSE_S)
    return took


@contextmanager
def flood(rig: Rig, seconds: float, told: Counter[str] | None) -> Iterator[None]:
    """Flood from another process; add up its acks in ``told``. Without ``told``, kill it at the end."""
    public, secret = (key.decode() for key in rig.keys.pairs[FLOODER])
    order = {
        "router": rig.gateway.router,
        "public": public,
        "secret": secret,
        "server": rig.keys.gateway_key.decode(),
        "rate": RATE,
        "seconds": seconds + BEGIN_S,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.events.flood"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        yield
        if told is not None:
            output, _ = process.communicate(timeout=150)
            told.update(json.loads(output))
    finally:
        process.kill()
        process.communicate()
