"""A real relay with honest ingestors, alternately with and without a fuzzer; see ``test_broker_campaign``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.nightly.honest_workers import JOB_PERIODS, JOBS
from tests.nightly.runner import resident_bytes
from tests.rig.processes import ForkedService, Worker, free_ports, scrape
from tests.unit.services.relay.harness import catalog_settings, environment, make_tables

SLOTS, PAUSE_SECONDS = 8, 0.05
PATIENCE_SECONDS = 600


@dataclass
class Seen:
    """Result of a campaign.

    Attributes:
        quiet, fuzzed, burst: Nanoseconds from WorkerReady to DataRequest at the honest ingestors, by phase.
        frames: Frames that the fuzzer sent, by kind.
        dropped: Frames that the relay dropped, by reason.
        grown_bytes: Resident memory at the end, less that after the first quiet phase.
        requests: Number of honest requests, of 100 jobs each; ``bad`` are those with a wrong end.
    """

    quiet: list[int] = field(default_factory=list)
    fuzzed: list[int] = field(default_factory=list)
    burst: list[int] = field(default_factory=list)
    frames: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, int] = field(default_factory=dict)
    grown_bytes: int = 0
    requests: int = 0
    bad: list[str] = field(default_factory=list)


@dataclass
class Relay:
    """Process of a relay and its addresses."""

    process: ForkedService
    address: str
    broker: str
    metrics: str

    def rss_bytes(self) -> int:
        return resident_bytes(self.process.process.pid or 0)

    def dropped(self) -> dict[str, int]:
        counts = (x for x in scrape(self.metrics).splitlines() if x.startswith("dexorder_relay_frames_dropped_total{"))
        return {line.split('"')[1]: int(float(line.split()[-1])) for line in counts}


@contextmanager
def running_relay(folder: Path, **variables: str) -> Iterator[Relay]:
    """Run a relay in ``folder``; ``variables`` are added to its environment."""
    made = catalog_settings(folder).load()
    make_tables(made)
    made.close()
    port, broker_port, metrics_port = free_ports(3)
    env = environment(folder, port, broker_port, metrics_port) | {"DEXORDER_RELAY_JOB_PERIODS": str(JOB_PERIODS)}
    addresses = f"127.0.0.1:{port}", f"tcp://127.0.0.1:{broker_port}", f"127.0.0.1:{metrics_port}"
    with ForkedService("dexorder_relay", folder, env | variables) as process:
        yield Relay(process.listening(addresses[0]), *addresses)


def run(folder: Path, *, frames: int, rate: float, rounds: int, burst: int = 0, seed: int = 0) -> Seen:
    """Run rounds of a quiet and a fuzzed phase of the same length; then a burst at full speed."""
    seen = Seen()
    phases: list[tuple[int, int, list[int]]] = []
    with running_relay(folder) as relay:
        order = relay.address, relay.broker, str(SLOTS), str(PAUSE_SECONDS)
        with (
            Worker.module("tests.nightly.honest_workers", *order) as honest,
            Worker.module("tests.nightly.broker_fuzz", relay.broker, str(seed)) as fuzzer,
        ):
            seconds = frames / rounds / rate
            time.sleep(1 + seconds / 4)  # warm
            for number in range(rounds):
                phases.append(_phase(seen.quiet, lambda: time.sleep(seconds)))
                if number == 0:
                    before_bytes = relay.rss_bytes()
                fuzz = partial(fuzzer.run, frames=frames // rounds, rate=rate)
                phases.append(_phase(seen.fuzzed, lambda: seen.frames.update(fuzz())))  # noqa: B023 - called at once
            phases.append(_phase(seen.burst, lambda: seen.frames.update(fuzzer.run(frames=burst, rate=0))))
            fuzzer.finish(PATIENCE_SECONDS)
            output = honest.finish(PATIENCE_SECONDS)
        seen.grown_bytes = relay.rss_bytes() - before_bytes
        seen.dropped = relay.dropped()
        assert relay.process.stop() == 0, relay.process.tail()
    told = json.loads(output)
    seen.requests = told["requests"]
    seen.bad = told["bad"]
    for at_ns, took_ns in told["dispatches"]:
        for since_ns, until_ns, took in phases:
            if since_ns <= at_ns - took_ns and at_ns < until_ns:
                took.append(took_ns)
    assert len(told["dispatches"]) >= seen.requests * JOBS
    return seen


def _phase(took: list[int], act: Callable[[], None]) -> tuple[int, int, list[int]]:
    since_ns = time.monotonic_ns()
    act()
    return since_ns, time.monotonic_ns(), took
