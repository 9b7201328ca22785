"""Restart of either side of port 5567: a real relay, and real workers of ingestors on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock, SystemClock
from dexorder_common.model.history import Dispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.dispatches import AnyDispatch, StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from tests.rig.processes import free_ports
from tests.unit.services.ingestor.fakes import history_slots
from tests.unit.services.relay.harness import Suite, final_of, minute, page, suite, until

HOUR_NS = 3_600 * SECOND_NS


class Running:
    """Worker of an ingestor whose jobs end when the test decides."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[Dispatch] = asyncio.Queue()
        self.ends: dict[str, asyncio.Future[DispatchEnd]] = {}
        self.connected = asyncio.Event()
        self.stop = asyncio.Event()

    async def run_job(self, job: AnyDispatch, stop: StopSignal, fetched: Callable[[], None]) -> DispatchEnd:
        assert isinstance(job, Dispatch)
        self.ends[job.dispatch_id] = asyncio.get_running_loop().create_future()
        self.taken.put_nowait(job)
        return await self.ends[job.dispatch_id]

    async def on_connected(self, there: bool) -> None:
        (self.connected.set if there else self.connected.clear)()

    async def take(self) -> Dispatch:
        return await asyncio.wait_for(self.taken.get(), 60)


@asynccontextmanager
async def ingestor(broker: str, slots: int) -> AsyncIterator[Running]:
    running = Running()
    worker = BrokerConnection(
        IngestorSettings(broker=broker, drain_seconds=0, heartbeat_seconds=0.2),
        history_slots(slots, repeat_ns=60 * SECOND_NS),
        running.run_job,
        IngestorMetrics(CollectorRegistry()),
        SystemClock(),
        on_connected=running.on_connected,
    )
    task = asyncio.create_task(worker.run(running.stop))
    try:
        yield running
    finally:
        running.stop.set()
        await task


async def carry_through(s: Suite, at: Running, job: Dispatch) -> None:
    """Report a page, complete the dispatch, commit the page."""
    start, end = minute(job.span.start_ns), minute(job.span.end_ns)
    assert await s.ingestor().page(job.dispatch_id, start, end)
    at.ends[job.dispatch_id].set_result(DispatchEnd(job.dispatch_id, success=True))
    await s.pipeline.report(
        snapshot_id=s.pipeline.write(range(start, end)),
        pages=[page(job.dispatch_id, start, end)],
        finals=[final_of(job.dispatch_id)],
    )


async def test_after_a_restart_of_the_relay_jobs_run_on_and_free_slots_are_offered_again(tmp_path: Path) -> None:
    broker = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    async with ingestor(broker, slots=2) as worker:
        async with suite(tmp_path, broker_listen=broker) as s:
            await s.queued("a", 0, 10)
            first = await worker.take()
        async with suite(tmp_path, broker_listen=broker) as s:
            await s.queued("b", 100, 110)
            second = await worker.take()
            assert (second.request_id, second.dispatch_id != first.dispatch_id) == ("b", True)
            await carry_through(s, worker, first)
            await carry_through(s, worker, second)
            records = [await s.finished(request_id) for request_id in "ab"]
            assert [(record.row_count, record.progress.jobs) for record in records] == [(10, 1), (10, 1)]
        assert worker.taken.empty()


async def test_an_ingestor_that_stops_hands_its_jobs_to_the_next_one(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:  # its free slot may be tried before ZMQ notices its end
        await s.queued("a", 0, 10)
        async with ingestor(s.running.broker_address, slots=2) as old:
            first = await old.take()
        async with ingestor(s.running.broker_address, slots=1) as new:
            again = await new.take()
            assert (again.span, again.dispatch_id != first.dispatch_id) == (first.span, True)
            assert not await s.ingestor().page(first.dispatch_id, 0, 10)
            await carry_through(s, new, again)
            assert (await s.finished("a")).row_count == 10


async def test_a_killed_ingestors_slots_are_forgotten_and_its_job_goes_on_elsewhere(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        await s.queued("a", 0, 10)
        given_up = await s.offering(5)
        first = await given_up.take()
        assert await given_up.page(first.job_id, 0, 4)
        given_up.socket.close()
        await s.queued("b", 100, 110)
        async with ingestor(s.running.broker_address, slots=2) as new:
            jobs = {job.request_id: job for job in [await new.take(), await new.take()]}
            assert minute(jobs["a"].span.start_ns) == 4  # what no page has settled
            await s.pipeline.report(snapshot_id=s.pipeline.write(range(4)), pages=[page(first.job_id, 0, 4)])
            for job in jobs.values():
                await carry_through(s, new, job)
            assert [(await s.finished(request_id)).row_count for request_id in "ab"] == [10, 10]


class Watched(ManualClock):
    """Clock whose two times are set separately, and which counts how often it was read."""

    reads = 0

    def monotonic_ns(self) -> int:
        self.reads += 1
        return super().monotonic_ns()

    def jump_wall(self, ns: int) -> None:
        self._wall_ns += ns

    def pass_by(self, ns: int) -> None:
        self.advance(ns)
        self._wall_ns -= ns

    async def ticks(self) -> None:
        """Wait until the relay has checked its leases more than once."""
        seen = self.reads
        await until(lambda: self.reads > seen + 4)


async def test_leases_and_timeouts_go_by_the_monotonic_clock(tmp_path: Path) -> None:
    clock = Watched()
    async with suite(tmp_path, clock, lease_seconds=15) as s:
        one, two = s.ingestor(), s.ingestor()
        await s.queued("a", 0, 10)
        await one.offer()
        first = await one.take()
        await two.offer()
        for hours in (1, -2, 1):
            clock.jump_wall(hours * HOUR_NS)
            await clock.ticks()
        assert await one.page(first.job_id, 0, 5)  # still its own
        for _ in range(4):  # in steps: a relay that was asleep for half a lease gives everybody a full one
            clock.pass_by(5 * SECOND_NS)
            await clock.ticks()
        second = await two.take()
        assert (second.job_id != first.job_id, minute(second.historical.start_time)) == (True, 5)
        await two.send(ingest.WorkComplete(job_id=second.job_id, success=True))
        await s.pipeline.report(
            snapshot_id=s.pipeline.write(range(10)),
            pages=[page(first.job_id, 0, 5), page(second.job_id, 5, 10)],
            finals=[final_of(second.job_id)],
        )
        assert (await s.finished("a")).row_count == 10
