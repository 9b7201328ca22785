"""The measurement finds lost, duplicate, changed and invented candles, and who reports them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.completeness import chosen, read_shares
from bench.parts.completeness import cells, tables, ways
from bench.parts.completeness.cells import MINUTE_NS, NONE, Cell, Fault
from bench.parts.completeness.compare import HANG, QUIET, Outcome, Row, Values, Verdict, judge
from bench.parts.completeness.exchange import SimulatedExchange
from bench.parts.completeness.freqtrade import run_freqtrade
from bench.parts.completeness.tables import Result
from dexorder_common.model.time_range import TimeRange
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.faults import FaultPlan, FaultRule
from dexorder_exchange_sim.server import serve

COUNT = 20
SPAN = TimeRange(0, COUNT * MINUTE_NS)


def candle(minute: int) -> Values:
    return (1.0 + minute, 2.0 + minute, 0.5 + minute, 1.5 + minute, 10.0)


TRUTH = {minute * MINUTE_NS: candle(minute) for minute in range(COUNT)}


def row(minute: float, values: Values | None = None) -> Row:
    return int(minute * MINUTE_NS), candle(int(minute)) if values is None else values


ALL = [row(minute) for minute in range(COUNT)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ALL, Verdict(COUNT)),
        (ALL[::-1], Verdict(COUNT)),
        ([], Verdict(COUNT, lost=COUNT, unnamed=COUNT)),
        (ALL[:5] + ALL[8:], Verdict(COUNT, lost=3, unnamed=3)),
        (ALL + ALL[-2:], Verdict(COUNT, doubled=2)),
        ([*ALL, row(3, candle(4))], Verdict(COUNT, doubled=1, wrong=1)),
        ([*ALL[:-1], row(COUNT - 1, candle(0))], Verdict(COUNT, wrong=1)),
        ([*ALL, row(7.5)], Verdict(COUNT, wrong=1)),
        ([*ALL, row(COUNT + 1)], Verdict(COUNT, wrong=1)),
        ([*ALL[1:], row(0, (1.0, 2.0, 0.5, None, 10.0))], Verdict(COUNT, null=1)),
        ([*ALL, (None, (None,) * 5)], Verdict(COUNT, null=1)),
        ([*ALL[1:], row(0, (1.0, 2.0, 0.5, float("nan"), 10.0))], Verdict(COUNT, wrong=1)),
    ],
)
def test_judge(rows: list[Row], expected: Verdict) -> None:
    assert judge(TRUTH, rows, SPAN) == expected


def test_right_rows_outside_the_range_are_ignored() -> None:
    inner = TimeRange(5 * MINUTE_NS, 10 * MINUTE_NS)
    assert judge(TRUTH, ALL, inner) == judge(TRUTH, ALL[5:10], inner) == Verdict(5)
    assert judge(TRUTH, [*ALL[5:10], row(11, candle(0))], inner).wrong == 1


@pytest.mark.parametrize(
    ("named", "unnamed", "though_there"),
    [
        ([(5, 8)], 0, 0),
        ([(5, 6), (6, 8)], 0, 0),
        ([(5, 7)], 1, 0),
        ([(4, 8)], 0, 1),
        ([(0, 20)], 0, 17),
        ([], 3, 0),
        ([(8, 9)], 3, 1),
    ],
)
def test_named_ranges_must_equal_the_lost_ones(named: list[tuple[int, int]], unnamed: int, though_there: int) -> None:
    missing = [TimeRange(start * MINUTE_NS, end * MINUTE_NS) for start, end in named]
    verdict = judge(TRUTH, ALL[:5] + ALL[8:], SPAN, missing)
    assert (verdict.unnamed, verdict.named_though_there) == (unnamed, though_there)
    assert Outcome("ERROR", verdict).honest == (not unnamed and not though_there)
    assert not Outcome("OK", verdict).honest


@given(
    lost=st.sets(st.integers(0, COUNT - 1)),
    doubled=st.sets(st.integers(0, COUNT - 1)),
    wrong=st.sets(st.integers(0, COUNT - 1)),
    null=st.sets(st.integers(0, COUNT - 1)),
    order=st.randoms(use_true_random=False),
)
def test_each_harm_is_counted_once(
    lost: set[int], doubled: set[int], wrong: set[int], null: set[int], order: object
) -> None:
    doubled, wrong, null = doubled - lost, wrong - lost, null - lost - wrong
    rows = {minute: candle(minute) for minute in range(COUNT) if minute not in lost}
    rows |= {minute: (*candle(minute)[:4], 0.25) for minute in wrong} | dict.fromkeys(null, (1.0, None, 1.0, 1.0, 1.0))
    sent = [row(minute, values) for minute, values in rows.items()] + [row(minute) for minute in doubled]
    order.shuffle(sent)  # type: ignore[attr-defined]
    expected = Verdict(COUNT, len(lost), len(doubled), len(wrong), len(null), unnamed=len(lost))
    assert judge(TRUTH, sent, SPAN) == expected


@pytest.mark.parametrize(
    ("end", "verdict", "whole", "honest"),
    [
        ("OK", Verdict(5), True, True),
        (QUIET, Verdict(5), True, True),
        ("OK", Verdict(5, lost=1), False, False),
        ("OK", Verdict(5, doubled=1), False, False),
        ("ERROR", Verdict(5, lost=1), False, True),
        ("ERROR", Verdict(5, lost=1, wrong=1), False, False),
        ("raises DDoSProtection", Verdict(5, lost=1, unnamed=1), False, False),
        ("NOT_FOUND", Verdict(0), True, True),
        ("NOT_FOUND", Verdict(5, lost=5, unnamed=5), False, False),
        ("OK, but 4 rows announced and 5 there", Verdict(5), False, False),
        (HANG, None, False, False),
        ("not measured: OSError", None, False, False),
    ],
)
def test_outcomes_that_count_as_honest(end: str, verdict: Verdict | None, whole: bool, honest: bool) -> None:
    outcome = Outcome(end, verdict)
    assert (outcome.whole, outcome.honest) == (whole, honest)


# ---- cells


def faults() -> list[Fault]:
    return cells.offered()[0]


def a_cell(fault: Fault = NONE, share: float = 0.2, salt: int = 3) -> Cell:
    return Cell(fault, share, "BTC/USDT", TimeRange(SPAN.start_ns, SPAN.end_ns), salt)


def test_no_two_cells_share_a_minute() -> None:
    plan = cells.plan(faults(), [0.05, 0.2, 0.5], candles=100_000, symbols=cells.DENSE, thin="BTC/EUR")
    rows = [(cell.fault.name, cell.share, cell.symbol) for cell in plan]
    assert len(rows) == 3 * (len(faults()) + sum(fault.name in cells.THIN for fault in faults()))
    assert [cell.share for cell in plan] == sorted(cell.share for cell in plan)
    for one in plan:
        for other in plan:
            apart = one is other or one.symbol != other.symbol or not one.wide.intersect(other.wide)
            assert apart, (one, other)


def test_too_many_cells_are_refused_before_the_start() -> None:
    with pytest.raises(ValueError, match="BTC/USDT: no room for more than 2 ranges"):
        cells.plan(faults(), [0.5], candles=1_000_000, symbols=("BTC/USDT",), thin=None)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("name", ["empty", "bans", "mixed"])
def test_the_rules_strike_that_share_of_the_calls(name: str, share: float) -> None:
    fault = next(fault for fault in faults() if fault.name == name)
    rules = [FaultRule(**rule) for rule in cells.rules(a_cell(fault, share))]
    plan = FaultPlan(rules, seed=9)
    struck = sum(plan.pick("/api/v3/klines", "BTCUSDT") is not None for _ in range(5_000))
    assert struck / 5_000 == pytest.approx(share, abs=0.02)
    assert [rule.kind for rule in rules[3:]] == [kind["kind"] for kind in fault.kinds]
    assert len({rule.probability for rule in rules[3:]}) == 1


def test_the_salt_chooses_another_sequence() -> None:
    def struck(salt: int) -> list[bool]:
        rules = cells.rules(a_cell(faults()[3], 0.5, salt))
        plan = FaultPlan([FaultRule(**rule) for rule in rules], seed=9)
        return [plan.pick("/api/v3/klines", None) is not None for _ in range(50)]

    assert struck(1) == struck(1) != struck(2)


def test_without_a_fault_there_is_no_rule() -> None:
    assert cells.rules(a_cell()) == []


# ---- tables


def result(ours: Outcome, share: float = 0.2, label: str = "cut JSON") -> Result:
    loop = Outcome("raises DDoSProtection", Verdict(100_000, lost=92_000, unnamed=92_000), 9, 1, seconds=0.2)
    paginate = Outcome(QUIET, Verdict(100_000, lost=4_000, unnamed=4_000), 101, 4, seconds=2.0)
    peers = {tables.LOOP: loop, tables.PAGINATE: paginate}
    return Result(replace(a_cell(Fault("x", label, ()), share)), peers, ours)


WHOLE = Outcome("OK", Verdict(100_000), 120, 6, seconds=5.0)
NAMED = Outcome("ERROR", Verdict(100_000, lost=3_000), 300, 150, seconds=60.0, ranges=2)
SILENT = Outcome("OK", Verdict(100_000, lost=1_000, unnamed=1_000), 100, 5, seconds=5.0)


def test_table_shows_losses_and_who_was_told() -> None:
    text = tables.share_table(0.5, 100_000, 100, [result(WHOLE, 0.5), result(NAMED, 0.5, "text")])
    first = "| cut JSON | 92,000 lost (raises DDoSProtection) | 4,000 lost | 0 | OK | 1 / 4 / 6 | 0.1 / 1.0 / 1.2 |"
    assert first in text
    assert "| 3,000 lost | ERROR, 2 ranges named, correctly |" in text
    assert "Aim: OK, or an error that names the missing ranges correctly, 0 doubled, wrong or null: met." in text
    assert (
        "1 of 2 requests OK and whole, 1 ended with an error that names the missing ranges correctly, 0 neither" in text
    )


@pytest.mark.parametrize(("ours", "share"), [(SILENT, 0.5), (NAMED, 0.2), (Outcome(HANG), 0.05)])
def test_missed_aim_is_reported_and_is_the_worst_row(ours: Outcome, share: float) -> None:
    text = tables.share_table(share, 100_000, 100, [result(WHOLE, share), result(ours, share, "text")])
    assert "missed by text." in text and "Worst row of dexorder: text" in text


def test_the_table_for_the_readme_has_each_share_of_ours() -> None:
    text = tables.readme_table(
        [result(WHOLE, 0.05), result(WHOLE, 0.2), result(NAMED, 0.5), result(SILENT, 0.2, "text")]
    )
    assert (
        "| cut JSON | 92,000 lost (raises DDoSProtection) | 4,000 lost | 0 | 0 | 0 silently; error names 3,000 |"
        in text
    )
    text = tables.readme_table([result(SILENT, 0.5)])
    assert "| **1,000 lost, OK** |" in text


# ---- command line


def test_shares_are_per_cent_in_rising_order() -> None:
    assert read_shares("50,5") == [0.05, 0.5]
    with pytest.raises(Exception, match="'0': each share"):
        read_shares("0")


def test_rows_by_name_keep_the_table_s_order() -> None:
    assert [fault.name for fault in chosen(faults(), ["mixed", "html", "none"])] == ["none", "html", "mixed"]
    with pytest.raises(ValueError, match="no rows htm; there are none, bans"):
        chosen(faults(), ["htm"])


# ---- ccxt against the simulated exchange


@pytest.mark.parametrize(
    ("way", "rule", "end", "lost", "spoiled"),
    [
        (ways.tutorial_loop, None, QUIET, 0, 0),
        (ways.paginate, None, QUIET, 0, 0),
        (ways.tutorial_loop, {"kind": "empty", "after": 1, "count": 1}, QUIET, 2_000, 0),
        (ways.paginate, {"kind": "empty", "after": 1, "count": 1}, QUIET, 1_000, 0),
        (ways.tutorial_loop, {"kind": "http_502", "after": 2, "count": 1}, "raises ExchangeNotAvailable", 1_000, 0),
        (ways.tutorial_loop, {"kind": "null_fields", "count": 1}, QUIET, 0, 1),
        (ways.tutorial_loop, {"kind": "duplicate_tail", "count": 1}, QUIET, 0, 1),  # the other one fell to the limit
    ],
)
async def test_peers(way: ways.Way, rule: dict[str, object] | None, end: str, lost: int, spoiled: int) -> None:
    cell = cells.plan([NONE], [0.5], candles=3_000, symbols=("BTC/USDT",), thin=None)[0]
    async with serve(SimSettings(listen="127.0.0.1:0")) as url:
        exchange = SimulatedExchange(url.removeprefix("http://"))
        truth = await asyncio.to_thread(exchange.truth, cell)
        await asyncio.to_thread(exchange.set_faults, [rule] if rule else [])
        await asyncio.to_thread(exchange.reset_counters)
        told, rows = await ways.run_peer(way, exchange.address, cell, 30)
        calls, faulty, *_ = await asyncio.to_thread(exchange.counters)
    verdict = judge(truth, rows, cell.span)
    assert (told, verdict.candles, verdict.lost, verdict.spoiled) == (end, 3_000, lost, spoiled)
    assert calls >= 2 and faulty == (1 if rule else 0)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("rule", "end", "lost"),
    [
        (None, QUIET, 0),
        ({"kind": "empty", "path": "/api/v3/klines", "after": 1, "count": 1}, QUIET, 1_000),
        ({"kind": "http_502", "path": "/api/v3/klines", "probability": 1}, "logs ", 3_000),
    ],
)
async def test_freqtrade_downloads_from_the_simulated_exchange(
    rule: dict[str, object] | None, end: str, lost: int
) -> None:
    cell = cells.plan([NONE], [0.5], candles=3_000, symbols=("BTC/USDT",), thin=None)[0]
    async with serve(SimSettings(listen="127.0.0.1:0")) as url:
        exchange = SimulatedExchange(url.removeprefix("http://"))
        truth = await asyncio.to_thread(exchange.truth, cell)
        await asyncio.to_thread(exchange.set_faults, [rule] if rule else [])
        told, rows = await asyncio.to_thread(run_freqtrade, exchange.address, cell, 300)
    verdict = judge(truth, rows, cell.span)
    assert (verdict.candles, verdict.lost, verdict.spoiled) == (3_000, lost, 0), told
    assert told == end if end == QUIET else told.startswith(end)
