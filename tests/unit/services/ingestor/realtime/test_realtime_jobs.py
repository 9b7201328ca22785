"""Realtime jobs of a whole ingestor: unmodified ccxt.pro, real sockets, a simulated exchange whose clock runs fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.model.page import Kind
from tests.unit.services.ingestor.conftest import NOW_NS
from tests.unit.services.ingestor.realtime.live_world import SECOND_NS, check_job, live_world

SINCE_NS = NOW_NS - 90 * SECOND_NS


@pytest.mark.parametrize("dialect", ["binance", "kraken"])
async def test_trades_and_candles_of_a_job_are_the_exchanges(tmp_path: Path, dialect: str) -> None:
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.start("j1", periods=(60, 300))
        await live.until_settled("j1", NOW_NS + 400 * SECOND_NS)
        complete = await live.stop("j1")
        assert complete.success, complete.error_message
        await check_job(live, "j1", SINCE_NS, periods=(60, 300))
        assert len(live.records("j1", Kind.PAGE, 60)) >= 6
        reports = live.world.relay.progress
        assert max(r.end_time for r in reports if r.period_seconds == 0) == live.settled("j1")
        assert live.world.relay.live
