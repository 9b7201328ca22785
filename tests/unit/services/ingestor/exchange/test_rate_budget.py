"""The rule of turns; then the file: shared, never in the way of the living, of this boot only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.times import SECOND_NS
from services.ingestor.exchange import rate_budget as module
from services.ingestor.exchange.rate_budget import RateLimit, SharedBucket, open_bucket, take

RATE = RateLimit(per_second=10, burst=1)
TENTH_NS = SECOND_NS // 10
NOW_NS = 1_000 * SECOND_NS


@pytest.mark.parametrize(
    ("free_ns", "ban_ns", "cost", "at_ns", "then_ns"),
    [
        (-SECOND_NS, 0, 1, 0, 0),  # all that was saved up is spent: the next may go at once too
        (-TENTH_NS, 0, 1, 0, 0),
        (0, 0, 1, 0, TENTH_NS),
        (0, 0, 5, 0, 5 * TENTH_NS),
        (TENTH_NS, 0, 0.4, TENTH_NS, TENTH_NS + 4 * TENTH_NS // 10),
        (0, SECOND_NS, 1, SECOND_NS, SECOND_NS),
        (3 * SECOND_NS, SECOND_NS, 1, 3 * SECOND_NS, 3 * SECOND_NS + TENTH_NS),
    ],
)
def test_take(free_ns: int, ban_ns: int, cost: float, at_ns: int, then_ns: int) -> None:
    assert take(NOW_NS + free_ns, NOW_NS + ban_ns, cost, RATE, now_ns=NOW_NS) == (NOW_NS + at_ns, NOW_NS + then_ns)


@given(
    asks=st.lists(st.tuples(st.integers(0, SECOND_NS), st.floats(0.1, 4)), min_size=1, max_size=60),
    per_second=st.floats(1, 50),
    burst=st.floats(0, 5),
)
def test_no_window_holds_more_than_rate_and_burst_and_one_call(
    asks: list[tuple[int, float]], per_second: float, burst: float
) -> None:
    rate, now_ns, free_ns, turns = RateLimit(per_second, burst), NOW_NS, 0, list[tuple[int, float]]()
    for pause_ns, cost in asks:
        now_ns += pause_ns
        at_ns, free_ns = take(free_ns, 0, cost, rate, now_ns=now_ns)
        turns.append((at_ns, cost))
    assert turns == sorted(turns, key=lambda turn: turn[0]), "first come, first served"
    for first, (start_ns, _) in enumerate(turns):
        spent = 0.0
        for at_ns, cost in turns[first:]:
            allowed = burst + per_second * (at_ns - start_ns) / SECOND_NS
            assert spent <= allowed + 1e-6, "a call went although nothing was left"
            spent += cost


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[SharedBucket, SharedBucket]]:
    made = [open_bucket(tmp_path / "budgets", "binance", "h:1", RATE, now_ns=NOW_NS) for _ in range(2)]
    yield made[0], made[1]
    for each in made:
        each.close()


def test_two_processes_take_turns_from_one_bucket(two: tuple[SharedBucket, SharedBucket]) -> None:
    one, other = two
    turns = [b.take(1, now_ns=NOW_NS).at_ns - NOW_NS for b in (one, other, one, other)]
    assert turns == [0, 0, TENTH_NS, 2 * TENTH_NS]


def test_ban_is_known_to_all_voids_their_turns_and_ends(two: tuple[SharedBucket, SharedBucket]) -> None:
    one, other = two
    turn = other.take(1, now_ns=NOW_NS)
    assert one.ban(NOW_NS + SECOND_NS, now_ns=NOW_NS) == SECOND_NS
    assert other.ban_ns() != turn.ban_ns
    assert other.ban(NOW_NS + SECOND_NS // 2, now_ns=NOW_NS) == 0, "a shorter one changes nothing"
    again = other.take(1, now_ns=NOW_NS)
    assert (again.at_ns, again.ban_ns) == (NOW_NS + SECOND_NS, other.ban_ns())
    assert one.take(1, now_ns=NOW_NS + 5 * SECOND_NS).at_ns == NOW_NS + 5 * SECOND_NS


def test_exchanges_and_hosts_have_budgets_of_their_own(tmp_path: Path) -> None:
    for exchange, host in (("binance", "h:1"), ("binance", "h:2"), ("okx", "h:1"), ("okx", "../h")):
        budget = open_bucket(tmp_path, exchange, host, RATE, now_ns=NOW_NS)
        assert [budget.take(1, now_ns=NOW_NS).at_ns for _ in range(2)] == [NOW_NS, NOW_NS]
        budget.close()
    assert len(list(tmp_path.iterdir())) == 4


def test_state_outlives_its_processes_but_not_the_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ban_left() -> int:
        budget = open_bucket(tmp_path, "binance", "h", RATE, now_ns=NOW_NS)
        left = budget.take(1, now_ns=NOW_NS).at_ns - NOW_NS
        budget.ban(NOW_NS + SECOND_NS, now_ns=NOW_NS)
        budget.close()
        return left

    assert [ban_left(), ban_left()] == [0, SECOND_NS]
    monkeypatch.setattr(module, "_boot", lambda: b"another boot    ")
    assert [ban_left(), ban_left()] == [0, SECOND_NS]


@pytest.mark.parametrize("content", [b"", b"garbage", b"x" * 100])
def test_file_that_is_none_of_ours_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "binance@h").write_bytes(content)
    budget = open_bucket(tmp_path, "binance", "h", RATE, now_ns=NOW_NS)
    assert budget.take(1, now_ns=NOW_NS).at_ns == NOW_NS
    budget.close()


_HOLDER = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def test_killed_holder_leaves_no_lock_and_a_frozen_one_stops_nobody(tmp_path: Path) -> None:
    budget = open_bucket(tmp_path, "binance", "h", RATE, now_ns=NOW_NS)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "binance@h")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdin
    with holder, holder.stdin, holder.stdout:
        holder.stdout.readline()
        assert budget.take(1, now_ns=NOW_NS).at_ns == NOW_NS
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert [budget.take(1, now_ns=NOW_NS).at_ns - NOW_NS for _ in range(2)] == [0, TENTH_NS]
    budget.close()


def test_folder_that_can_not_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        open_bucket(tmp_path / "file" / "below", "binance", "h", RATE, now_ns=NOW_NS)
