"""Exchanges whose answers are made up otherwise than ccxt says: every request ends OK, at a reasonable number of calls.

Unmodified ccxt queries the simulated exchange, whose answers to every query for candles have the shape.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.history import RequestStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor import instrument_reports
from tests.unit.services.ingestor.whole import whole
from tests.unit.services.relay.harness import at

pytestmark = pytest.mark.smoke

TICKER, CANDLES = "BTC/USDT.SIM", 6_000
SPAN = TimeRange(at(0), at(CANDLES))


@pytest.mark.parametrize(
    ("shape", "most_calls"),
    [
        ({"kind": "short", "size": 500}, 30),
        ({"kind": "short", "size": 100}, 90),
        ({"kind": "short", "size": 20}, 450),
        ({"kind": "newest", "size": 500}, 40),
        ({"kind": "newest", "size": 50}, 180),
        ({"kind": "exclusive"}, 25),
        ({"kind": "drop_last"}, 25),
        ({"kind": "reversed"}, 25),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
async def test_every_candle_is_found_and_the_shape_is_named(
    tmp_path: Path, shape: dict[str, Any], most_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrument_reports, "_LEARNT_SECONDS", 0.05)
    async with whole(tmp_path, sim={"now_ns": at(1_000_000) + 5 * SECOND_NS}, page_candles=1_000) as w:
        truth = await w.sim.truth(SPAN)
        await w.sim.faults(shape)
        before = (await w.sim.stats())["requests"]["/api/v3/klines"]
        ended = await w.ask("r", TICKER, 60, SPAN)
        calls = (await w.sim.stats())["requests"]["/api/v3/klines"] - before
        assert calls <= most_calls
        assert (ended.record.status, ended.record.error_message) == (RequestStatus.OK, "")
        assert await w.rows(ended) == truth
        if "size" in shape:
            newest = ", newest candles first (learnt)" if shape["kind"] == "newest" else ""
            async with asyncio.timeout(30):
                while (told := str((await w.client.markets("SIM")).candles)) == "1,000 candles a call":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert told == f"{shape['size']} candles a call (learnt){newest}"
