"""The cost of an accepted text: a minute of trades takes a second of the processor and 64 MiB, or it is suspended."""

from __future__ import annotations

import functools
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from dexorder_cep import CompiledTrigger, Engine, Firing, InvalidSql, Suspension, compile_trigger
from dexorder_cep.run.matcher import complete_match
from tests.unit.services.common.cep.costly_texts import CostlyTexts

MINUTE_NS = 60_000_000_000
MARKETS = ("X", "Y")
OTHER = "SELECT price FROM ticks"
MAX_SECONDS, MAX_ROW_SECONDS, MAX_BYTES = 1.0, 0.25, 64 * 2**20


class Cost(NamedTuple):
    """Processor time that a minute of trades takes, and that of the costliest one."""

    seconds: float
    row_seconds: float


def compiled(seed: int) -> CompiledTrigger | None:
    sql, parameters = CostlyTexts(seed).trigger()
    try:
        return compile_trigger(sql, parameters)
    except InvalidSql:
        return None


def feed(engine: Engine, trades: int) -> tuple[list[int], list[float]]:
    """Feed a minute of trades; return after which trades ``other`` fired, and the processor time of each."""
    fired, seconds = [], []
    for number in range(trades):
        for market in MARKETS:
            trade = number * MINUTE_NS // trades, f"{number:05d}" + "a" * 35, 1.0 + number % 7, 1.0, "buy"
            began = time.process_time()
            found = engine.feed_ticks(market, [trade])
            seconds.append(time.process_time() - began)
            assert not any(isinstance(each, Suspension) and each.trigger_id == "other" for each in found)
            fired += [number for each in found if isinstance(each, Firing) and each.trigger_id == "other"]
    return fired, seconds


@functools.cache
def alone(trades: int) -> tuple[list[int], float]:
    """Return after which trades ``other`` fires without a costly trigger, and the processor time of all."""
    engine = Engine()
    engine.add("other", 1, compile_trigger(OTHER, {"fire": "level"}), 0)
    fired, seconds = feed(engine, trades)
    return fired, sum(seconds)


def cost_of(trigger: CompiledTrigger, trades: int) -> Cost:
    """Return what a trigger adds to a minute of trades. ``other`` must fire at the same trades as without it."""
    engine = Engine()
    engine.add("costly", 1, trigger, 0)
    engine.add("other", 1, compile_trigger(OTHER, {"fire": "level"}), 0)
    fired, seconds = feed(engine, trades)
    usual, usual_seconds = alone(trades)
    assert fired == usual
    return Cost(sum(seconds) - usual_seconds, max(seconds))


def test_random_texts_are_accepted_and_leave_others_on_time() -> None:
    triggers = [trigger for seed in range(40) if (trigger := compiled(seed))]
    assert len(triggers) > 30
    for trigger in triggers:
        cost_of(trigger, 60)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_a_minute_of_trades_costs_no_accepted_text_more_than_a_second() -> None:
    for seed in range(400):
        if trigger := compiled(seed):
            cost = cost_of(trigger, 3_000)
            assert cost.seconds < MAX_SECONDS, (seed, cost, CostlyTexts(seed).trigger())
            assert cost.row_seconds < MAX_ROW_SECONDS, (seed, cost, CostlyTexts(seed).trigger())


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_no_accepted_text_keeps_more_than_64_mib() -> None:
    for seed in range(400, 430):
        if trigger := compiled(seed):
            tracemalloc.start()
            try:
                cost_of(trigger, 600)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < MAX_BYTES, (seed, peak, CostlyTexts(seed).trigger())


@pytest.mark.parametrize(("rows", "spent"), [(1, []), (900, [(10 + 3 * 900, "the measures of a match of 900 rows")])])
def test_measures_cost_by_the_rows_of_their_match_unless_these_are_few(rows: int, spent: list[Any]) -> None:
    found = list[Any]()
    account = SimpleNamespace(spend=lambda steps, time_ns, because, remedy: found.append((steps, because)))
    plan = SimpleNamespace(measured_weight=10, measured_aggregates=3, measures={0: lambda *taken: taken[2]})
    stream = SimpleNamespace(rows=(), base=0, ticker="t")
    match = complete_match(cast("Any", plan), cast("Any", account), cast("Any", stream), 5, 5 + rows, (), 7)
    assert tuple(match) == (5, 5 + rows, 7, 5 + rows)
    assert found == spent
