"""A real gateway with honest peers and a fuzzer, in quiet and fuzzed phases; see ``test_events_campaign``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import CRITICAL, INFORMATIONAL, Container, event
from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import Rig
from tests.integration.events.sessions import Session
from tests.nightly.event_fuzz import FUZZED_USER
from tests.rig.events_gateway import EventsGateway, Keys
from tests.rig.processes import Worker

HONEST_USER = "honest"
PAUSE_S = 0.01
WARM_S = 1.0
MUCH = {"soft_events_per_second": 1e9, "hard_events_per_second": 1e9, "queued_events": 1_000_000_000}


@dataclass
class Phase:
    """Nanoseconds an honest peer waited for the QUEUED ack, and for the event in the session."""

    acks: list[int] = field(default_factory=list)
    shows: list[int] = field(default_factory=list)


@dataclass
class Seen:
    """Result of a campaign; ``dropped`` is the gateway's own count."""

    quiet: Phase = field(default_factory=Phase)
    fuzzed: Phase = field(default_factory=Phase)
    burst: Phase = field(default_factory=Phase)
    frames: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    grown_bytes: int = 0


async def run(folder: Path, port: str, *, frames: int, rate: float, rounds: int, burst: int = 0, seed: int = 0) -> Seen:
    """Run rounds of a quiet phase and a fuzzed one of the same length, then a burst at full speed.

    Args:
        port: "router" or "sub". There is no CURVE, so the fuzzer is let in as everybody is.
    """
    keys = Keys(folder / "keys")
    keys.local(quota=MUCH)
    keys.write()
    seen = Seen()
    gateway = EventsGateway(folder, keys, curve=False, log_level="info", session_queue=1_000_000)
    rig = Rig(gateway, keys, ProviderServers())
    seconds = frames / rounds / rate
    with gateway, Worker.module("tests.nightly.event_fuzz", port, getattr(gateway, port), str(seed)) as fuzzer:
        async with (
            rig.container("") as container,
            rig.session(HONEST_USER, "native") as session,
            rig.session(FUZZED_USER, "native"),
        ):
            await container.subscribed(HONEST_USER)
            await work(container, session, Phase(), time.monotonic() + WARM_S)
            before_bytes = gateway.rss_bytes()
            for _ in range(rounds):
                await work(container, session, seen.quiet, time.monotonic() + seconds)
                seen.frames.update(await fuzzed(fuzzer, frames // rounds, rate, container, session, seen.fuzzed))
            if burst:
                seen.frames.update(await fuzzed(fuzzer, burst, 0, container, session, seen.burst))
        assert gateway.running.lives, gateway.tail()
        seen.grown_bytes = gateway.rss_bytes() - before_bytes
        seen.dropped = int(gateway.dropped())
        assert gateway.running.stop() == 0, gateway.tail()
    return seen


async def fuzzed(
    fuzzer: Worker, frames: int, rate: float, container: Container, session: Session, phase: Phase
) -> dict[str, int]:
    """Run honest traffic while frames are sent; return the sent frames by kind."""
    answer = asyncio.create_task(asyncio.to_thread(fuzzer.run, frames=frames, rate=rate))
    while not answer.done():
        await work(container, session, phase, time.monotonic() + 0.1)
    sent: dict[str, int] = await answer
    return sent


async def work(container: Container, session: Session, phase: Phase, until_s: float) -> None:
    """Send CRITICAL events on 5571 and INFORMATIONAL ones on 5570, in turn; each is shown once and acked."""
    while time.monotonic() < until_s:
        begun_ns = time.monotonic_ns()
        await container.queued(sent := event(HONEST_USER, f"c-{begun_ns}", CRITICAL, [pb.WEB]))
        phase.acks.append(time.monotonic_ns() - begun_ns)
        assert (await session.take()).event.event_id == sent.event_id
        assert await container.delivered(sent) == pb.WEB
        begun_ns = time.monotonic_ns()
        await container.publish(shown := event(HONEST_USER, f"i-{begun_ns}", INFORMATIONAL))
        assert (await session.next()).event.event_id == shown.event_id
        phase.shows.append(time.monotonic_ns() - begun_ns)
        await asyncio.sleep(PAUSE_S)
