"""Realtime jobs of a whole ingestor: unmodified ccxt.pro, real sockets, a simulated exchange whose clock runs fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.common.model.page import Kind
from tests.unit.services.ingestor.conftest import NOW_NS
from tests.unit.services.ingestor.realtime.live_world import SECOND_NS, check_job, live_world

SINCE_NS = NOW_NS - 90 * SECOND_NS
END_NS = NOW_NS + 400 * SECOND_NS
DIALECTS = ["binance", "kraken"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_trades_and_candles_of_a_job_are_the_exchanges(tmp_path: Path, dialect: str) -> None:
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.start("j1", periods=(60, 300))
        await live.until_settled("j1", END_NS)
        complete = await live.stop("j1")
        assert complete.success, complete.error_message
        await check_job(live, "j1", SINCE_NS, periods=(60, 300))
        assert live.records("j1", Kind.PAGE, 60)
        reports = live.world.relay.progress
        assert max(r.end_time for r in reports if r.period_seconds == 0) == live.settled("j1")
        assert live.world.relay.live


SOCKET_FAULTS: dict[str, list[dict[str, Any]]] = {
    "close": [{"kind": "ws_close", "every": 200}],
    "abort": [{"kind": "ws_abort", "every": 200}],
    "half": [{"kind": "ws_half", "every": 200}],
    "silence": [{"kind": "ws_silence", "after": 100, "count": 1}],
    "freeze": [{"kind": "ws_freeze", "after": 100, "count": 1}],
    "garbage": [{"kind": "ws_garbage", "every": 150}],
    "cut": [{"kind": "ws_cut", "every": 150}],
    "drop": [{"kind": "ws_drop", "every": 20}],
    "double": [{"kind": "ws_double", "every": 5}],
    "shuffle": [{"kind": "ws_shuffle", "every": 30}],
    "lag": [{"kind": "ws_lag", "every": 100, "lag_s": 0.3}],
    "all": [
        {"kind": "ws_close", "every": 401},
        {"kind": "ws_garbage", "every": 503},
        {"kind": "ws_drop", "every": 41},
        {"kind": "ws_double", "every": 7},
        {"kind": "ws_shuffle", "every": 29},
        {"kind": "empty", "path": "/api/v3/aggTrades", "every": 3},
        {"kind": "hole", "path": "/api/v3/aggTrades", "every": 4},
        {"kind": "cut_json", "path": "/api/v3/aggTrades", "every": 5},
        {"kind": "drop_last", "path": "/api/v3/aggTrades", "every": 7},
    ],
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("faults", SOCKET_FAULTS)
async def test_no_trade_is_lost_or_doubled_by_a_faulty_socket(tmp_path: Path, dialect: str, faults: str) -> None:
    rules = SOCKET_FAULTS[faults]
    if dialect == "kraken":
        rules = [{**rule, "path": "/0/public/Trades"} if "path" in rule else rule for rule in rules]
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.sim.faults(*rules)
        await live.start("j1")
        await live.until_settled("j1", END_NS)
        seen = (await live.sim.stats())["faults"]
        await live.sim.faults()
        assert (await live.stop("j1")).success
        assert seen.keys() == {rule["kind"] for rule in rules}
        await check_job(live, "j1", SINCE_NS)
