"""Commits for which no caller waits: while one is held back, nothing that follows from it leaves the relay.

`test_answers_after_commit.py` names these tests at the places of the relay's code.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay import engine
from dexorder_relay.broker.upkeep import Upkeep
from dexorder_relay.realtime import jobs
from dexorder_relay.state import planner
from dexorder_relay.store.database import Store
from dexorder_relay.verification import rechecker
from tests.unit.services.relay.harness import EARLIER, MINUTE_NS, Suite, page, request, suite
from tests.unit.services.relay.realtime.worker import start, worker
from tests.unit.services.relay.test_answers_after_commit import Disk
from tests.unit.services.relay.verification.test_second_look import (
    HIDDEN,
    TRADED,
    answer_with_cells,
    fetch_a_thin_market,
)

News = list[Awaitable[Any]]
Prepare = Callable[[Suite, "HeldAt"], Awaitable[News]]


class HeldAt:
    """Holds back the next commit that a place of the code gives, and all behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk, self.patch = Disk(monkeypatch), monkeypatch
        self._place = ""
        self.upkeep: list[Upkeep] = []
        commit, made = Store.commit, Upkeep.__init__

        def held_back(store: Store, changes: Any) -> Any:
            if self._place and sys._getframe(1).f_code.co_qualname == self._place:
                self._place = ""
                self.disk.hold()
            return commit(store, changes)

        def kept(upkeep: Upkeep, *given: Any) -> None:
            self.upkeep.append(upkeep)
            made(upkeep, *given)

        monkeypatch.setattr(Store, "commit", held_back)
        monkeypatch.setattr(Upkeep, "__init__", kept)

    def at(self, place: str) -> None:
        self._place = place


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldAt:
    return HeldAt(monkeypatch)


async def next_step_of_a_plan(s: Suite, held: HeldAt) -> News:
    held.patch.setattr(planner, "STEP_JOBS", 1)
    held.patch.setattr(planner, "MAX_OPEN_JOBS", 1)
    await s.queued("long", 0, 30)
    ingestor = await s.offering()
    await ingestor.work(s.pipeline, dispatches=1)
    held.at("Upkeep._plan_on")
    (upkeep,) = held.upkeep
    return [upkeep._plan_on(), ingestor.take()]


async def next_wave_of_a_request(s: Suite, held: HeldAt) -> News:
    ingestor = await s.offering()
    await s.queued("r", 0, 10_000, limit=10)
    held.at("Completion._decide")
    await ingestor.work(s.pipeline, dispatches=1, holes=range(4, 9))
    return [ingestor.take()]


async def claim_that_a_refresh_takes_back(s: Suite, held: HeldAt) -> News:
    await s.pipeline.report(snapshot_id=s.pipeline.write(range(10)), pages=[page(EARLIER, 0, 10)])
    await s.relay.operator.RefreshHistorical(operator_pb.RefreshHistoricalRequest(request=request("r", 0, 10)))
    dispatch = await (await s.offering()).take()
    held.at("OutcomeDecider._replace")
    await s.pipeline.land(dispatch, holes=[4])
    return [s.finished("r"), s.notification("HISTORY_READY:r")]


async def candles_that_an_ended_request_lacks(s: Suite, held: HeldAt) -> News:
    held.patch.setattr(jobs, "REPEAT_NS", 0)
    one = worker(s)
    await one.ready()
    await one.ready(ingest.HISTORICAL)
    await start(s, "a", 60, since_ns=time.time_ns() - 10 * MINUTE_NS)
    _, first = sorted([await one.job(), await one.job()], key=lambda each: -each.type)
    held.at("RealtimeJobs._repeat_history")
    await one.complete(first.job_id, success=False)
    await one.ready(ingest.HISTORICAL)
    return [one.job()]


async def second_look_at_absences(s: Suite, held: HeldAt) -> News:
    ingestor = await fetch_a_thin_market(s, [m for m in TRADED if m != HIDDEN])
    held.at("Rechecker._second_look")
    cells = asyncio.ensure_future(answer_with_cells(s, ingestor, TRADED))
    assert await asyncio.to_thread(held.disk.reached.wait, 60)

    async def candle_is_fetched() -> None:
        await cells
        assert (await ingestor.take()).request_id.startswith("recheck-")

    return [candle_is_fetched()]


CASES: dict[str, tuple[Prepare, dict[str, Any]]] = {
    "plan": (next_step_of_a_plan, {"job_periods": 10}),
    "wave": (next_wave_of_a_request, {}),
    "claim": (claim_that_a_refresh_takes_back, {}),
    "history": (candles_that_an_ended_request_lacks, {"max_attempts": 1}),
    "look": (second_look_at_absences, {"recheck_after_seconds": (0.5, 600.0)}),
}


@pytest.mark.parametrize("case", CASES)
async def test_nothing_follows_from_a_commit_that_is_held_back(
    case: str, tmp_path: Path, held: HeldAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, settings = CASES[case]
    monkeypatch.setattr(engine, "FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.05)
    async with suite(tmp_path, **settings) as s:
        try:
            news = [asyncio.ensure_future(each) for each in await prepare(s, held)]
            assert await asyncio.to_thread(held.disk.reached.wait, 60)
            told, _ = await asyncio.wait(news, timeout=0.3)
            assert not told
        finally:
            held.disk.release()
        await asyncio.gather(*news)
