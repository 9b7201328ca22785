"""Events of a campaign with a fleet of gateways: joins and leaves, kills, outages of Kafka."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dexorder_gateway.kafkapixy.service import NAME as KAFKA_PIXY
from tests.nightly.fleet import PATIENCE_S, Fleet
from tests.nightly.numbered import NoCommits, PixyWriter
from tests.nightly.watching import HealthLog
from tests.rig.processes import until
from tests.seeds import seeded

AROUND = 30
"""Records that every caller writes before an outage of Kafka, and again after it."""
MIN_ACTIVE, MAX_ACTIVE = 2, 4
"""Gateways of the group that get requests at the same time."""
NOT_SERVING_S, SERVING_S = 5, 15
"""Limits: from Kafka's stop to NOT_SERVING, from its return to SERVING."""


def joins_and_leaves(fleet: Fleet, count: int) -> Counter[str]:
    """Let gateways join or leave the group, some during the rebalance of the previous change.

    Returns:
        Number of changes of each kind.
    """
    while len(fleet.members) < MIN_ACTIVE:
        fleet.join()
    done: Counter[str] = Counter()
    chance = seeded("joins and leaves")
    for _ in range(count):
        active = [member for member in fleet.members if member.active]
        idle = [member for member in fleet.members if not member.active]
        if len(active) == MIN_ACTIVE or (len(active) < MAX_ACTIVE and chance.random() < 0.5):
            if idle and chance.random() < 0.5:
                done["active again"] += 1
                fleet.activate(chance.choice(idle))
            else:
                done["started"] += 1
                fleet.join()
        elif len(idle) < MIN_ACTIVE and chance.random() < 0.5:
            done["idle"] += 1
            chance.choice(active).go_idle()
        else:
            done["SIGTERM"] += 1
            fleet.leave(chance.choice(fleet.members if len(active) > MIN_ACTIVE else idle))
        if chance.random() < 0.5:
            fleet.catch_up()
    return done


def kills(fleet: Fleet, count: int) -> list[float]:
    """Kill one of two gateways, repeatedly.

    Returns:
        Seconds until the other one had read all records written before the kill.
    """
    seconds, chance = [], seeded("kills")
    for _ in range(count):
        while len(fleet.members) < MIN_ACTIVE:
            fleet.join()
        time.sleep(chance.uniform(0.0, 1.0))
        seconds.append(fleet.kill(chance.choice(fleet.members)))
    return seconds


@dataclass
class Outage:
    """Outage of Kafka; seconds."""

    not_serving: float
    serving: float
    again: float
    """From Kafka's return until every caller had a new record accepted and all sync ones were read."""
    refused: int
    """Produce calls that ended with UNAVAILABLE or RESOURCE_EXHAUSTED."""

    def beyond_limits(self) -> list[str]:
        """Return every figure beyond its limit."""
        figures = {"NOT_SERVING": (self.not_serving, NOT_SERVING_S), "SERVING": (self.serving, SERVING_S)}
        return [f"{what} after {value:.1f} s" for what, (value, limit) in figures.items() if value > limit]


class Writers:
    """Callers that produce through every gateway of the fleet."""

    SYNC, ASYNC = 2, 1

    def __init__(self, fleet: Fleet) -> None:
        numbers = itertools.count()
        self.all = [
            PixyWriter(member, fleet.topic, fleet.ledger, numbers.__next__, async_mode=async_mode)
            for member in fleet.members
            for async_mode in [False] * self.SYNC + [True] * self.ASYNC
        ]

    def accepted(self, *, async_mode: bool) -> set[int]:
        """Return the numbers that were answered with OK."""
        return {n for writer in self.all if writer.async_mode is async_mode for n in list(writer.accepted)}

    @property
    def refused(self) -> int:
        """Calls that were not answered with OK."""
        return sum(writer.refused for writer in self.all)

    def wait_for_each(self, more: int, explain: Callable[[], str]) -> None:
        """Wait until each of them has had ``more`` further records accepted."""
        wanted = [len(writer.accepted) + more for writer in self.all]
        until(
            lambda: all(len(w.accepted) >= count for w, count in zip(self.all, wanted, strict=True)),
            PATIENCE_S,
            explain,
        )

    def stop(self) -> None:
        """Stop writing."""
        for writer in self.all:
            writer.stop()


@contextmanager
def writing(fleet: Fleet, gateways: int = MIN_ACTIVE) -> Iterator[Writers]:
    """Start gateways, and read and write through all of them until the block ends."""
    for _ in range(gateways):
        fleet.start().start_readers()
    writers = Writers(fleet)
    for writer in writers.all:
        writer.start()
    try:
        yield writers
    finally:
        writers.stop()


def outage(
    fleet: Fleet, writers: Writers, *, stop: Callable[[], None], start: Callable[[], float], seconds: float
) -> Outage:
    """Stop Kafka under load for at least ``seconds``, and until every gateway has noticed.

    Args:
        start: Returns the monotonic second at which Kafka was available again.
    """
    names = tuple(fleet.names)
    refused = writers.refused
    writers.wait_for_each(AROUND, fleet.tails)
    with HealthLog(fleet, dict.fromkeys(names, KAFKA_PIXY)) as health:
        until(lambda: all(map(health.serving, names)), PATIENCE_S, fleet.tails)
        stop()
        stopped_s = time.monotonic()
        until(lambda: not any(map(health.serving, names)), PATIENCE_S, fleet.tails)
        time.sleep(max(0.0, seconds - (time.monotonic() - stopped_s)))
        back_s = start()
        until(lambda: all(map(health.serving, names)), PATIENCE_S, fleet.tails)
        writers.wait_for_each(1, fleet.tails)
        written = writers.accepted(async_mode=False)
        until(lambda: written <= fleet.ledger.reads.keys(), PATIENCE_S, fleet.tails)
        again_s = time.monotonic()
        writers.wait_for_each(AROUND, fleet.tails)
    for member in fleet.members:
        fleet.ledger.no_commits(member, NoCommits(stopped_s, again_s))
    return Outage(
        max(health.first(name, False, stopped_s) for name in names),
        max(health.first(name, True, back_s) for name in names),
        again_s - back_s,
        writers.refused - refused,
    )
