"""Our engine against the rows that real Flink gives for 500 random queries (tests/peers/flink/random_cases.py)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import pytest

from dexorder_cep import CompiledTrigger, InvalidSql, compile_trigger
from tests.paths import ROOT
from tests.unit.services.common.cep.test_flink import kept_type, run, same

CASES: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((ROOT / "tests/peers/flink/random.json.gz").read_bytes())
)["cases"]
OF_FLINK = "NullPointerException"
"""Reason of a refusal that is a fault of Flink: it has none for IN in MEASURES."""
DIFFERENT = {
    "over_261": "the last digit of the deviation of DECIMAL values",
    "over_416": "x <= x is TRUE in Flink, also if x is NULL",
    "windows_132": "FIRST_VALUE is the first by time here, and the first that arrived in Flink",
}
"""Queries with other rows than Flink's, as docs/cep.md says."""


def compare(trigger: CompiledTrigger, case: dict[str, Any]) -> str:
    """Return how our rows compare with Flink's."""
    ours, flinks = run(trigger, case["reads"]), case["rows"]
    if case["reads"] == "two":  # Flink gives no order between tickers
        ours, flinks = sorted(ours, key=repr), sorted(flinks, key=repr)
    kinds = [column.type for column in trigger.columns]

    def alike(x: list[Any], y: list[Any]) -> bool:
        return all(same(a, b, kind) for a, b, kind in zip(x, y, kinds, strict=True))

    if len(ours) == len(flinks) and all(map(alike, ours, flinks)):
        return "equal"
    if case["reads"] == "late" and not trigger.plan.steps and all(any(alike(x, y) for y in flinks) for x in ours):
        return "equal but for late rows"  # WHERE alone keeps them in Flink
    return "different"


@pytest.mark.parametrize("kind", ["plain", "over", "windows", "pattern"])
def test_random_queries_have_flinks_types_rows_and_refusals(kind: str) -> None:
    found: Counter[str] = Counter()
    for name, case in CASES.items():
        if not name.startswith(kind) or OF_FLINK in case.get("refused", ""):
            continue
        if "rows" not in case:
            with pytest.raises(InvalidSql):
                compile_trigger(case["sql"], {})
            found["refused"] += 1
            continue
        trigger = compile_trigger(case["sql"], {} if kind == "pattern" else {"fire": "level"})
        columns = [[each.name, each.type] for each in trigger.columns]
        assert columns == [[n, kept_type(t)] for n, t in case["columns"]], (name, case["sql"])
        outcome = compare(trigger, case)
        found[outcome] += 1
        assert (outcome == "different") is (name in DIFFERENT), (name, case["sql"])
    assert found["equal"] >= {"plain": 85, "over": 95, "windows": 95, "pattern": 160}[kind], found


def test_the_recording_has_500_queries_of_which_half_have_rows() -> None:
    assert len(CASES) == 500
    assert sum(bool(case.get("rows")) for case in CASES.values()) >= 250
