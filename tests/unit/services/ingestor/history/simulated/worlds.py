"""Random worlds, drawn and shrunk by hypothesis, or made from a seed where thousands are counted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from dexorder_ingestor.exchange.dialect import CallLimits
from tests.unit.services.ingestor.history.simulated.world import PERIODS, History, Untruth, World

LONGEST = 200
"""Periods of a job's span."""
MOST_CALLS_A_PAGE = 10
DENSITIES = (1.0, 1.0, 0.97, 0.8, 0.3, 0.03, 0.0)

histories = st.builds(
    History,
    density=st.sampled_from(DENSITIES),
    outages=st.lists(st.tuples(st.integers(-30, LONGEST), st.integers(1, 120)), max_size=3).map(tuple),
    listed=st.none() | st.integers(-10, LONGEST),
    delisted=st.none() | st.integers(0, LONGEST + 10),
)
calls = st.builds(CallLimits, st.integers(5, 50), wide=st.booleans())


def worlds(**fixed: Any) -> st.SearchStrategy[World]:
    """Return a strategy for any world; keywords fix a value or the strategy to draw it from."""
    drawn: dict[str, Any] = {
        "seed": st.integers(0, 2**32),
        "history": histories,
        "periods": st.integers(1, LONGEST),
        "period_seconds": st.sampled_from(PERIODS),
        "call": calls,
        "page": st.integers(1, 80),
    } | fixed
    built = st.builds(World, **{k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in drawn.items()})
    return built.map(_likely)


@st.composite
def impossible_worlds(draw: st.DrawFn, cells: tuple[int, ...] = (), lies: float = 0.0) -> World:
    """Return worlds with impossible candles, no more than a job tolerates."""
    world = draw(worlds(lies=lies, cells=cells))
    numbers = [n for n in range(world.periods) if world.open_ns(n) in world.market]
    chosen = draw(st.sets(st.sampled_from(numbers), max_size=12)) if numbers else set()
    return replace(world, impossible=frozenset(chosen))


def untrue_worlds(**fixed: Any) -> st.SearchStrategy[World]:
    """Return worlds in which candles are untrue for a while.

    They are absent for 0.2 s to 10 minutes, in all answers, some, or those of one replica; always late; or
    half-finished. Some exchanges have given 2,000 true answers before.
    """
    absent = st.builds(
        Untruth,
        first=st.integers(0, LONGEST),
        count=st.integers(1, LONGEST),
        lasts_s=st.sampled_from([0.2, 1.0, 5.0, 30.0, 60.0, 600.0]),
        replicas=st.integers(1, 3),
        calls=st.integers(0, 30),
        intact=st.booleans(),
        deep=st.booleans(),
        share=st.sampled_from([1.0, 1.0, 0.5, 0.2]),
    )
    behind = st.builds(Untruth, behind_s=st.sampled_from([1.0, 5.0, 25.0, 110.0]), replicas=st.integers(1, 2))
    late = st.builds(Untruth, lag_s=st.sampled_from([1.0, 30.0, 180.0, 590.0]))
    fixed = {"good_answers": st.sampled_from([0, 2_000])} | fixed
    calls = st.builds(CallLimits, st.integers(20, 80), wide=st.booleans())
    return worlds(
        untruth=absent | late | behind,
        period_seconds=60,
        call=calls,
        closed=st.none() | st.integers(1, LONGEST),
        **fixed,
    )


@st.composite
def deep_worlds(draw: st.DrawFn, /, **fixed: Any) -> World:
    """Return worlds in which some of the newest hour's candles are absent, and coarser ones are made of the others."""
    world = draw(untrue_worlds(**fixed))
    closed = draw(st.integers(60, LONGEST))
    first = draw(st.integers(closed - 55, closed - 1))
    lasts_s, replicas = draw(st.sampled_from([1.0, 60.0, 600.0])), draw(st.integers(1, 2))
    untruth = Untruth(first, draw(st.integers(1, closed - first)), lasts_s, replicas, deep=True)
    return replace(world, closed=closed, untruth=untruth)


def seeded(seed: int, *, lies: float) -> World:
    """Return the world with a seed."""
    dice = random.Random(f"world {seed}")

    def sometimes() -> int | None:
        return dice.choice([None, None, dice.randint(1, LONGEST)])

    outages = tuple((dice.randint(-30, LONGEST), dice.randint(1, 120)) for _ in range(dice.choice([0, 0, 1, 3])))
    history = History(dice.choice(DENSITIES), outages, listed=sometimes(), delisted=sometimes())
    return _likely(
        World(
            seed,
            history,
            periods=dice.randint(20, LONGEST),
            period_seconds=60,
            call=CallLimits(dice.randint(5, 50), wide=dice.random() < 0.5),
            page=dice.randint(5, 80),
            lies=lies,
        )
    )


def two_markets(seed: int, *, lies: float) -> World:
    """Return a market without holes at an exchange that confuses it with another, in pages of several calls."""
    dice = random.Random(f"two markets {seed}")
    periods, call = dice.randint(20, LONGEST), CallLimits(dice.randint(10, 25), wide=dice.random() < 0.5)
    return _likely(World(seed, History(), periods, 60, call, page=80, lies=lies, kinds=("other symbol",)))


def _likely(world: World) -> World:
    """With pages of at most ten calls: 1,000 periods, and no exchange in the table answers less than 100."""
    return replace(world, page=min(world.page, MOST_CALLS_A_PAGE * world.call.candles))
