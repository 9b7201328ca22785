"""Numbers of dispatches, and what the relay tells the pipeline of each."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.clock import ManualClock, SystemClock
from dexorder_common.model.dispatch_id import new_dispatch_id, number_of
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_relay import engine
from dexorder_relay.requests.retraction_log import RetractionTable
from dexorder_relay.store import database
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import (
    EARLIER,
    ERROR,
    OK,
    TICKER,
    Suite,
    at,
    coverage_row,
    page,
    refused,
    suite,
    write_coverage,
)

DAY_NS = 86_400 * SECOND_NS


async def described(s: Suite, job_ids: Iterable[str]) -> dict[str, tuple[str, int, int, int]]:
    answer = await s.pipeline.stub.DescribeDispatches(ppb.DescribeDispatchesRequest(job_ids=job_ids))
    return {
        each.job_id: (each.series.ticker, each.series.period_seconds, each.start_ns, each.end_ns)
        for each in answer.dispatches
    }


async def dispatched(s: Suite, name: str, start: int, end: int) -> Any:
    return (await s.dispatched(name, start, end))[1]


async def test_a_dispatch_is_known_after_its_job_has_ended_and_the_relay_has_restarted(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one = await dispatched(s, "r", 3, 10)
        await s.pipeline.land(one)
        assert (await s.finished("r")).status == OK
        two = await dispatched(s, "s", 20, 25)
    async with suite(tmp_path) as s:
        number = number_of(one.job_id)
        made_up = ["", "x" * 300, dispatch_id(number + 5), dispatch_id(1), new_dispatch_id(number, "0" * 16)]
        assert await described(s, [*made_up, one.job_id, two.job_id, new_dispatch_id(number, "f" * 16)]) == {
            one.job_id: (TICKER, 60, at(3), at(10)),
            two.job_id: (TICKER, 60, at(20), at(25)),
        }, "a number alone is not enough"
        assert await described(s, []) == {}
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await described(s, ["x"] * 10_001)


async def test_dispatches_are_forgotten_after_their_retention_unless_their_job_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FORGET_SECONDS", 0.01)
    monkeypatch.setattr(database, "FORGOTTEN_AT_ONCE", 2)
    monkeypatch.setattr(engine, "FORGOTTEN_AT_ONCE", 2)
    clock = ManualClock()
    limits = {"dispatch_retention_days": 10, "request_timeout_seconds": 1e9, "lease_seconds": 1e9}
    async with suite(tmp_path, clock, **limits) as s:
        live = await dispatched(s, "live", 500, 510)
        ended = []
        for n in range(5):
            ended.append(await dispatched(s, f"r{n}", n, n + 1))
            await s.pipeline.land(ended[-1])
            await s.finished(f"r{n}")
        clock.advance(9 * DAY_NS)
        young = await dispatched(s, "young", 100, 101)
        await s.pipeline.land(young)
        await s.finished("young")
        ids = [each.job_id for each in (live, *ended, young)]
        assert (await described(s, ids)).keys() == set(ids)
        clock.advance(2 * DAY_NS)
        while (await described(s, ids)).keys() != {live.job_id, young.job_id}:
            pass


class ClockSetBack(ManualClock):
    """A clock that shows an earlier time at every start."""

    def __init__(self, starts: int) -> None:
        super().__init__(10**18 - starts * DAY_NS)


async def test_numbers_grow_over_restarts_whatever_the_clock_says(tmp_path: Path) -> None:
    numbers = []
    for start in range(3):
        async with suite(tmp_path, ClockSetBack(start)) as s:
            for n in range(2):
                first = 100 * start + 10 * n
                numbers.append(number_of((await dispatched(s, f"{first}", first, first + 5)).job_id))
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("trace", ["rows", "coverage", "retraction", "none"])
async def test_a_restored_database_never_repeats_a_number(tmp_path: Path, trace: str) -> None:
    """The tables tell what was issued since, even if the clock was set back; without a trace there, the clock does."""
    starts = itertools.count()
    async with suite(tmp_path, ClockSetBack(next(starts))) as s:
        await dispatched(s, "before", 0, 10)
    backup = shutil.copy(tmp_path / "relay.db", tmp_path / "backup")
    numbers = []
    for n in range(2):
        async with suite(tmp_path, SystemClock() if trace == "none" else ClockSetBack(next(starts))) as s:
            numbers.append(number_of((await dispatched(s, f"since{n}", 100 + 10 * n, 110 + 10 * n)).job_id))
            if trace == "rows":
                s.pipeline.write([n], dispatch=numbers[-1])
            elif trace == "coverage":
                write_coverage(s.pipeline.catalog, coverage_row(900, 910, fetched_ns=1, dispatch=numbers[-1]))
            elif trace == "retraction":
                lost = 900 + 10 * n, 910 + 10 * n
                await s.pipeline.report(pages=[page(EARLIER, *lost)])
                await s.queued(f"lost{n}", *lost)
                assert (await s.finished(f"lost{n}")).status == ERROR
                numbers += [each.order.dispatch for each in RetractionTable(s.pipeline.catalog).read()]
    for name in ("relay.db-wal", "relay.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(backup, tmp_path / "relay.db")
    async with suite(tmp_path, SystemClock() if trace == "none" else ClockSetBack(next(starts))) as s:
        assert number_of((await dispatched(s, "after", 300, 310)).job_id) > max(numbers)
