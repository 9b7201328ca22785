"""Mixed events over many users, none of whom may get another's; see ``test_events_campaign``."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import Rig, make_rig
from tests.nightly.event_fuzz_campaign import MUCH
from tests.rig.events_gateway import Keys
from tests.rig.processes import Worker

TOKEN_S = 100_000
PATIENCE_S = 20_000.0
CONTAINERS_EACH = 4
_ADDRESSEE = re.compile(r"FOR([a-z0-9]+)END")


@dataclass
class Seen:
    """Result of the campaign; ``provider_calls`` is the number of providers' calls that were checked."""

    sent: Counter[str] = field(default_factory=Counter)
    heard: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    provider_calls: int = 0


async def run(
    folder: Path, provider_servers: ProviderServers, *, events: int, users: int, processes: int, seed: int = 0
) -> Seen:
    """Send events from several processes, each with its own containers and clients."""
    rig = make_rig(
        folder,
        provider_servers,
        log_level="info",
        normal_ttl_seconds=5,
        session_ack_seconds=1,
        retry_base_seconds=0.2,
        max_concurrent_sends=64,
        jwt_max_seconds=TOKEN_S + 1,
    )
    # u1 begins u10, u11, ...
    names = [f"u{number}" for number in range(users)]
    orders = [order(rig, names, number, processes, events // processes, seed) for number in range(processes)]
    rig.keys.write()
    seen = Seen()
    with ExitStack() as stack:
        stack.enter_context(rig.gateway)
        for name in names:
            await rig.reachable(name)
        started = [stack.enter_context(Worker.module("tests.nightly.event_traffic")) for _ in orders]
        for worker, given in zip(started, orders, strict=True):
            worker.send(given)
        progress = asyncio.create_task(report_progress(rig))
        try:
            for output in await asyncio.gather(*(asyncio.to_thread(each.finish, PATIENCE_S) for each in started)):
                told = json.loads(output)
                seen.sent.update(told["sent"])
                seen.heard.update(told["heard"])
                seen.leaks += told["leaks"]
                seen.wrong += told["wrong"]
        finally:
            progress.cancel()
        assert rig.gateway.running.lives, rig.gateway.tail()
    check_provider_calls(provider_servers, set(names), seen)
    return seen


def order(rig: Rig, names: list[str], number: int, processes: int, events: int, seed: int) -> dict[str, Any]:
    """Return one process's share: some users of its containers are clients of another process."""
    keys: Keys = rig.keys
    containers = []
    for index in range(CONTAINERS_EACH):
        place = number * CONTAINERS_EACH + index
        owned = names[place :: processes * CONTAINERS_EACH] + names[:1]
        keys.container(name := f"container-{place}", owned, quota=MUCH)
        public, secret = (key.decode() for key in keys.pairs[name])
        others = [user for user in names if user not in owned]
        containers.append({"name": name, "public": public, "secret": secret, "users": owned, "others": others})
    return {
        "sub": rig.gateway.sub,
        "router": rig.gateway.router,
        "grpc": rig.gateway.address,
        "web": rig.gateway.web,
        "server": keys.gateway_key.decode(),
        "containers": containers,
        "events": events,
        "seed": seed + number,
        "tokens": {user: keys.token(user, seconds=TOKEN_S) for user in names[number::processes]},
    }


async def report_progress(rig: Rig) -> None:
    """Print a line per minute."""
    started_s = time.monotonic()
    while True:
        await asyncio.sleep(60)
        calls = sum(len(provider.everything()) for provider in rig.provider_servers.all)
        rss_mib = rig.gateway.rss_bytes() / (1 << 20)
        print(f"{time.monotonic() - started_s:.0f} s, {calls:,} calls of providers, {rss_mib:.0f} MiB", flush=True)


def check_provider_calls(provider_servers: ProviderServers, names: set[str], seen: Seen) -> None:
    """Return whether each provider call for a user names that user and no other."""
    for provider in provider_servers.all:
        for user, call in provider.everything():
            if user not in names or not call.text:  # a mail that was announced when the gateway ended has no text yet
                continue
            seen.provider_calls += 1
            addressees = set(_ADDRESSEE.findall(call.text))
            if addressees != {user} or "STOLEN" in call.text:
                seen.leaks.append(f"{provider.name} for {user}: {call.text[:200]}")
