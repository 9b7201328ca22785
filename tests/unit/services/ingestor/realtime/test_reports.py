"""Reports of realtime jobs to a relay that is away for a while: one call after the other, none lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.realtime import Knowledge
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.realtime.relay_client import Reports, SeriesReport
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as pb


class Relay:
    """Relay that takes calls while ``is_there``, and a publisher for it that repeats each until then or a failure."""

    rpc_timeout_seconds = 1.0

    def __init__(self) -> None:
        self.relay = SimpleNamespace(ReportRealtime=self._take)
        self.is_there, self.called, self.fails = asyncio.Event(), asyncio.Event(), False
        self.calls: list[pb.ReportRealtimeRequest] = []
        self.running = self.most_running = self.attempts = 0

    async def _take(self, request: pb.ReportRealtimeRequest, *, timeout: float) -> pb.ReportRealtimeResponse:
        self.calls.append(request)
        self.called.set()
        return pb.ReportRealtimeResponse()

    def give_up(self) -> None:
        """Fail the calls that wait, and later ones."""
        self.fails = True
        self.is_there.set()

    async def call(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.running, self.attempts = self.running + 1, self.attempts + 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.is_there.wait()
            if self.fails:
                raise Unavailable("the relay is away")
            return await call()
        finally:
            self.running -= 1


class Job:
    """A job that is never fenced."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def fence(self) -> None:
        raise AssertionError


def waiting(text: str) -> Knowledge:
    return Knowledge(waiting=text)


async def told_by_itself(reports: Reports, relay: Relay) -> None:
    relay.fails = False
    running = asyncio.create_task(reports.run())
    await asyncio.wait_for(relay.called.wait(), 20)
    running.cancel()


def told(relay: Relay) -> list[tuple[str, str, int]]:
    return [(each.job_id, each.waiting, each.number) for call in relay.calls for each in call.statuses]


async def test_the_newest_status_arrives_last_and_what_waits_meanwhile_is_one_call() -> None:
    relay = Relay()
    reports, one, other = Reports(relay), Job("1"), Job("2")  # type: ignore[arg-type]
    flushes = []
    for job, text in ((one, "a"), (one, "b"), (other, "c"), (one, "d")):
        reports.tell(job, waiting(text))
        flushes.append(asyncio.create_task(reports.flush()))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert relay.running == 1
    relay.is_there.set()
    await asyncio.gather(*flushes)
    assert told(relay) == [("1", "a", 1), ("1", "d", 4), ("2", "c", 3)]
    assert (relay.most_running, len(relay.calls)) == (1, 2)


async def test_a_call_that_fails_leaves_the_newest_status_of_each_job_to_the_next_one() -> None:
    relay = Relay()
    reports, one, other = Reports(relay), Job("1"), Job("2")  # type: ignore[arg-type]
    reports.tell(one, waiting("a"))
    reports.tell(other, waiting("b"))
    failing = asyncio.create_task(reports.flush())
    await asyncio.sleep(0)
    reports.tell(one, waiting("c"))
    relay.give_up()
    await failing
    relay.fails = False
    await reports.flush()
    assert sorted(told(relay)) == [("1", "c", 3), ("2", "b", 2)]


async def test_calls_that_waited_for_one_that_failed_do_not_try_and_what_they_have_is_told_later() -> None:
    relay = Relay()
    reports, job = Reports(relay), Job("1")  # type: ignore[arg-type]
    flushes = []
    for text in ("a", "b", "c"):
        reports.tell(job, waiting(text))
        flushes.append(asyncio.create_task(reports.flush()))
        await asyncio.sleep(0)
    relay.give_up()
    await asyncio.gather(*flushes)
    assert (relay.attempts, told(relay)) == (1, [])
    await told_by_itself(reports, relay)
    assert told(relay) == [("1", "c", 3)]


async def test_a_status_whose_call_failed_is_told_though_nothing_else_comes() -> None:
    relay = Relay()
    reports, job = Reports(relay), Job("1")  # type: ignore[arg-type]
    reports.tell(job, waiting("a"))
    relay.give_up()
    await reports.flush()
    await told_by_itself(reports, relay)
    assert told(relay) == [("1", "a", 1)]


async def test_adjacent_spans_that_wait_are_one_report() -> None:
    relay = Relay()
    reports, job = Reports(relay), Job("1")  # type: ignore[arg-type]
    relay.is_there.set()
    for start in (0, 10, 30):
        reports.add(job, SeriesReport("1", "BTC/USDT.SIM", 0, TimeRange(start, start + 10), 1))
    await reports.flush()
    await reports.flush()
    (call,) = relay.calls
    assert [(each.start_ns, each.end_ns, each.count) for each in call.reports] == [(0, 20, 2), (30, 40, 1)]
