"""Calls as the exchange counts them: calls within a ban, calls in a second, and the cost of an answer that hangs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import (
    Sim,
    StartWorld,
    ingestor_process,
    minutes,
    running_neighbours,
    running_sim,
    running_world,
)
from tests.unit.services.ingestor.fakes import dispatch
from tests.unit.services.ingestor.test_ingestor import check_dispatch, rows, run_job

pytestmark = pytest.mark.smoke

TIME, MARKETS, CANDLES = "/api/v3/time", "/api/v3/exchangeInfo", "/api/v3/klines"


async def until_counted(sim: Sim, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the exchange's counts once the condition holds."""
    async with asyncio.timeout(100):
        while not condition(found := await sim.stats()):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)
        return found


@pytest.mark.parametrize(
    ("kind", "path", "count"), [("http_429", CANDLES, 2), ("http_418", CANDLES, 1), ("http_429", TIME, 1)]
)
async def test_no_call_of_any_kind_arrives_before_retry_after_is_over(
    sim: Sim, world_of: StartWorld, kind: str, path: str, count: int
) -> None:
    """With one slot, no call can be on the wire when the ban is announced, so no call is excused."""
    span = minutes(0, 500)
    async with world_of(slots=1, page_candles=100) as world:
        await world.relay.markets.get()
        await sim.faults({"kind": kind, "path": path, "count": count, "retry_after_s": 1})
        assert (await run_job(world, dispatch("j1", span))).success
        seen = await sim.stats()
        check_dispatch(world, "j1", span)
        assert (seen["faults"], seen["calls_in_ban"]) == ({kind: count}, 0)


async def test_ban_announced_to_the_list_of_markets_applies_to_dispatches(sim: Sim, world_of: StartWorld) -> None:
    await sim.faults({"kind": "http_429", "path": MARKETS, "count": 1, "retry_after_s": 1})
    async with world_of(slots=1) as world:
        await until_counted(sim, lambda seen: bool(seen["faults"]))
        span = minutes(0, 100)
        assert (await run_job(world, dispatch("j1", span))).success
        assert (await sim.stats())["calls_in_ban"] == 0
        check_dispatch(world, "j1", span)


async def test_ban_survives_the_process_that_received_it(tmp_path: Path) -> None:
    """The next process does not wait an hour: it ends its dispatch at once, without a call."""
    async with running_sim() as sim:
        path = venues_file(tmp_path, sim.url, "SIM")
        async with running_neighbours(tmp_path, path) as there:
            async with ingestor_process(there.settings) as first:
                ((identity, _),) = await there.broker.offers(1)
                await until_counted(sim, lambda seen: MARKETS in seen["requests"])
                await sim.faults({"kind": "http_418", "count": 1, "retry_after_s": 3600})
                await there.broker.send(identity, dispatch("j1", minutes(0, 100)))
                await until_counted(sim, lambda seen: bool(seen["faults"]))
                await there.broker.wait_for(pb.WorkComplete, "j1")
                first.kill()
                await first.wait()
            before = await sim.stats()
            async with ingestor_process(there.settings):
                while True:
                    second, _ = await there.broker.wait_for(pb.WorkerReady)
                    if second != identity:
                        break
                await there.broker.send(second, dispatch("j2", minutes(0, 100)))
                await there.broker.wait_for(pb.WorkComplete, "j2")
            final = there.gateway.final("j2").value
            assert final.status == pb.DataResponse.ERROR
            assert "SIM bans this address for another 3" in final.error_message
            after = await sim.stats()
            assert (after["requests"], after["calls_in_ban"]) == (before["requests"], 0)


UNITS_A_SECOND, BURST, CANDLES_COST, PAGES = 8, 1, 0.4, 20
CHECKSUM_CALLS = 2
"""One for the cells, and one for a sample of smaller ones, which has their values."""
SESSIONS = 4
"""Two venues, each with a slot and the question for its markets."""
MOST_CALLS_1S = int((UNITS_A_SECOND + BURST) / CANDLES_COST) + 1 + SESSIONS + 1
"""What comes back in a second and was saved up, one call on credit, of each session one call late on the wire, and the
questions for the time, which cost half. Two budgets would make it 45."""


async def test_two_venues_of_one_exchange_share_one_rate_limit(tmp_path: Path) -> None:
    """Names in the exchanges file do not matter, as the exchange sees one address."""
    async with running_sim(call_limit=MOST_CALLS_1S) as sim:
        rate = {"rate_per_second": UNITS_A_SECOND, "burst": BURST}
        path = venues_file(tmp_path, sim.url, "SIM", "TWIN", **rate)
        async with running_world(tmp_path, path) as there:
            span = minutes(0, PAGES * 992)  # less the candles a question reaches back to and beyond
            for identity, offer in await there.broker.offers(2):
                (venue,) = offer.exchanges
                await there.broker.send(identity, dispatch(venue, span, ticker=f"BTC/USDT.{venue}"))
            done = {(await there.broker.wait_for(pb.WorkComplete))[1].job_id for _ in range(2)}
            assert done == {"SIM", "TWIN"}
            assert rows(there.gateway.pages("SIM")) == rows(there.gateway.pages("TWIN"))
        seen = await sim.stats()
        assert seen["faults"] == {}, "nobody went over the limit"
        assert seen["requests"][CANDLES] == 2 * (PAGES + CHECKSUM_CALLS)
        assert seen["most_calls_1s"] <= MOST_CALLS_1S


@pytest.mark.parametrize("path", [TIME, CANDLES])
@pytest.mark.parametrize("kind", ["hang", "drip", "stall"])
async def test_endless_answer_costs_only_the_deadline_of_its_call(
    sim: Sim, world_of: StartWorld, path: str, kind: str
) -> None:
    """A byte comes every 0.02 s, so no pause is long; the deadline applies to the whole answer."""
    span = minutes(0, 300)
    async with world_of(slots=1, call_timeout_seconds=0.5, dispatch_deadline_seconds=60) as world:
        await world.relay.markets.get()
        await sim.faults({"kind": kind, "path": path, "count": 2, "drip_s": 0.02 if path == CANDLES else 0.2})
        assert (await run_job(world, dispatch("j1", span))).success
        assert (await sim.stats())["faults"] == {kind: 2}
        await sim.faults()
        check_dispatch(world, "j1", span)
        assert rows(world.gateway.pages("j1")) == await sim.truth(span)


def venues_file(folder: Path, url: str, *venues: str, **options: Any) -> Path:
    """Write an exchanges file in which each venue, with one slot, is the simulated exchange."""
    venue = {
        "ccxt": "binance",
        "rest_url": url,
        "options": {"fetchMarkets": {"types": ["spot"]}},
        "slots": {"historical": 1},
        **options,
    }
    path = folder / "exchanges.yaml"
    path.write_text(json.dumps({"exchanges": dict.fromkeys(venues, venue)}))
    return path
