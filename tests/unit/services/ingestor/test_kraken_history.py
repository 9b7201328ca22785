"""The whole ingestor before the simulated exchange in Kraken's words: candles from trades, and trades that are spoiled.

What the same exchange gives as candles in Binance's words is the oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.examples import first_in_gate
from tests.unit.services.ingestor.conftest import Sim, exchanges_file, minutes, running_world
from tests.unit.services.ingestor.fakes import dispatch
from tests.unit.services.ingestor.test_ingestor import check_dispatch, rows, run_job

SPAN = minutes(0, 30)
"""Of a market with four trades a second: eight answers of trades."""
LOUD = ("http_502", "unavailable", "html", "text", "null", "cut_json", "empty", "reversed", "null_fields", "reset")
SILENT = ("short", "hole", "drop_first", "drop_last", "duplicate_tail", "outside", "other_symbol")
"""But ``edited``: a sound lie that no second answer speaks of (docs/completeness.md, what is not promised)."""


@pytest.mark.parametrize("kind", first_in_gate([None, *SILENT, *LOUD], 1 + len(SILENT)))
async def test_candles_from_spoiled_trades_are_the_exchanges_own(tmp_path: Path, sim: Sim, kind: str | None) -> None:
    truth = await sim.truth(SPAN)
    await sim.faults(*([{"kind": kind, "every": 4}] if kind else []))
    final, found = await fetch(tmp_path, sim, "BTC/USDT.SIM")
    assert final.status == pb.DataResponse.OK, final.error_message
    assert found == truth


async def test_market_with_silent_minutes_has_its_holes_verified(tmp_path: Path, sim: Sim) -> None:
    final, found = await fetch(tmp_path, sim, "XMR/USD.SIM")
    assert final.status == pb.DataResponse.OK
    assert found == await sim.truth(SPAN, "XMRUSD")
    assert 0 < len(found) < 30


async def fetch(folder: Path, sim: Sim, ticker: str) -> tuple[Any, dict[int, list[float]]]:
    """A job's final record and its candles."""
    path = exchanges_file(folder, sim.url, ccxt="kraken", rate_per_second=1e6)
    async with running_world(folder, path, attempts=12) as world:
        assert (await run_job(world, dispatch("j1", SPAN, ticker=ticker))).success
        check_dispatch(world, "j1", SPAN)
        return world.gateway.final("j1").value, rows(world.gateway.pages("j1"))
