from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dexorder_exchange_sim.faults import FaultPlan, FaultRule
from tests.fakes.exchange import DIALECTS

PATH = "/api/v3/klines"
HISTORY = [path for dialect in DIALECTS for path in dialect.history]


def strikes(rule: FaultRule, calls: int = 1000, seed: int = 1) -> list[int]:
    plan = FaultPlan([rule], seed=seed)
    return [call for call in range(1, calls + 1) if plan.pick(PATH, "BTCUSDT")]


def test_cadence() -> None:
    assert strikes(FaultRule(kind="text", every=20), 100) == [20, 40, 60, 80, 100]
    assert strikes(FaultRule(kind="text", count=3)) == [1, 2, 3]
    assert strikes(FaultRule(kind="text", every=10, count=2, after=5)) == [15, 25]


def test_probability_is_decided_by_the_seed() -> None:
    rule = FaultRule(kind="text", probability=0.05)
    assert 25 <= len(strikes(rule)) <= 85
    assert strikes(rule) == strikes(rule)
    assert strikes(rule) != strikes(rule, seed=2)


def test_only_matching_requests_count() -> None:
    plan = FaultPlan([FaultRule(kind="text", every=2, symbol="ETHUSDT")], seed=1)
    assert plan.pick(PATH, "BTCUSDT") is None
    assert plan.pick(PATH, "ETHUSDT") is None
    assert plan.pick("/api/v3/time", None) is None
    assert plan.pick(PATH, "ETHUSDT") is not None
    assert FaultPlan([FaultRule(kind="text", path="*")], seed=1).pick("/api/v3/time", None) is not None


def test_the_first_rule_wins_and_the_others_count_on() -> None:
    plan = FaultPlan([FaultRule(kind="text", every=2), FaultRule(kind="html", every=3)], seed=1)
    picked = [plan.pick(PATH, None) for _ in range(6)]
    assert [strike and strike.rule.kind for strike in picked] == [None, "text", "html", "text", None, "text"]


@pytest.mark.parametrize(
    ("wanted", "path", "struck"),
    [
        ("history", "/api/v3/klines", True),
        ("history", "/0/public/OHLC", True),
        ("history", "/0/public/Trades", True),
        ("history", "/api/v3/aggTrades", False),
        ("history", "/0/public/Ticker", False),
        ("/api/v3/klines", "/0/public/OHLC", False),
        ("*", "/0/public/Time", True),
    ],
)
def test_history_is_where_candles_come_from(wanted: str, path: str, struck: bool) -> None:
    assert FaultRule(kind="text").path == "history"
    assert bool(FaultPlan([FaultRule(kind="text", path=wanted)], seed=1, history=HISTORY).pick(path, None)) == struck


@pytest.mark.parametrize(
    ("window", "struck"),
    [((0, 100), False), ((0, 101), True), ((150, 160), True), ((199, 300), True), ((200, 300), False), (None, False)],
)
def test_a_span_strikes_what_touches_it(window: tuple[int, int] | None, struck: bool) -> None:
    plan = FaultPlan([FaultRule(kind="empty", span=(100, 200))], seed=1)
    assert bool(plan.pick(PATH, "BTCUSDT", window)) == struck


def test_requests_outside_a_span_do_not_count() -> None:
    plan = FaultPlan([FaultRule(kind="empty", span=(100, 200), every=2)], seed=1)
    assert not any(plan.pick(PATH, None, window) for window in [(0, 10), (100, 110), (300, 310)])
    assert plan.pick(PATH, None, (100, 110)) is not None


def test_each_strike_rolls_anew_and_the_same_under_one_seed() -> None:
    def rolls(seed: int) -> list[int]:
        plan = FaultPlan([FaultRule(kind="hole", place="random")], seed=seed)
        return [strike.roll for _ in range(50) if (strike := plan.pick(PATH, None))]

    assert rolls(1) == rolls(1) != rolls(2)
    assert len(set(rolls(1))) == 50


def test_a_fault_lasts_from_its_first_request_on() -> None:
    plan = FaultPlan([FaultRule(kind="empty", after=1, lasts_s=2.5)], seed=1)
    struck = [bool(plan.pick(PATH, None, now_ns=int(t * 1e9))) for t in (0, 7, 9, 9.4, 9.5, 100)]
    assert struck == [False, True, True, True, False, False]


def test_a_connection_stays_at_its_replica() -> None:
    plan = FaultPlan([FaultRule(kind="empty", replicas=3)], seed=1)
    struck = [bool(plan.pick(PATH, None, connection=n)) for n in (0, 1, 2, 3, 0, 1)]
    assert struck == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "fire"},
        {"kind": "text", "often": 1},
        {"kind": "text", "every": 2, "probability": 0.5},
        {"kind": "text", "every": 0},
        {"kind": "hole", "place": "end"},
        {"kind": "empty", "place": "random"},
        {"kind": "hole", "place": "random", "span": [1, 2]},
        {"kind": "hole", "span": [2, 2]},
        {"kind": "hole", "span": [3, 2]},
        {"kind": "hole", "span": [-1, 2]},
        {"kind": "hole", "span": [0, 2**63]},
        {"kind": "hole", "span": [1]},
        {"kind": "short", "other": "ETHUSDT"},
        {"kind": "short", "size": -1},
        {"kind": "absent"},
        {"kind": "hole", "coarser": "kept"},
        {"kind": "absent", "span": [1, 2], "coarser": "lost"},
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FaultRule.model_validate(rule)
