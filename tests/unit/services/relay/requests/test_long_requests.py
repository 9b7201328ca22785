"""A long request is planned in steps: others are served between them, and a restart continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_relay.state import planner
from tests.unit.services.relay.harness import OK, TICKER, at, request, span_of, suite, until
from write_limits import limits

MINUTES, JOB = 120, 10


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "STEP_JOBS", 2)
    monkeypatch.setattr(planner, "MAX_OPEN_JOBS", 1)


async def test_a_long_request_is_answered_after_its_first_step_and_complete_at_its_end(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=JOB) as s:
        await s.queued("long", 0, MINUTES)
        progress = (await s.record("long")).progress
        assert (progress.jobs, progress.expected_periods) == (2, MINUTES)
        ingestor = await s.offering()
        done = await ingestor.work(s.pipeline, dispatches=MINUTES // JOB)
        assert sorted(map(span_of, done)) == [(first, first + JOB) for first in range(0, MINUTES, JOB)]
        assert await s.ended("long") == (OK, MINUTES)


OLDER = ingest.OHLCRequest(request_id="long", ticker=TICKER, start_time=at(0), end_time=at(MINUTES), period_seconds=60)
DOORS: Mapping[str, Callable[[Any], Any]] = {
    "HistoryService.SubmitHistorical": lambda stub: stub.history.SubmitHistorical(request("long", 0, MINUTES)),
    "HistoryService.SubmitHistoricalBatch": lambda stub: stub.history.SubmitHistoricalBatch(
        history_pb.SubmitHistoricalBatchRequest(requests=[request("long", 0, MINUTES)])
    ),
    "HistoryService.StreamOhlc": lambda stub: stub.history.StreamOhlc(history_pb.StreamOhlcRequest(request=OLDER)),
    "OperatorService.RefreshHistorical": lambda stub: stub.operator.RefreshHistorical(
        operator_pb.RefreshHistoricalRequest(request=request("long", 0, MINUTES))
    ),
}


def test_each_door_of_a_long_request_is_tried() -> None:
    (doors,) = (row.doors for row in limits() if row.resource == "unfinished jobs of a request")
    assert set(doors) == set(DOORS)


@pytest.mark.parametrize("door", DOORS)
async def test_few_jobs_of_a_long_request_are_open_and_another_request_has_its_turn(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_jobs, plan = list[int](), planner.plan_on

    def counted(state: Any, *args: Any, **more: Any) -> Any:
        found = plan(state, *args, **more)
        open_jobs.append(sum(not state.is_over(each) for each in state.jobs))
        return found

    monkeypatch.setattr(planner, "plan_on", counted)
    async with suite(tmp_path, job_periods=JOB) as s:
        call = DOORS[door](s.relay)
        await until(lambda: bool(open_jobs))
        await s.queued("short", 1_000, 1_000 + JOB)
        ingestor = await s.offering()
        done = await ingestor.work(s.pipeline, dispatches=MINUTES // JOB + 1)
        assert (await s.ended("long"), await s.ended("short")) == ((OK, MINUTES), (OK, JOB))
        call.cancel()
    assert [each.request_id for each in done].index("short") <= 2
    assert max(open_jobs) <= 2 + 1 + 1, "a step, one that is still open, and the other request's"


async def test_a_restart_continues_behind_the_last_step(tmp_path: Path) -> None:
    async with suite(tmp_path, job_periods=JOB) as s:
        await s.queued("long", 0, MINUTES)
        ingestor = await s.offering()
        begun: list[Any] = await ingestor.work(s.pipeline, dispatches=3)
    async with suite(tmp_path, job_periods=JOB) as s:
        ingestor = await s.offering()
        done = await ingestor.work(s.pipeline, dispatches=MINUTES // JOB - len(begun))
        assert sorted(map(span_of, [*begun, *done])) == [(first, first + JOB) for first in range(0, MINUTES, JOB)]
        assert await s.ended("long") == (OK, MINUTES)


async def test_the_step_is_small_whatever_the_range_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """199 million periods made 3,980 jobs in one go, and nobody else was served for a second."""
    monkeypatch.setattr(planner, "STEP_JOBS", 32)
    monkeypatch.setattr(planner, "MAX_OPEN_JOBS", 0)
    made: list[int] = []
    create = planner._create

    def counted(*args: Any, **more: Any) -> None:
        made.append(1)
        create(*args, **more)

    monkeypatch.setattr(planner, "_create", counted)
    async with suite(tmp_path, job_periods=50_000) as s:
        await s.queued("long", 0, 0, period_seconds=1, end_time=at(0) + 199_000_000 * SECOND_NS)
        assert len(made) == planner.STEP_JOBS
