"""Files of whole days in place of calls: unmodified ccxt and the files of the simulated exchange, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bench.parts.completeness.virtual import virtual_world
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from tests.fixtures_ccxt import cheap_clients as cheap_clients
from tests.unit.services.ingestor.history.test_evidence import warm

DAY_NS = 86_400 * SECOND_NS
SYMBOL, MARKET = "BTC/USDT", "BTCUSDT"


@pytest.mark.parametrize("day", ["2024-01-15", "2025-01-15"], ids=["milliseconds", "microseconds"])
async def test_a_day_of_minutes_takes_one_call_and_one_file(tmp_path: Path, day: str) -> None:
    number = {"2024-01-15": 19_737, "2025-01-15": 20_103}[day]
    span = TimeRange(number * DAY_NS, (number + 1) * DAY_NS)
    async with virtual_world(tmp_path, now_ns=span.end_ns + 5 * DAY_NS) as world:
        venue, settings = world.venue, IngestorSettings(rate_limit_dir=tmp_path)
        exchange = world.exchange.model_copy(update={"archive": world.exchange.rest_url})
        metrics = IngestorMetrics(CollectorRegistry())
        world.venue = CcxtVenue("SIM", exchange, settings, metrics, world.time, sleep=world.time.sleep)
        await venue.close()
        found, truth = await world.fetch(SYMBOL, 60, span, warm()), world.truth(SYMBOL, "1m", span)
        requests = world.simulator.stats.snapshot()["requests"]
    assert (found.missing, found.calls) == ([], 1)
    assert requests[f"/data/spot/daily/klines/{MARKET}/1m/{MARKET}-1m-{day}.zip"] == 1
    assert len(found.candles) == 1_440
    assert all(candle.trade_count is not None and candle.quote_volume is not None for candle in found.candles)
    assert {candle.open_ns: tuple(candle[1:6]) for candle in found.candles} == {
        open_ns: values[:5] for open_ns, values in truth.items()
    }
