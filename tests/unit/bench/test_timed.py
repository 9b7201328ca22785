"""The measurement of faults that last for a time finds what is wrong, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.completeness import split_rows
from bench.parts.completeness import cells, timed_cells, timed_tables
from bench.parts.completeness.timed import MINUTES, Run, TimedBench, TimedResult
from bench.parts.completeness.timed_cells import MINUTE_NS, TimedCell
from bench.parts.completeness.timed_outcome import Table, TimedOutcome, judge
from bench.parts.completeness.virtual import virtual_world
from dexorder_common.model.page import Candle
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.faults import FaultRule
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.history.job import Missing
from dexorder_ingestor.history.paging import CandlePage
from tests.fixtures_ccxt import cheap_clients as cheap_clients

NOW_NS = 1_706_745_630 * SECOND_NS
SPAN = TimeRange(0, 10 * MINUTE_NS)
TRUTH = {minute * MINUTE_NS: (1.0, 2.0, 0.5, 1.5, float(minute)) for minute in range(10)}
OLD, YOUNG = 10**18, 12 * MINUTE_NS
"""Times of a last answer: long after the range, and two minutes after it."""


def span(first: int, end: int) -> TimeRange:
    return TimeRange(first * MINUTE_NS, end * MINUTE_NS)


def page(part: TimeRange, *absent: int, last_ns: int = OLD, spread_ns: int = 600 * SECOND_NS) -> CandlePage:
    opens = [t for t in TRUTH if part.start_ns <= t < part.end_ns]
    empty = tuple(span(minute, minute + 1) for minute in absent)
    proof = Proof(part, ProofKind.CHECKSUM, 2, last_ns - spread_ns, last_ns)
    candles = tuple(Candle(t, *TRUTH[t]) for t in opens if t // MINUTE_NS not in absent)
    return CandlePage(part, candles, empty, last_ns, (proof,))


def outcome(pages: list[CandlePage], *missing: TimeRange) -> TimedOutcome:
    table = Table()
    table.add(pages, [Missing(part, "a reason") for part in missing])
    return judge(TRUTH, SPAN, table)


@pytest.mark.parametrize(
    ("pages", "missing", "expected"),
    [
        ([page(SPAN)], [], TimedOutcome()),
        ([page(SPAN, 3, 4)], [], TimedOutcome(final=2)),
        ([page(SPAN, 3, 4, last_ns=YOUNG)], [], TimedOutcome(provisional=2)),
        ([page(SPAN, 3, 4, spread_ns=599 * SECOND_NS)], [], TimedOutcome(provisional=2)),
        ([page(span(0, 5))], [span(5, 10)], TimedOutcome(named=5)),
        ([page(span(0, 5))], [], TimedOutcome(final=5)),
        ([page(SPAN)], [span(5, 7)], TimedOutcome(there=2)),
        ([page(span(0, 5)), page(span(4, 10))], [], TimedOutcome(wrong=1)),
    ],
)
def test_judge(pages: list[CandlePage], missing: list[TimeRange], expected: TimedOutcome) -> None:
    assert outcome(pages, *missing) == expected


def test_a_changed_value_is_wrong() -> None:
    table = Table()
    table.add([page(SPAN)], [])
    table.rows[3 * MINUTE_NS] = (1.0, 2.0, 0.5, 1.5, 99.0)
    assert judge(TRUTH, SPAN, table) == TimedOutcome(wrong=1)


def test_a_second_dispatch_replaces_claims_of_the_first() -> None:
    table = Table()
    table.add([page(span(0, 5), 3, last_ns=YOUNG)], [Missing(span(5, 10), "a reason")])
    assert table.open_ranges == [span(3, 4), span(5, 10)]
    table.add([page(span(3, 4)), page(span(5, 10))], [])
    assert table.open_ranges == [] and judge(TRUTH, SPAN, table).is_equal


def test_blocks_are_not_on_full_hours() -> None:
    month = TimeRange(NOW_NS // (3_600 * SECOND_NS) * 3_600 * SECOND_NS, 2 * NOW_NS)
    for share in timed_cells.SHARES:
        start_ns, end_ns = timed_cells.middle(TimeRange(month.start_ns, month.start_ns + MINUTES * MINUTE_NS), share)
        assert start_ns % (3_600 * SECOND_NS) and end_ns % (3_600 * SECOND_NS)
        assert (end_ns - start_ns) // MINUTE_NS == round(MINUTES * share)


@pytest.mark.parametrize("cell", timed_cells.all_cells(), ids=lambda cell: f"{cell.row}-{cell.share}")
def test_every_cell_has_rules_of_the_exchange(cell: TimedCell) -> None:
    assert [FaultRule(**rule) for rule in cell.rules(TimeRange(NOW_NS, NOW_NS + MINUTES * MINUTE_NS))]


def test_rows_are_split_between_the_tables() -> None:
    assert not set(timed_cells.names()) & {fault.name for fault in cells.offered()[0]}
    assert split_rows(None) == (None, None)
    assert split_rows([]) == ([], [])
    assert split_rows(["late"]) == ([], ["late"])
    assert split_rows(["empty", "late", "other"]) == (["empty", "other"], ["late"])


def result(share: float, *firsts: TimedOutcome) -> TimedResult:
    cell = TimedCell("late", "late by 5 s", share, lambda span: [])
    runs = tuple(Run(f"run {n}", first, TimedOutcome(), 10 + n) for n, first in enumerate(firsts))
    return TimedResult(cell, runs, ccxt_lost=1_000, ccxt_wrong=2, ccxt_calls=6, ccxt_end="")


def test_the_table_shows_the_worst_run_and_the_most_calls() -> None:
    text = timed_tables.timed_table(
        "Title",
        [
            result(0.05, TimedOutcome(), TimedOutcome(provisional=1_200)),
            result(0.5, TimedOutcome(named=9), TimedOutcome(wrong=1), TimedOutcome()),
        ],
    )
    assert (
        "| late by 5 s | 1,002 / 1,002 | 1,200 provisional → equal; 11 (6) | **1 wrong** → equal; 12 (6) |\n"
    ) in text
    assert "- 5 runs: 2 equal, 2 provisional or named, 1 silently wrong; queried again 5 are equal.\n" in text
    assert "- Silently wrong: late by 5 s, 50 %, run 1: **1 wrong**, then equal.\n" in text
    assert "- Errors that name candles which are there: none.\n" in text


async def test_a_cell_is_measured_through_ccxt(tmp_path: Path) -> None:
    async with virtual_world(tmp_path, now_ns=NOW_NS) as world:
        bench = TimedBench(world, Agreement())
        (cell,) = [c for c in timed_cells.chosen(["block_kept"]) if c.label.startswith("block absent for 600 s")][:1]
        found = await bench.measure(cell)
    assert found.ccxt_lost == 300 and found.ccxt_calls == 6
    assert found.runs[0].first.provisional and not any(run.first.is_silently_wrong for run in found.runs)
    assert all(run.again.is_equal for run in found.runs)
