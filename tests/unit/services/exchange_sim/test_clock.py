from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from dexorder_exchange_sim.venue import ClockChange, SimClock

NOW_NS = 1_700_000_123 * 10**9


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Time of the machine, which the test moves."""
    now = [5_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS + now[0])
    return now


def test_a_clock_runs_at_its_speed_from_when_it_was_set(monotonic: list[int]) -> None:
    clock = SimClock(NOW_NS, 360)
    monotonic[0] += 10**9
    assert clock.now_ns() == NOW_NS + 360 * 10**9
    ClockChange(speed=2).apply(clock)
    monotonic[0] += 10**9
    assert clock.now_ns() == NOW_NS + 362 * 10**9
    ClockChange(advance_ns=5).apply(clock)
    assert (clock.now_ns(), clock.speed, clock.jumps) == (NOW_NS + 362 * 10**9 + 5, 2, 0)
    ClockChange(now_ns=7).apply(clock)
    monotonic[0] += 10**9
    assert (clock.now_ns(), clock.speed, clock.jumps) == (7, 0, 1)


def test_without_a_time_it_is_the_machines(monotonic: list[int]) -> None:
    clock = SimClock()
    monotonic[0] += 3
    assert (clock.now_ns(), clock.speed) == (time.time_ns(), 1)
    ClockChange(speed=10).apply(clock)
    monotonic[0] += 3
    assert clock.now_ns() == time.time_ns() + 27
    ClockChange(now_ns=None).apply(clock)
    monotonic[0] += 3
    assert clock.now_ns() == time.time_ns()


@pytest.mark.parametrize("change", [{}, {"now_ns": 1, "advance_ns": 1}, {"now_ns": -1}, {"speed": -1}, {"now": 1}])
def test_a_change_that_says_nothing_or_too_much_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        ClockChange.model_validate(change)
