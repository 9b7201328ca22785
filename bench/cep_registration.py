"""Registrations a second: different patterns in batch calls of a relay with its text processes, by wall time.

    .venv/bin/python -m bench.cep_registration [--triggers 1000] [--calls 4]

Six kinds of patterns in turn, each with its own numbers, so that no text comes twice. A call is over when each trigger
has its ack, which means that it is on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from bench.cep import KINDS
from bench.parts.cpu import process_cpu_seconds
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.paths import ROOT
from tests.rig import report
from tests.rig.processes import free_block
from tests.unit.services.relay.harness import catalog_settings, environment, make_tables

PATTERNS = (
    "three rises",
    "breakout",
    "dip and rise",
    "dip within 10 minutes",
    "volume spike",
    "above the average of 20",
)
PERIOD = {"period": "60"}


def entries(count: int, rng: random.Random, call: int) -> list[pb.RegisterTriggerRequest]:
    """Return triggers of one call."""
    found = []
    for number in range(count):
        names = ("high", "mid", "low", "step")
        sql = KINDS[PATTERNS[number % len(PATTERNS)]].format(**{name: rng.uniform(1, 100) for name in names})
        trigger = ingest.CEPTriggerRequest(
            trigger_id=f"t{call}-{number}",
            sql_pattern=sql.replace(".close", ".`close`"),
            tickers=[f"M{number % 20}/USDT.SIM"],
            parameters=PERIOD,
        )
        found.append(pb.RegisterTriggerRequest(trigger=trigger))
    return found


def measure(folder: Path, triggers: int, calls: int) -> list[tuple[float, float]]:
    """Return the seconds of each call, and the CPU seconds of the relay with its text processes."""
    port = free_block(2)
    catalog = catalog_settings(folder).load()
    make_tables(catalog)
    catalog.close()
    env = environment(folder, port, port + 1) | {"DEXORDER_LOG_LEVEL": "error"}
    relay = subprocess.Popen([sys.executable, "-m", "dexorder_relay"], cwd=ROOT, env=env)
    try:
        return asyncio.run(register(f"127.0.0.1:{port}", relay.pid, triggers, calls))
    finally:
        relay.terminate()
        relay.wait(30)


async def register(address: str, relay: int, triggers: int, calls: int) -> list[tuple[float, float]]:
    """Register triggers at a relay; see `measure`."""
    rng, found = random.Random(3), list[tuple[float, float]]()
    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        stub: Any = RelayStubs(channel)
        for call in range(calls):
            request = pb.RegisterTriggersRequest(triggers=entries(triggers, rng, call))
            cpu_s, began_s = _cpu(relay), time.perf_counter()
            answer = await stub.trigger.RegisterTriggers(request, timeout=120)
            took_s = time.perf_counter() - began_s
            refused = [each for each in answer.acks if each.status != ingest.CEPTriggerAck.REGISTERED]
            assert not refused, refused[0]
            found.append((took_s, _cpu(relay) - cpu_s))
    return found


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(process_cpu_seconds(each) for each in (pid, *map(int, children)))


def main() -> int:
    """Print a table; the first call starts the text processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=1_000)
    parser.add_argument("--calls", type=int, default=4)
    options = parser.parse_args()
    print(report.heading("Triggers: registrations a second"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.triggers, options.calls)
    print("| call | triggers | s | triggers/s | CPU of the relay and its text processes, ms a trigger |")
    print("| --- | --- | --- | --- | --- |")
    for number, (took_s, cpu_s) in enumerate(found, 1):
        rate, cpu_ms = options.triggers / took_s, cpu_s / options.triggers * 1e3
        print(f"| {number} | {options.triggers:,} | {took_s:.2f} | {rate:,.0f} | {cpu_ms:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
