"""Rate limiter: the rule of reservations, the shared file, and calls that wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange import rate_limiter as module
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.rate_limiter import RateLimit, RateLimiter, SharedBucket, open_bucket, reserve
from dexorder_ingestor.metrics import IngestorMetrics

LIMIT = RateLimit(per_second=10, burst=1)
TENTH_NS = SECOND_NS // 10
NOW_NS = 1_000 * SECOND_NS


@pytest.mark.parametrize(
    ("free_ns", "ban_ns", "cost", "at_ns", "then_ns"),
    [
        (-SECOND_NS, 0, 1, 0, 0),  # the whole burst is spent, and the next call may leave at once too
        (-TENTH_NS, 0, 1, 0, 0),
        (0, 0, 1, 0, TENTH_NS),
        (0, 0, 5, 0, 5 * TENTH_NS),
        (TENTH_NS, 0, 0.4, TENTH_NS, TENTH_NS + 4 * TENTH_NS // 10),
        (0, SECOND_NS, 1, SECOND_NS, SECOND_NS),
        (3 * SECOND_NS, SECOND_NS, 1, 3 * SECOND_NS, 3 * SECOND_NS + TENTH_NS),
    ],
)
def test_reservation(free_ns: int, ban_ns: int, cost: float, at_ns: int, then_ns: int) -> None:
    assert reserve(NOW_NS + free_ns, NOW_NS + ban_ns, cost, LIMIT, now_ns=NOW_NS) == (NOW_NS + at_ns, NOW_NS + then_ns)


@given(
    calls=st.lists(st.tuples(st.integers(0, SECOND_NS), st.floats(0.1, 4)), min_size=1, max_size=60),
    per_second=st.floats(1, 50),
    burst=st.floats(0, 5),
)
def test_no_window_holds_more_than_rate_and_burst_and_one_call(
    calls: list[tuple[int, float]], per_second: float, burst: float
) -> None:
    rate, now_ns, free_ns, reserved = RateLimit(per_second, burst), NOW_NS, 0, list[tuple[int, float]]()
    for pause_ns, cost in calls:
        now_ns += pause_ns
        at_ns, free_ns = reserve(free_ns, 0, cost, rate, now_ns=now_ns)
        reserved.append((at_ns, cost))
    assert reserved == sorted(reserved, key=lambda reservation: reservation[0]), "first come, first served"
    for first, (start_ns, _) in enumerate(reserved):
        spent = 0.0
        for at_ns, cost in reserved[first:]:
            allowed = burst + per_second * (at_ns - start_ns) / SECOND_NS
            assert spent <= allowed + 1e-6, "a call left although no units were left"
            spent += cost


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[SharedBucket, SharedBucket]]:
    made = [open_bucket(tmp_path / "rate-limits", "binance", "h:1", LIMIT, now_ns=NOW_NS) for _ in range(2)]
    yield made[0], made[1]
    for each in made:
        each.close()


def test_two_processes_share_one_bucket(two: tuple[SharedBucket, SharedBucket]) -> None:
    one, other = two
    reserved = [b.reserve(1, now_ns=NOW_NS).at_ns - NOW_NS for b in (one, other, one, other)]
    assert reserved == [0, 0, TENTH_NS, 2 * TENTH_NS]


def test_ban_is_known_to_all_processes_voids_their_reservations_and_ends(
    two: tuple[SharedBucket, SharedBucket],
) -> None:
    one, other = two
    reservation = other.reserve(1, now_ns=NOW_NS)
    assert one.ban(NOW_NS + SECOND_NS, now_ns=NOW_NS) == SECOND_NS
    assert other.ban_ns() != reservation.ban_ns
    assert other.ban(NOW_NS + SECOND_NS // 2, now_ns=NOW_NS) == 0, "a shorter ban changes nothing"
    again = other.reserve(1, now_ns=NOW_NS)
    assert (again.at_ns, again.ban_ns) == (NOW_NS + SECOND_NS, other.ban_ns())
    assert one.reserve(1, now_ns=NOW_NS + 5 * SECOND_NS).at_ns == NOW_NS + 5 * SECOND_NS


def test_exchanges_and_hosts_have_buckets_of_their_own(tmp_path: Path) -> None:
    for exchange, host in (("binance", "h:1"), ("binance", "h:2"), ("okx", "h:1"), ("okx", "../h")):
        bucket = open_bucket(tmp_path, exchange, host, LIMIT, now_ns=NOW_NS)
        assert [bucket.reserve(1, now_ns=NOW_NS).at_ns for _ in range(2)] == [NOW_NS, NOW_NS]
        bucket.close()
    assert len(list(tmp_path.iterdir())) == 4


def test_state_survives_its_processes_but_not_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ban_left() -> int:
        bucket = open_bucket(tmp_path, "binance", "h", LIMIT, now_ns=NOW_NS)
        left = bucket.reserve(1, now_ns=NOW_NS).at_ns - NOW_NS
        bucket.ban(NOW_NS + SECOND_NS, now_ns=NOW_NS)
        bucket.close()
        return left

    assert [ban_left(), ban_left()] == [0, SECOND_NS]
    monkeypatch.setattr(module, "_boot_id", lambda: b"another boot    ")
    assert [ban_left(), ban_left()] == [0, SECOND_NS]


@pytest.mark.parametrize("content", [b"", b"garbage", b"x" * 100])
def test_foreign_file_is_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "binance@h").write_bytes(content)
    bucket = open_bucket(tmp_path, "binance", "h", LIMIT, now_ns=NOW_NS)
    assert bucket.reserve(1, now_ns=NOW_NS).at_ns == NOW_NS
    bucket.close()


_HOLDER = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_killed_holder_leaves_no_lock_and_a_frozen_one_blocks_nobody(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path, "binance", "h", LIMIT, now_ns=NOW_NS)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "binance@h")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdin
    with holder, holder.stdin, holder.stdout:
        holder.stdout.readline()
        assert bucket.reserve(1, now_ns=NOW_NS).at_ns == NOW_NS
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert [bucket.reserve(1, now_ns=NOW_NS).at_ns - NOW_NS for _ in range(2)] == [0, TENTH_NS]
    bucket.close()


def test_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_bucket(tmp_path / "file" / "below", "binance", "h", LIMIT, now_ns=NOW_NS)


# ---- calls that wait

NO_BURST = RateLimit(per_second=10, burst=0)


class Bench:
    """One process, whose clock moves only by sleeping; ``during`` runs in its first sleep, as another process would."""

    def __init__(self, folder: Path, clock: ManualClock, during: Callable[[], None] = lambda: None) -> None:
        self.clock = clock
        self.during = during
        self.registry = CollectorRegistry()
        self.slept: list[float] = []
        self.bucket: SharedBucket = open_bucket(folder, "binance", "h", NO_BURST, now_ns=clock.monotonic_ns())
        sleep: Callable[[float], Awaitable[None]] = self.sleep
        self.limiter = RateLimiter(
            "SIM", self.bucket, IngestorMetrics(self.registry), clock, longest_ban_seconds=60, sleep=sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        during = self.during
        self.during = lambda: None
        during()
        self.clock.advance(round(seconds * SECOND_NS))

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"dexorder_ingestor_{name}_total", {"venue": "SIM"}) or 0


async def test_calls_wait_for_their_reservations_and_count_the_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ManualClock())
    for cost in (None, 2, 1):
        await bench.limiter(cost)
    assert bench.slept == [0.1, 0.2]
    assert bench.count("rate_limit_waits") == 2
    assert bench.count("rate_limit_wait_seconds") == pytest.approx(0.3)
    bench.bucket.close()


def test_the_counter_of_bans_begins_at_0(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ManualClock())  # Prometheus sees no increase in a counter that begins with the first ban
    assert bench.registry.get_sample_value("dexorder_ingestor_ban_seconds_total", {"venue": "SIM"}) == 0


async def test_ban_announced_to_another_process_delays_a_waiting_call(tmp_path: Path) -> None:
    clock = ManualClock()
    other = Bench(tmp_path, clock)
    bench = Bench(tmp_path, clock, during=lambda: other.limiter.ban(7))
    await bench.limiter()
    await bench.limiter()
    assert bench.slept == [0.1, 6.9]
    assert clock.monotonic_ns() == 7 * SECOND_NS
    assert (bench.count("ban_seconds"), other.count("ban_seconds")) == (0, 7)
    await bench.limiter()
    assert clock.monotonic_ns() > 7 * SECOND_NS, "calls keep the rate after a ban"
    for each in (bench, other):
        each.bucket.close()


async def test_ban_that_lasts_too_long_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ManualClock())
    bench.limiter.ban(61)
    with pytest.raises(ExchangeFailure, match="SIM bans this address for another 61 s"):
        await bench.limiter()
    bench.clock.advance(2 * SECOND_NS)
    await bench.limiter()
    assert bench.slept == [59]
    bench.bucket.close()
