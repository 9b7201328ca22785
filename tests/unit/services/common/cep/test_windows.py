"""Windows against a sum over their rows: rows late and in gaps, a dump at any place, and the work that they cost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dexorder_cep import Engine, Firing, Outcome, Suspension, compile_trigger
from dexorder_cep.run import account as account_module
from dexorder_cep.run.account import Account

SECOND_NS = 1_000_000_000
COLUMNS = "COUNT(*) AS n, SUM(amount) AS s, MIN(price) AS lo, MAX(price) AS hi, VAR_POP(price) AS v"
EXPECTED = {"TUMBLE": (3, 3), "HOP": (2, 14), "CUMULATE": (3, 15)}


def query(kind: str, step: int, size: int, columns: str = COLUMNS) -> str:
    sizes = ", ".join(f"INTERVAL '{n}' SECOND(4)" for n in ((size,) if kind == "TUMBLE" else (step, size)))
    return (
        f"SELECT window_start, window_end, {columns} FROM TABLE({kind}(TABLE ticks, DESCRIPTOR(ts), {sizes})) "
        "GROUP BY ticker, window_start, window_end"
    )


def trades(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Return trades of whole numbers, some out of order by up to 8 s, with gaps longer than a window."""
    time_s, found = 1_000, []
    for n in range(count):
        time_s += rng.choice((0, 0, 1, 1, 2, 40 if n % 50 == 49 else 0))
        at_s = time_s - (rng.randint(1, 8) if rng.random() < 0.2 else 0)
        found.append((at_s * SECOND_NS, f"t{n}", float(rng.randint(1, 9)), float(rng.randint(1, 5)), None))
    return found


def expected(kind: str, step: int, size: int, rows: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    """Return for each window, by its end in seconds, the rows in it."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        second = row[0] // SECOND_NS
        last = second - second % size + size if kind == "CUMULATE" else second - second % step + size
        ends = range(second - second % step + step, last + 1, step)
        for end in ends:
            found.setdefault(end, []).append(row)
    return found


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_window_has_the_rows_of_its_time_also_late_ones_and_over_a_dump_at_any_row(kind: str) -> None:
    step, size = EXPECTED[kind]
    compiled = compile_trigger(query(kind, step, size), {"delay_ms": "0"})
    for seed in range(3):
        rng = random.Random(seed)
        rows = trades(rng, 110)
        plain, dumped = Engine(), Engine()
        for engine in (plain, dumped):
            engine.add("t", 1, compiled, 0)
        taken: list[tuple[tuple[Any, ...], int]] = []
        newest = 0
        fired: list[Outcome] = []
        for row in rows:
            late = [end for end in expected(kind, step, size, [row]) if end * SECOND_NS - 1_000_000 > newest]
            if row[0] > newest or late:
                taken.append((row, max(newest, 0)))
            newest = max(newest, row[0])
            here = plain.feed_ticks("X", [row])
            if rng.random() < 0.15:
                dumped = Engine.load(dumped.dump())
            assert dumped.feed_ticks("X", [row]) == here, "to the last digit"
            fired += here
        fired += plain.settle("X", 0, newest + 1_000 * SECOND_NS)
        wanted: dict[int, list[tuple[Any, ...]]] = {}
        for row, known_ns in taken:
            for end, own in expected(kind, step, size, [row]).items():
                if end * SECOND_NS - 1_000_000 > known_ns:
                    wanted.setdefault(end, []).extend(own)
        got = {each.rows[0][1] // SECOND_NS: each.rows[0][2:] for each in fired if isinstance(each, Firing)}
        assert sorted(got) == sorted(wanted)
        for end, own in wanted.items():
            prices = [row[2] for row in own]
            mean = sum(prices) / len(prices)
            variance = sum((price - mean) ** 2 for price in prices) / len(prices)
            exact = (len(own), sum(row[3] for row in own), min(prices), max(prices))
            assert got[end][:4] == exact, (seed, end)
            assert got[end][4] == pytest.approx(variance, abs=1e-9)


def test_the_work_of_a_window_does_not_grow_with_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []
    monkeypatch.setattr(Account, "spend", lambda self, steps, *_, **__: spent.append(steps))
    work = {}
    for size in (10, 500):
        engine = Engine()
        engine.add("t", 1, compile_trigger(query("HOP", 1, size), {"delay_ms": "0"}), 0)
        spent.clear()
        for n in range(1_500):
            engine.feed_ticks("X", [((10_000 + n) * SECOND_NS, f"t{n}", 1.0, 1.0, None)])
        work[size] = sum(spent) / 1_500
    assert work[500] < 1.2 * work[10] and work[500] < 5 * 5, work


def test_late_trades_by_which_windows_are_added_again_suspend_the_trigger_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(account_module, "MAX_WORK_PER_MINUTE", 100_000)
    sums = ", ".join(f"SUM(price + {n}) AS s{n}" for n in range(12))
    engine = Engine()
    engine.add("hostile", 1, compile_trigger(query("HOP", 1, 400, sums), {}), 0)
    engine.add("other", 1, compile_trigger("SELECT price FROM ticks", {"fire": "level"}), 0)
    suspended: list[Suspension] = []
    for n in range(1_000):
        found = engine.feed_ticks("X", [((1_000 + n) * SECOND_NS, f"t{n}", 1.0, 1.0, None)])
        assert n == 0 or any(isinstance(each, Firing) and each.trigger_id == "other" for each in found)
        if n > 450:
            found += engine.feed_ticks("X", [((1_000 + n - 300) * SECOND_NS, f"late{n}", 1.0, 1.0, None)])
        suspended += [each for each in found if isinstance(each, Suspension)]
    assert [each.trigger_id for each in suspended] == ["hostile"]
    assert "slices of a window" in suspended[0].reason
