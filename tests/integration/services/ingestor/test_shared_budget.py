"""Three ingestor processes with unmodified ccxt against one exchange that counts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import (
    exchanges_file,
    ingestor_process,
    minutes,
    running_neighbours,
    running_sim,
)
from tests.unit.services.ingestor.fakes import dispatch

PROCESSES, SLOTS = 3, 2
UNITS_A_SECOND, BURST, CANDLES_COST = 8, 1, 0.4
SESSIONS = PROCESSES * (SLOTS + 1)
"""Each process asks for its slots' jobs and, at start, for the markets."""
MOST_CALLS_1S = int((UNITS_A_SECOND + BURST) / CANDLES_COST) + 1 + SESSIONS + PROCESSES * SLOTS // 2
"""What comes back in a second and was saved up, one call on credit; of each session one call late on the wire; and the
jobs' questions for the time, which cost half. Three budgets would make it 60."""


@pytest.mark.smoke
async def test_three_processes_keep_one_limit_and_one_ban(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(running_sim(call_limit=MOST_CALLS_1S))
        path = exchanges_file(tmp_path, sim.url, slots=SLOTS, rate_per_second=UNITS_A_SECOND, burst=BURST)
        there = await stack.enter_async_context(running_neighbours(tmp_path, path))
        for _ in range(PROCESSES):
            await stack.enter_async_context(ingestor_process({**there.settings, "page_candles": 100}))
        offers = await there.broker.offers(PROCESSES * SLOTS)
        assert len({identity for identity, _ in offers}) == PROCESSES
        spans = {f"j{n}": minutes(n * 1000, 700) for n in range(len(offers))}
        for (identity, _), (job_id, span) in zip(offers, spans.items(), strict=True):
            await there.broker.send(identity, dispatch(job_id, span))
        await there.broker.wait_for(pb.WorkHeartbeat)
        await sim.faults({"kind": "http_429", "after": 20, "count": 1, "retry_after_s": 2})
        done = {(await there.broker.wait_for(pb.WorkComplete))[1].job_id for _ in spans}
        assert done == spans.keys()
        for job_id in spans:
            assert there.gateway.final(job_id).value.total_records == 700
        seen = await sim.stats()
        assert seen["faults"] == {"http_429": 1}, "nobody went over the limit"
        assert seen["most_calls_1s"] <= MOST_CALLS_1S
        assert seen["calls_in_ban"] <= SESSIONS - 1, "only calls on the wire when the ban was announced"
        assert seen["requests"]["/api/v3/klines"] > 25
