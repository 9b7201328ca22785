"""Properties of every simulated job, as functions of a world; called by hypothesis, here and in the soak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from dexorder_ingestor.exchange.dialect import CallLimits
from tests.unit.services.ingestor.history.simulated.exchange import DROPPING
from tests.unit.services.ingestor.history.simulated.jobs import (
    check_account,
    check_failed,
    check_found_later,
    check_never_silently_wrong,
    check_no_wrong_row,
    check_table,
    check_whole,
    fetch,
    fetch_with_deaths,
)
from tests.unit.services.ingestor.history.simulated.world import World
from tests.unit.services.ingestor.history.simulated.worlds import (
    LONGEST,
    deep_worlds,
    impossible_worlds,
    untrue_worlds,
    worlds,
)

SHARES = st.sampled_from([0.05, 0.2])


def an_honest_exchange_is_believed(world: World) -> None:
    """The rows are the truth, and a market without holes costs at most two calls instead of one, and one proof."""
    outcome = fetch(world)
    check_whole(outcome)
    if all(world.open_ns(number) in world.market for number in range(world.periods)):
        chunks = -(-world.periods // world.page) * -(-world.page // world.call.candles)
        assert outcome.exchange.calls <= 2 * chunks + outcome.exchange.settings.evidence_queries, outcome.explain()


def lies_are_never_silent(world: World) -> None:
    """However often the exchange lies about a candle: its row is right, or it is missing, or absent provisionally."""
    check_never_silently_wrong(fetch(world))


def deaths_lose_nothing_silently(world_and_lives: tuple[World, list[int]]) -> None:
    """With such lies, and an ingestor that dies and restarts at any step, the same holds for the table."""
    check_table(fetch_with_deaths(*world_and_lives))


def only_what_cannot_be_had_is_missing(world: World) -> None:
    """Impossible candles are named one by one; all others are there."""
    check_whole(fetch(world))


def a_failure_ends_behind_good_pages(world: World) -> None:
    """A query without a valid answer leaves verified pages and names the whole rest."""
    check_failed(fetch(world))


def every_period_is_accounted_for(world: World) -> None:
    """However often the exchange lies, even in every answer, the job ends and accounts for every period."""
    check_account(fetch(world))


def an_exchange_that_returns_too_little_is_never_believed(world: World) -> None:
    """An exchange that always cuts its answers at the same end hides no candle."""
    outcome = fetch(world)
    check_account(outcome)
    check_no_wrong_row(outcome)


def what_is_untrue_for_a_while_is_never_final(world: World) -> None:
    """Candles that all answers lack for a while are found, missing, or absent only provisionally."""
    check_never_silently_wrong(fetch(world))


def what_is_untrue_for_a_while_is_found_later(world: World) -> None:
    """The relay's queries after the fault show every candle that was absent: each is missing, or fetched again."""
    check_found_later(fetch(world))


CELLS = (300, 900)
LARGE_CALL = st.integers(20, 80)
LARGE = st.builds(CallLimits, LARGE_CALL, wide=st.booleans())
PROPERTIES: Mapping[str, tuple[Callable[[Any], None], st.SearchStrategy[Any]]] = {
    "honest": (an_honest_exchange_is_believed, worlds()),
    "a limit": (an_honest_exchange_is_believed, worlds(limit=st.integers(1, LONGEST))),
    "not all closed": (an_honest_exchange_is_believed, worlds(closed=st.integers(-3, LONGEST))),
    "lies that drop": (lies_are_never_silent, worlds(lies=SHARES, kinds=DROPPING)),
    "all lies": (lies_are_never_silent, worlds(lies=SHARES)),
    "lies before a limit": (lies_are_never_silent, worlds(lies=SHARES, limit=st.integers(1, LONGEST))),
    "lies and deaths": (
        deaths_lose_nothing_silently,
        st.tuples(worlds(lies=SHARES), st.lists(st.integers(1, 40), max_size=6)),
    ),
    "impossible candles": (only_what_cannot_be_had_is_missing, impossible_worlds()),
    "impossible candles and lies": (lies_are_never_silent, impossible_worlds(lies=0.2)),
    "failures": (a_failure_ends_behind_good_pages, worlds(failures=st.sampled_from([0.005, 0.05]))),
    "failures and lies": (lies_are_never_silent, worlds(lies=SHARES, failures=st.sampled_from([0.005, 0.05]))),
    "any lies": (
        every_period_is_accounted_for,
        worlds(lies=st.sampled_from([0.5, 1.0]), failures=st.sampled_from([0.0, 0.01]), limit=st.integers(0, LONGEST)),
    ),
    "short answers": (
        an_exchange_that_returns_too_little_is_never_believed,
        worlds(call=st.builds(CallLimits, st.integers(5, 50)), returned=st.integers(-40, 40)),
    ),
    "cells": (an_honest_exchange_is_believed, worlds(period_seconds=60, cells=CELLS, call=LARGE)),
    "cells and a limit": (
        an_honest_exchange_is_believed,
        worlds(period_seconds=60, cells=CELLS, call=LARGE, limit=st.integers(1, LONGEST)),
    ),
    "cells and lies": (lies_are_never_silent, worlds(period_seconds=60, cells=CELLS, call=LARGE, lies=SHARES)),
    "cells and any lies": (
        every_period_is_accounted_for,
        worlds(period_seconds=60, cells=CELLS, call=LARGE, lies=st.sampled_from([0.5, 1.0])),
    ),
    "cells and impossible candles": (only_what_cannot_be_had_is_missing, impossible_worlds(cells=CELLS)),
    "cells and failures": (
        a_failure_ends_behind_good_pages,
        worlds(period_seconds=60, cells=CELLS, call=LARGE, failures=st.sampled_from([0.005, 0.05])),
    ),
    "cells of short answers": (
        an_exchange_that_returns_too_little_is_never_believed,
        worlds(period_seconds=60, cells=CELLS, call=st.builds(CallLimits, LARGE_CALL), returned=st.integers(-60, 60)),
    ),
    "untrue for a while": (what_is_untrue_for_a_while_is_never_final, untrue_worlds(cells=CELLS)),
    "untrue in cells of the newest hour": (what_is_untrue_for_a_while_is_never_final, deep_worlds(cells=CELLS)),
    "untrue for a while, and found later": (what_is_untrue_for_a_while_is_found_later, untrue_worlds(cells=CELLS)),
    "untrue for a while, without cells": (what_is_untrue_for_a_while_is_never_final, untrue_worlds()),
}
"""Name -> the property and the worlds it holds for."""
