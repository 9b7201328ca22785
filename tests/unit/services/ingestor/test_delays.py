"""What a client sees while the exchange holds up its request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.history import HistoryRequest, Progress, RequestStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.unit.services.ingestor.whole import whole
from tests.unit.services.relay.harness import at

CANDLES = "/api/v3/klines"


@pytest.mark.parametrize(
    ("fault", "reason", "banned"),
    [
        ({"kind": "hang"}, "RequestTimeout", False),
        ({"kind": "http_502"}, "502", False),
        ({"kind": "http_429", "retry_after_s": 2}, "429", True),
    ],
)
async def test_progress_says_what_the_exchange_does_and_forgets_it_with_the_next_page(
    tmp_path: Path, fault: dict[str, Any], reason: str, banned: bool
) -> None:
    sim = {"now_ns": at(1_000_000)}
    slow: dict[str, Any] = {"call_timeout_seconds": 0.5, "backoff_seconds": 0.2, "longest_backoff_seconds": 0.2}
    async with whole(tmp_path, sim=sim, **slow) as w:
        await w.sim.faults({"path": CANDLES, "count": 2, **fault})
        request = HistoryRequest("r", "BTC/USDT.SIM", at(0), at(300), 60)
        await w.client.submit(request)
        seen: list[Progress] = []
        ended = await w.client.wait("r", on_progress=seen.append, timeout=60)
        wall_ns = ended.record.completed_ns
    assert wall_ns is not None
    assert ended.record.status is RequestStatus.OK
    delays = [now.delay for now in seen if now.delay]
    assert any(reason in delay.reason and delay.retries for delay in delays), delays
    bans = [delay.banned_until_ns for delay in delays if delay.banned_until_ns]
    assert bool(bans) == banned
    assert all(wall_ns - 60 * SECOND_NS < end_ns < wall_ns for end_ns in bans)
    assert seen[-1].delay is None and ended.record.progress.delay is None
    assert ended.record.span == TimeRange(at(0), at(300))
