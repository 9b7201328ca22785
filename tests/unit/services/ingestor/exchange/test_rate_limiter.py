"""Turns and bans as a client meets them; the clock moves when somebody sleeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.clock import ManualClock
from services.common.model.times import SECOND_NS
from services.ingestor.exchange.failures import ExchangeFailure
from services.ingestor.exchange.rate_budget import RateLimit, SharedBucket, open_bucket
from services.ingestor.exchange.rate_limiter import RateLimiter
from services.ingestor.metrics import IngestorMetrics

RATE = RateLimit(per_second=10, burst=0)


class Bench:
    """One process; ``during`` runs in its first sleep, as what another process does meanwhile."""

    def __init__(self, folder: Path, clock: ManualClock, during: Callable[[], None] = lambda: None) -> None:
        self.clock = clock
        self.during = during
        self.registry = CollectorRegistry()
        self.slept: list[float] = []
        self.budget: SharedBucket = open_bucket(folder, "binance", "h", RATE, now_ns=clock.monotonic_ns())
        sleep: Callable[[float], Awaitable[None]] = self.sleep
        self.gate = RateLimiter(
            "SIM", self.budget, IngestorMetrics(self.registry), clock, longest_ban_seconds=60, sleep=sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        during = self.during
        self.during = lambda: None
        during()
        self.clock.advance(round(seconds * SECOND_NS))

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"dexorder_ingestor_{name}_total", {"venue": "SIM"}) or 0


async def test_calls_wait_for_their_turns_and_say_how_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ManualClock())
    for cost in (None, 2, 1):
        await bench.gate(cost)
    assert bench.slept == [0.1, 0.2]
    assert bench.count("budget_waits") == 2
    assert bench.count("budget_wait_seconds") == pytest.approx(0.3)
    bench.budget.close()


async def test_ban_another_process_hears_of_stops_a_call_that_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    other = Bench(tmp_path, clock)
    bench = Bench(tmp_path, clock, during=lambda: other.gate.ban(7))
    await bench.gate()
    await bench.gate()
    assert bench.slept == [0.1, 6.9]
    assert clock.monotonic_ns() == 7 * SECOND_NS
    assert (bench.count("ban_seconds"), other.count("ban_seconds")) == (0, 7)
    await bench.gate()
    assert clock.monotonic_ns() > 7 * SECOND_NS, "after a ban nobody rushes"
    for each in (bench, other):
        each.budget.close()


async def test_ban_that_lasts_too_long_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ManualClock())
    bench.gate.ban(61)
    with pytest.raises(ExchangeFailure, match="SIM bans this address for another 61 s"):
        await bench.gate()
    bench.clock.advance(2 * SECOND_NS)
    await bench.gate()
    assert bench.slept == [59]
    bench.budget.close()
