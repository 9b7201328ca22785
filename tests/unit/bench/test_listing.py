"""A year before a listing is proven by few calls, through ccxt and the simulated exchange."""

from __future__ import annotations

from pathlib import Path

from bench.parts.completeness.listing import YEAR, ListingResult, measure_one, table
from bench.parts.completeness.virtual import virtual_world
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.agreement import Agreement
from tests.fixtures_ccxt import cheap_clients as cheap_clients


async def test_year_of_minutes_before_a_listing_takes_few_calls(tmp_path: Path) -> None:
    """Eleven dispatches of one request at an exchange that returns 100 candles."""
    async with virtual_world(tmp_path, now_ns=1_706_745_630 * SECOND_NS) as world:
        result = await measure_one(world, [Agreement()], YEAR, 100, wide=False)
    assert result.is_proven
    assert max(result.calls) <= 20
    assert min(result.calls) >= 8, "as many answers as prove an absence that no candle is near"


def test_missed_aim_is_named() -> None:
    met, missed, unproven = (
        ListingResult(YEAR, 100, False, (9, calls), proven) for calls, proven in ((20, True), (21, True), (9, False))
    )
    assert [r.as_promised for r in (met, missed, unproven)] == [True, False, False]
    assert [("met" in line, "MISSED" in line) for line in table([met, missed, unproven]).splitlines()[-3:]] == [
        (True, False),
        (False, True),
        (False, True),
    ]
