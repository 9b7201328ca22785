"""Finer candles of cells: which exchanges' answers are understood, and the number of calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import open_times
from dexorder_common.model.proof import ProofKind
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.answer_shape import AnswerShapes, Shape
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.exchange.dialects import DIALECTS
from dexorder_ingestor.history.checksum import CellStream
from dexorder_ingestor.history.paging import QueryWindows
from tests.examples import first_in_gate
from tests.unit.services.common.model.test_checksum import coarse
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.simulated.jobs import (
    check_never_silently_wrong,
    check_whole,
    fetch,
    wrong_opens,
)
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World
from tests.unit.services.ingestor.history.test_evidence import opens, warm

CELLS = (300, 900, 3600, 14_400)
MARKET = {t: Candle(t, 2.0, 4.0 + n, 1.0, 3.0, 0.1) for n, t in enumerate(opens(*range(-60, 660)))}


def test_only_exchanges_with_known_tolerance_are_checked() -> None:
    assert {name: row.candles.volume_tolerance for name, row in DIALECTS.items()} == {
        "binance": 1e-12,
        "binancecoinm": None,
        "binanceus": 1e-12,
        "binanceusdm": None,
        "bitget": None,
        "bybit": 1e-9,
        "coinbase": 1e-6,
        "deribit": None,
        "gate": None,
        "hyperliquid": None,
        "kraken": None,
        "kucoin": None,
        "kucoinfutures": None,
        "okx": 1e-6,
    }


def test_delays_of_exchanges() -> None:
    assert {name: row.candles.publish_seconds for name, row in DIALECTS.items()} == {
        "binance": 30,
        "binancecoinm": 120,
        "binanceus": 30,
        "binanceusdm": 120,
        "bitget": 120,
        "bybit": 30,
        "coinbase": 120,
        "deribit": 120,
        "gate": 120,
        "hyperliquid": 120,
        "kraken": 30,
        "kucoin": 120,
        "kucoinfutures": 120,
        "okx": 30,
    }


@pytest.mark.parametrize(
    ("shape", "size", "most_calls"),
    [
        (Shape(), 100, 7),
        (Shape(40), 40, 18),
        (Shape(15), 15, 50),
        (Shape(40, newest_first=True), 40, 25),
        (Shape(excludes_since=True), 100, 8),
        (Shape(excludes_until=True), 100, 8),
    ],
)
@pytest.mark.parametrize("wide", [True, False])
def test_shape_of_answers_is_learnt(shape: Shape, size: int, most_calls: int, wide: bool) -> None:
    """Each answer has at most ``size`` candles."""
    windows, shapes = QueryWindows(60, CallLimits(100, wide=wide), closed_end_ns=opens(660)[0]), AnswerShapes()
    cells = [coarse([MARKET[t] for t in open_times(minutes(n, 60), 60)]) for n in range(0, 600, 60)]
    stream = CellStream(minutes(0, 600), 3600, {c.open_ns: c for c in cells}, windows, shapes, 1e-9)
    found: list[Candle] = []
    calls = 0
    while stream.cell:
        window = stream.next_window()
        times = [t for t in open_times(window, 60) if t in MARKET]
        times = times[shape.excludes_since : len(times) - shape.excludes_until]
        stream.add(window, [MARKET[t] for t in (times[-size:] if shape.newest_first else times[:size])])
        found += [c for cell in stream.take() for c in cell.candles]
        calls += 1
        assert calls <= most_calls, stream.cell
    assert found == [MARKET[t] for t in opens(*range(600))]
    if not (wide and shape.excludes_until):  # every answer is full before the end of its window
        assert shapes.shape == shape
    assert AnswerShapes(shape).shape == shape


def test_empty_answers_of_one_host_cost_the_first_cell_a_retry() -> None:
    """Retries go to a host that is always empty and to the exchange's own in turn; the first answer has a hole."""
    windows, shapes = QueryWindows(60, CallLimits(1_000, wide=True), closed_end_ns=opens(660)[0]), AnswerShapes()
    cells = [coarse([MARKET[t] for t in open_times(minutes(n, 60), 60)]) for n in range(0, 600, 60)]
    stream = CellStream(minutes(0, 600), 3600, {c.open_ns: c for c in cells}, windows, shapes, 1e-9)
    calls, retries, is_other, hidden = 0, 0, False, set(opens(*range(20, 30)))
    while stream.cell:
        window = stream.next_window()
        is_other ^= stream.retries > retries
        found = [MARKET[t] for t in open_times(window, 60) if t in MARKET and (calls or t not in hidden)]
        stream.add(window, [] if is_other else found)
        calls, retries = calls + 1, stream.retries
    assert [len(cell.candles) for cell in stream.take()] == [60] * 10
    assert calls == 4, "with a hole; empty; the first cell; all after it"


def world(history: History, periods: int, call: CallLimits, untruth: Untruth | None = None) -> World:
    return World(7, history, periods, 60, call, page=1_000, cells=CELLS, untruth=untruth)


@pytest.mark.parametrize(
    ("name", "history", "periods", "call", "ratio"),
    first_in_gate(
        [
            ("without a hole", History(), 60_000, CallLimits(1_000, wide=True), 1.1),
            ("two in five minutes, narrow windows", History(density=0.4), 60_000, CallLimits(1_000), 1.5),
            ("without a hole, narrow windows", History(), 60_000, CallLimits(1_000), 1.1),
            ("without a hole, 300 a call", History(), 60_000, CallLimits(300), 1.1),
            ("two in five minutes", History(density=0.4), 100_000, CallLimits(1_000, wide=True), 1.5),
        ],
        2,
    ),
)
def test_calls_beside_those_of_ccxt(name: str, history: History, periods: int, call: CallLimits, ratio: float) -> None:
    """ccxt needs one call for as many candles, or periods, as a call returns."""
    job = world(history, periods, call)
    outcome = fetch(job, warm())
    check_whole(outcome)
    plain = -(-(len(job.truth) if call.wide else periods) // call.candles)
    assert outcome.exchange.calls <= ratio * plain
    assert {proof.kind for page in outcome.pages for proof in page.proofs} == {ProofKind.CHECKSUM}


def test_what_tallied_counts_for_later_jobs() -> None:
    """A day of minutes takes a call for its cells and two for its minutes, and more where few answers are known."""
    agreement, job = Agreement(), world(History(), 1_440, CallLimits(1_000, wide=True))
    first, second = fetch(job, agreement).exchange.calls, fetch(job, agreement).exchange.calls
    assert (first, second) == (9, 5)
    assert agreement.foreign.counted == pytest.approx((first + second, 0)), "each answer once"
    agreement.foreign.note(true=100)
    outcome = fetch(job, agreement)
    check_whole(outcome)
    assert outcome.exchange.calls == 3


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 80), marks=pytest.mark.nightly)], ids=str)
def test_an_exchange_that_was_good_may_answer_for_another_market_today(seeds: range) -> None:
    """Its earlier answers vouch for nothing as long as a job makes further calls, nor for a later page's cells."""
    wrong = []
    for seed in seeds:
        job = World(seed, History(), 1_500, 60, CallLimits(100), page=100, cells=CELLS, lies=0.2)
        outcome = fetch(replace(job, kinds=("other symbol",), good_answers=2_000))
        wrong += [seed] if wrong_opens(outcome) else []
    assert wrong == []


def test_one_answer_of_another_market_ends_the_credit_of_an_exchange() -> None:
    agreement = warm()
    agreement.foreign.note(true=2_000)
    assert agreement.is_lead(2, 0)
    agreement.foreign.note(untrue=1)
    assert [agreement.is_lead(votes, 0) for votes in (2, 8, 9)] == [False, False, True]


@pytest.mark.parametrize(
    ("candles", "wide"), first_in_gate([(100, False), (1_000, True), (300, False), (300, True)], 2)
)
@pytest.mark.parametrize("is_known", [True, False])
def test_calls_before_a_listing(candles: int, wide: bool, is_known: bool) -> None:
    """Days without a candle are found first, where an answer of hours does not reach over all of it."""
    job = world(History(listed=50_000), 50_000, CallLimits(candles, wide=wide))
    outcome = fetch(replace(job, cells=(*CELLS, 86_400)), warm() if is_known else None)
    check_whole(outcome)
    assert outcome.exchange.calls <= 40


def test_listing_inside_the_range_loses_no_candle() -> None:
    job = world(History(listed=21_111), 50_000, CallLimits(300))
    outcome = fetch(replace(job, cells=(*CELLS, 86_400)), warm())
    check_whole(outcome)
    assert outcome.exchange.calls <= 125, "as many as the candles need, and 25"


@pytest.mark.parametrize("seconds", first_in_gate([5.0, 600.0, 0.2, 30.0], 2))
@pytest.mark.parametrize("calls", [0, 3, 15])
@pytest.mark.parametrize("replicas", [1, 2])
def test_block_that_is_absent_for_a_while(seconds: float, calls: int, replicas: int) -> None:
    """300 minutes are absent from candles of all periods."""
    untruth = Untruth(7_000, 300, lasts_s=seconds, replicas=replicas, calls=calls)
    outcome = fetch(world(History(), 20_000, CallLimits(1_000, wide=True), untruth), warm())
    check_never_silently_wrong(outcome)
    if seconds < 10 or replicas > 1:
        check_whole(outcome)


@pytest.mark.parametrize("seconds", [5.0, 600.0])
def test_block_that_is_absent_while_hours_are_computed_from_the_rest(seconds: float) -> None:
    """The hours that the block cuts tally."""
    untruth = Untruth(7_017, 300, lasts_s=seconds, deep=True)
    outcome = fetch(world(History(), 20_000, CallLimits(1_000, wide=True), untruth), warm())
    check_never_silently_wrong(outcome)


@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("density", [1.0, 0.5])
def test_hole_inside_a_computed_hour_is_not_final(count: int, density: float) -> None:
    """The hour is computed from what is left, so it tallies without the hole."""
    untruth = Untruth(7_000, count, lasts_s=600.0, deep=True)
    outcome = fetch(world(History(density=density), 20_000, CallLimits(1_000, wide=True), untruth), warm())
    check_never_silently_wrong(outcome)
    assert not outcome.missing and len(outcome.candles) < len(outcome.world.truth), "nothing showed the hole"
    holes = [p for page in outcome.pages for p in page.proofs if any(p.span.overlaps(each) for each in page.empty)]
    assert sum(p.kind is ProofKind.CHECKSUM for p in holes) > 0.9 * len(holes), "checksums prove thin markets"


def test_cell_with_trades_too_small_for_its_sum_is_divided_at_once() -> None:
    """Nine in ten minutes have a candle, and one in each hour a volume that rounding may hide."""
    job = world(History(density=0.9), 20_000, CallLimits(1_000, wide=True))
    tiny = {t: c._replace(volume=1e-8) if n % 60 == 30 else c for n, (t, c) in enumerate(job.market.items())}
    job.__dict__["market"] = {t: c._replace(volume=c.volume * 100) for t, c in tiny.items()}
    outcome = fetch(job, warm())
    check_whole(outcome)
    assert outcome.exchange.calls <= 6 * 20


@pytest.mark.parametrize("returned", first_in_gate([50, -200, 200, -50], 2))
@pytest.mark.parametrize("wide", [True, False])
def test_limit_far_below_the_known_one_costs_calls_only(returned: int, wide: bool) -> None:
    """The cells are cut as well; negative is the newest of a window."""
    job = replace(world(History(), 6_000, CallLimits(1_000, wide=wide)), returned=returned)
    outcome = fetch(job, warm())
    check_whole(outcome)
    assert outcome.exchange.calls <= 1.5 * 6_000 / abs(returned)


def test_cells_that_are_given_up_are_the_first_and_all_that_open_before_a_time() -> None:
    windows = QueryWindows(60, CallLimits(10), closed_end_ns=minutes(600, 0).start_ns)
    cells = {t: MARKET[t] for t in opens(0, 5, 10, 15, 20, 25)}
    for until, given_up, left in ((0, 5, 5), (5, 5, 5), (6, 10, 10), (15, 15, 15), (99, 30, None)):
        stream = CellStream(minutes(0, 30), 300, cells, windows, AnswerShapes(), 1e-9)
        assert stream.give_up(minutes(until, 0).start_ns) == minutes(0, given_up)
        assert (stream.cell and stream.cell.start_ns) == (None if left is None else opens(left)[0])
