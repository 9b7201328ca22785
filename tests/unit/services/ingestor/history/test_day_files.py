"""Files of whole days in place of queries: what they save, and that none of their lies reaches a page."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answer_shape import AnswerShapes
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.checksum import CellStream
from dexorder_ingestor.history.paging import QueryWindows
from tests.unit.services.ingestor.history.simulated.exchange import ANY_FILES, FILES
from tests.unit.services.ingestor.history.simulated.jobs import check_never_silently_wrong, check_whole, fetch
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World
from tests.unit.services.ingestor.history.test_evidence import warm

DAY = World(7, History(), 1_440, 60, CallLimits(1_000, wide=True), 1_000, cells=(300, 900, 3_600))


@pytest.mark.parametrize(
    ("world", "calls", "files"),
    [
        (replace(DAY, files="true"), 1, 1),
        (DAY, 3, 0),
        (replace(DAY, files="true", periods=1_100), 3, 0),
        (replace(DAY, files="true", history=History(outages=((700, 2),))), 3, 0),
        (replace(DAY, files="other symbol"), 3, 1),
        (replace(DAY, files="edited"), 3, 1),
        (replace(DAY, files="shifted"), 3, 1),
    ],
    ids=["a file", "no files", "the day is not over", "a minute is absent", "another symbol's", "edited", "shifted"],
)
def test_a_day_of_minutes_takes_one_query_and_a_file_and_a_file_that_lies_costs_no_query_more(
    world: World, calls: int, files: int
) -> None:
    if world.periods == 1_100:
        world = replace(world, closed=1_200)
    outcome = fetch(world, warm())
    check_whole(outcome)
    assert (outcome.exchange.calls, outcome.exchange.files) == (calls, files)
    assert outcome.exchange.tallies == [world.files == "true"] * files


@pytest.mark.parametrize("kind", [*FILES, ANY_FILES])
def test_files_and_queries_that_lie_are_never_silent(kind: str) -> None:
    used = 0
    for seed in range(40):
        outcome = fetch(drawn(seed, kind))
        check_never_silently_wrong(outcome)
        used += outcome.exchange.tallies.count(True)
    assert used > 0 or kind in ("other symbol", "shifted")
    assert used == 0 or kind in ("true", "edited", ANY_FILES), "a day in which no candle was edited is used"


def drawn(seed: int, kind: str) -> World:
    """Return days of hours at an exchange whose files are of a kind, and which answers queries untruly."""
    dice = random.Random(f"files {seed}")
    untruth = Untruth(dice.randint(0, 100), dice.randint(1, 40), 60.0, deep=dice.random() < 0.5)
    return World(
        seed,
        History(outages=dice.choice([(), ((dice.randint(0, 150), 3),)])),
        periods=dice.randint(30, 150),
        period_seconds=3_600,
        call=CallLimits(dice.randint(20, 40), wide=dice.random() < 0.5),
        page=dice.randint(20, 80),
        cells=(7_200, 14_400, 43_200),
        lies=dice.choice([0.0, 0.05, 0.2]),
        untruth=dice.choice([None, None, untruth]),
        good_answers=dice.choice([0, 2_000]),
        files=kind,
    )


@pytest.mark.parametrize("value", [9, None])
@pytest.mark.parametrize(("changed", "tallies"), [("", True), ("trade_count", False), ("quote_volume", False)])
def test_a_file_is_refused_if_its_trades_or_quote_volumes_are_absent_or_do_not_add_up(
    changed: str, value: Any, *, tallies: bool
) -> None:
    step_ns = 3_600 * SECOND_NS
    rows = [Candle(n * step_ns, 2.0, 3.0, 1.0, 2.0, 5.0, 10.0, 4) for n in range(24)]
    cells = {n * step_ns: Candle(n * step_ns, 2.0, 3.0, 1.0, 2.0, 10.0, 20.0, 8) for n in range(0, 24, 2)}
    day = TimeRange(0, 24 * step_ns)
    windows = QueryWindows(3_600, CallLimits(40), closed_end_ns=day.end_ns)
    stream = CellStream(day, 7_200, cells, windows, AnswerShapes(), 1e-9)
    if changed:
        rows[5] = rows[5]._replace(**{changed: value})
    assert stream.next_day() == day
    assert stream.add_day(day, rows) == tallies
    assert len(stream.take()) == (12 if tallies else 0)
    assert (stream.cell is None) == tallies
    assert stream.cell is None or (stream.next_day() is None and stream.next_window().start_ns == 0)
