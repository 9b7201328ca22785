"""Rounds of ``bench.pixy``: each contains every side once, so that changes over time affect all alike."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bench.parts import pixy_raw as raw
from bench.parts.pixy_processes import Job, Load, Server, join

KINDS = ("produce sync", "produce async", "consume auto", "consume chained")
HTTP_KINDS = ("http produce sync", "http produce async", "http consume auto")
CALLERS = (1, 16, 64)
MAX_CALLS_PER_SECOND = 30_000
"""More than a unary reader takes; sizes the topic that is read."""
WRITE, READ = "bench-write", "bench-read"


@dataclass(frozen=True)
class Plan:
    """Number and length of the measurements."""

    rounds: int
    seconds: float
    warm_seconds: float = 0.3

    @property
    def preload(self) -> int:
        """Records in the topic that is read."""
        return int(self.rounds * (self.warm_seconds + self.seconds) * len(CALLERS) * MAX_CALLS_PER_SECOND)


FULL = Plan(rounds=5, seconds=2.0)
SMALL = Plan(rounds=1, seconds=0.2, warm_seconds=0.1)


@dataclass
class Samples:
    """One figure per round and side: rate per second, and microseconds of the server's CPU per call."""

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rate(self, side: str) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.rates[side])

    def ratio(self, *limits: str) -> float:
        """Return the gateway's rate relative to calls that take the time of all limits; the median of the rounds."""
        sides = (self.rates["gateway"], *(self.rates[limit] for limit in limits))
        rounds: Iterable[tuple[float, ...]] = zip(*sides, strict=True)
        return statistics.median([ours * sum(1 / limit for limit in others) for ours, *others in rounds])


Results = dict[tuple[str, int], Samples]
"""By kind of call and number of callers."""


def unary(plan: Plan, load: Load, sides: Mapping[str, Server], bootstrap: str) -> Results:
    """Run every kind at every concurrency on each side; single records also without gRPC."""
    results: Results = defaultdict(Samples)
    for kind in KINDS:
        if kind.startswith("consume"):
            join(sides["gateway"], READ, group_of(kind))
    for number in range(plan.rounds):
        for kind in KINDS:
            for callers in CALLERS:
                for side in order_of(sides, number):
                    unary_run(plan, load, results[kind, callers], side, sides[side], kind, callers)
        one_by_one = raw.produce_one_by_one(bootstrap, WRITE, plan.seconds)
        results["produce sync", 1].rates["raw"].append(one_by_one)
    return results


def side_by_side(plan: Plan, load: Load, sides: Mapping[str, Server], kinds: Iterable[str] = KINDS) -> Results:
    """Run kinds at every concurrency on the gateways, which have groups of their own."""
    results: Results = defaultdict(Samples)
    for kind in kinds:
        for side, server in sides.items():
            if "consume" in kind:
                join(server, READ, f"{side}-{group_of(kind)}")
    for number in range(plan.rounds):
        for kind in kinds:
            for callers in CALLERS:
                for side in order_of(sides, number):
                    group = f"{side}-{group_of(kind)}"
                    unary_run(plan, load, results[kind, callers], side, sides[side], kind, callers, group)
    return results


def unary_run(
    plan: Plan, load: Load, samples: Samples, side: str, server: Server, kind: str, callers: int, group: str = ""
) -> None:
    """Run one job; ``group`` is that of the kind by default."""
    topic = WRITE if "produce" in kind else READ
    address = server.http if kind.startswith("http") else server.address
    job = Job(kind, address, topic, group or group_of(kind), callers, plan.warm_seconds, plan.seconds)
    before_s = server.cpu_seconds()
    measured = load.run(job)
    samples.rates[side].append(measured.rate)
    samples.cpu_us[side].append((server.cpu_seconds() - before_s) / measured.calls * 1e6)


def group_of(kind: str) -> str:
    """Return the consumer group of a kind of call; the same in all rounds."""
    return kind.replace(" ", "-")


def order_of(sides: Iterable[str], number: int) -> list[str]:
    """Return the sides in the order of this round: every second round is reversed."""
    return list(sides)[:: 1 if number % 2 == 0 else -1]
