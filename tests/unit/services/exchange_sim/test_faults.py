from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from services.exchange_sim.faults import FaultPlan, FaultRule, spoil

PATH = "/api/v3/klines"
ROWS: list[list[Any]] = [
    [minute * 60_000, "2.00", "3.00", "1.00", "2.50", "9.0", 0, "0", 4, "0", "0", "0"] for minute in range(100)
]


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
    assert [rule and rule.kind for rule in picked] == [None, "text", "html", "text", None, "text"]


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "fire"},
        {"kind": "text", "often": 1},
        {"kind": "text", "every": 2, "probability": 0.5},
        {"kind": "text", "every": 0},
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FaultRule.model_validate(rule)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hole", ROWS[:45] + ROWS[55:]),
        ("drop_first", ROWS[1:]),
        ("drop_last", ROWS[:-1]),
        ("duplicate_tail", ROWS + ROWS[-2:]),
        ("reversed", ROWS[::-1]),
        ("unfinished", [*ROWS, [7, *ROWS[-1][1:]]]),
        ("null_fields", [*ROWS[:50], [*ROWS[50][:4], None, None, *ROWS[50][6:]], *ROWS[51:]]),
        ("edited", [*ROWS[:50], [*ROWS[50][:4], ROWS[50][2], *ROWS[50][5:]], *ROWS[51:]]),
        ("off_grid", [*ROWS[:50], [ROWS[50][0] + 500, *ROWS[50][1:]], *ROWS[51:]]),
        ("low_above_high", [*ROWS[:50], [*ROWS[50][:3], "3.03000000", *ROWS[50][4:]], *ROWS[51:]]),
        ("cut_json", ROWS),
    ],
)
def test_spoiled_rows(kind: Any, expected: list[list[Any]]) -> None:
    before = [list(row) for row in ROWS]
    assert spoil(FaultRule(kind=kind), ROWS, running_ms=7) == expected
    assert before == ROWS
    assert spoil(FaultRule(kind=kind), [], running_ms=7) == []
