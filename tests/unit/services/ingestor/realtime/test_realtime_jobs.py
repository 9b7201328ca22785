"""Realtime jobs of a whole ingestor: unmodified ccxt.pro, real sockets, a simulated exchange whose clock runs fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.page import Kind
from tests.examples import first_in_gate
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
        assert max(r.end_ns for r in reports if r.series.dataset == "trades") == live.settled("j1")
        assert live.world.relay.live


MESSAGES: list[dict[str, Any]] = [
    {"kind": "ws_close", "every": 401},
    {"kind": "ws_abort", "every": 433},
    {"kind": "ws_half", "every": 467},
    {"kind": "ws_drop", "every": 41},
    {"kind": "ws_double", "every": 7},
    {"kind": "ws_shuffle", "every": 29},
    {"kind": "ws_lag", "every": 307, "lag_s": 0.2},
]
REST: list[dict[str, Any]] = [
    {"kind": "empty", "path": "TRADES", "every": 3},
    {"kind": "hole", "path": "TRADES", "every": 4},
    {"kind": "cut_json", "path": "TRADES", "every": 5},
    {"kind": "short", "path": "TRADES", "every": 7},
    {"kind": "html", "path": "TRADES", "every": 11},
]


@pytest.mark.parametrize("dialect", first_in_gate(DIALECTS, 1))
async def test_no_trade_is_lost_or_doubled_by_faulty_sockets_and_answers(tmp_path: Path, dialect: str) -> None:
    path = {"binance": "/api/v3/aggTrades", "kraken": "/0/public/Trades"}[dialect]
    rules = [*MESSAGES, *({**rule, "path": path} for rule in REST)]
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.sim.faults(*rules)
        await live.start("j1")
        await live.until_settled("j1", END_NS)
        await live.until_seen(rule["kind"] for rule in rules)
        await live.sim.faults()
        assert (await live.stop("j1")).success
        await check_job(live, "j1", SINCE_NS)


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [
        ("ws_freeze", "binance"),
        ("ws_cut", "kraken"),
        pytest.param("ws_freeze", "kraken", marks=pytest.mark.nightly),
        pytest.param("ws_cut", "binance", marks=pytest.mark.nightly),
    ],
)
async def test_a_socket_that_sends_no_trades_any_more_is_opened_again(tmp_path: Path, dialect: str, kind: str) -> None:
    """After one malformed frame ccxt.pro never returns again; a frozen server answers no ping either."""
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 100 * SECOND_NS)
        await live.sim.faults({"kind": kind, "count": 1})
        await live.until_seen([kind])
        await live.until_stats(lambda stats: stats["sockets"]["opened"] >= 2)
        await live.until_settled("j1", live.settled("j1") + 100 * SECOND_NS)
        assert (await live.stop("j1")).success
        await check_job(live, "j1", SINCE_NS)
