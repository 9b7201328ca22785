"""Coarser candles as checksums of finer ones: which periods serve, and what tallies."""

from __future__ import annotations

import pytest

from dexorder_common.model.checksum import aggregate, tallies
from dexorder_common.model.page import Candle
from dexorder_common.model.times import SECOND_NS


def coarse(candles: list[Candle]) -> Candle:
    prices = candles[0].open, max(c.high for c in candles), min(c.low for c in candles), candles[-1].close
    return Candle(candles[0].open_ns, *prices, sum(c.volume for c in candles))


HOUR = [Candle(60 * SECOND_NS * n, 2.0, 4.0 + n, 1.0, 3.0, 0.1) for n in range(60)]


@pytest.mark.parametrize(
    ("name", "finer", "equal"),
    [
        ("whole", HOUR, True),
        ("nothing", [], False),
        ("without the first", HOUR[1:], False),
        ("without one inside", HOUR[:30] + HOUR[31:], False),
        ("another close", [*HOUR[:-1], HOUR[-1]._replace(close=3.5)], False),
        ("another high", [HOUR[0], HOUR[1]._replace(high=900.0), *HOUR[2:]], False),
        ("another volume", [HOUR[0]._replace(volume=0.1001), *HOUR[1:]], False),
        ("rounded", [HOUR[0]._replace(volume=0.1 + 1e-12), *HOUR[1:]], True),
    ],
)
def test_finer_candles_tally(name: str, finer: list[Candle], equal: bool) -> None:
    assert tallies(coarse(HOUR), aggregate(finer), 60, 1e-9) is equal


def test_cell_without_trades_has_no_finer_candle() -> None:
    assert tallies(None, None, 60, 1e-9)
    assert not tallies(None, aggregate(HOUR[:1]), 60, 1e-9)
    flat = Candle(HOUR[0].open_ns, 2.0, 2.0, 2.0, 2.0, 0.0)
    assert tallies(flat, None, 60, 1e-9)


@pytest.mark.parametrize("volume", [0.0, 1e-10])
def test_hole_is_no_proof_where_a_candle_may_be_too_small_for_the_sum(volume: float) -> None:
    """Some exchanges send minutes without trades as flat candles: their absence changes nothing and loses nothing."""
    quiet = [c._replace(volume=volume) if n in (20, 40) else c for n, c in enumerate(HOUR)]
    assert tallies(coarse(quiet), aggregate(quiet), 60, 1e-9)
    assert tallies(coarse(quiet), aggregate(quiet[:40] + quiet[41:]), 60, 1e-9) is (volume == 0)
