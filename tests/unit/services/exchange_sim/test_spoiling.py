from __future__ import annotations

from typing import Any

import pytest

from dexorder_exchange_sim.dialects.dialect import History, RowLayout
from dexorder_exchange_sim.faults import FaultRule, Strike
from dexorder_exchange_sim.spoiling import spoil

MINUTE_NS = 60_000_000_000
KLINE = RowLayout(time=0, unit_ns=1_000_000, close=4, volume=5, high=2, low=3, off_grid=500)
AGG_TRADE = RowLayout(time="T", unit_ns=1_000_000, close="p", volume="q")
ROWS: list[list[Any]] = [
    [minute * 60_000, "2.00", "3.00", "1.00", "2.50", "9.0", 0, "0", 4, "0", "0", "0"] for minute in range(100)
]
TRADES: list[dict[str, Any]] = [{"a": n, "p": "2.00", "q": "0.50", "T": n * 60_000} for n in range(100)]
ROLL = 1468  # 12 modulo the 91 places of ten rows, 68 modulo the 100 of one
HALF = [99 * 60_000, "2.00", "2.60", "1.90", "2.20", "4.0", 0, "0", 4, "0", "0", "0"]


def history(
    rows: list[Any], layout: RowLayout = KLINE, half: list[Any] | None = None, running: int | None = 7
) -> History:
    def earlier(size: int) -> list[Any]:
        return [[-60_000 * number] for number in range(size, 0, -1)]

    return History(rows, layout, (0, 100 * MINUTE_NS), lambda rows: rows, [], earlier, lambda: half, running)


def edited(first: int, last: int) -> list[list[Any]]:
    return [*ROWS[:first], *([*row[:4], row[2], *row[5:]] for row in ROWS[first:last]), *ROWS[last:]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"kind": "hole"}, ROWS[:45] + ROWS[55:]),
        ({"kind": "hole", "size": 3}, ROWS[:49] + ROWS[52:]),
        ({"kind": "hole", "span": (7 * MINUTE_NS, 9 * MINUTE_NS)}, ROWS[:7] + ROWS[9:]),
        ({"kind": "hole", "span": (7 * MINUTE_NS + 1, 8 * MINUTE_NS)}, ROWS),
        ({"kind": "hole", "place": "random"}, ROWS[:12] + ROWS[22:]),
        ({"kind": "drop_first"}, ROWS[1:]),
        ({"kind": "drop_last"}, ROWS[:-1]),
        ({"kind": "duplicate_tail"}, ROWS + ROWS[-2:]),
        ({"kind": "reversed"}, ROWS[::-1]),
        ({"kind": "short"}, ROWS[:50]),
        ({"kind": "short", "size": 7}, ROWS[:7]),
        ({"kind": "newest"}, ROWS[50:]),
        ({"kind": "newest", "size": 7}, ROWS[-7:]),
        ({"kind": "exclusive"}, ROWS[1:]),
        ({"kind": "double"}, [*ROWS[:51], *ROWS[50:]]),
        (
            {"kind": "double_other", "span": (0, MINUTE_NS)},
            [ROWS[0], [*ROWS[0][:4], ROWS[0][2], *ROWS[0][5:]], *ROWS[1:]],
        ),
        ({"kind": "unreadable"}, [*ROWS[:50], "?", *ROWS[51:]]),
        ({"kind": "outside"}, [[-120_000], [-60_000], *ROWS]),
        ({"kind": "outside", "size": 1}, [[-60_000], *ROWS]),
        ({"kind": "unfinished"}, [*ROWS, [7, *ROWS[-1][1:]]]),
        ({"kind": "running"}, [*ROWS[:-1], HALF]),
        ({"kind": "null_fields"}, [*ROWS[:50], [*ROWS[50][:4], None, None, *ROWS[50][6:]], *ROWS[51:]]),
        ({"kind": "edited"}, edited(50, 51)),
        ({"kind": "edited", "place": "random"}, edited(68, 69)),
        ({"kind": "edited", "span": (3 * MINUTE_NS, 6 * MINUTE_NS)}, edited(3, 6)),
        ({"kind": "off_grid"}, [*ROWS[:50], [ROWS[50][0] + 500, *ROWS[50][1:]], *ROWS[51:]]),
        ({"kind": "low_above_high"}, [*ROWS[:50], [*ROWS[50][:3], "3.03000000", *ROWS[50][4:]], *ROWS[51:]]),
        ({"kind": "cut_json"}, ROWS),
    ],
)
def test_spoiled_candles(rule: dict[str, Any], expected: list[list[Any]]) -> None:
    before = [list(row) for row in ROWS]
    assert spoil(Strike(FaultRule(**rule), roll=ROLL), history(ROWS, half=HALF)) == expected
    assert before == ROWS
    if rule["kind"] != "outside":
        assert spoil(Strike(FaultRule(**rule)), history([])) == []


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("null_fields", {"p": None, "q": None}),
        ("edited", {"q": "1.00000000"}),
        ("off_grid", {}),
        ("low_above_high", {}),
        ("unfinished", {}),
        ("running", {}),
    ],
)
def test_spoiled_trades(kind: Any, changed: dict[str, Any]) -> None:
    """What only candles have leaves trades alone."""
    expected = [*TRADES[:50], {**TRADES[50], **changed}, *TRADES[51:]]
    assert spoil(Strike(FaultRule(kind=kind)), history(TRADES, AGG_TRADE, running=None)) == expected


@pytest.mark.parametrize("size", [1, 9, 100, 150])
def test_a_hole_at_random_lies_inside_the_answer(size: int) -> None:
    rule = FaultRule(kind="hole", place="random", size=size)
    left = {len(spoil(Strike(rule, roll), history(ROWS))) for roll in range(300)}
    assert left == {100 - min(size, 100)}
