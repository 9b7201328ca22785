"""The broker's side of port 5567 on a real ROUTER: offers, losses, repeats, rejects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq.asyncio
from prometheus_client import CollectorRegistry

from dexorder_common.clock import SystemClock
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.dispatches import AnyDispatch, StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import FAST, minutes
from tests.unit.services.ingestor.fakes import FakeBroker, dispatch, history_slots

SPAN = minutes(0, 10)


@dataclass
class Stage:
    """A worker whose jobs end when the test says so."""

    context: zmq.asyncio.Context
    broker: FakeBroker
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ends: dict[str, asyncio.Future[DispatchEnd | None]] = field(default_factory=dict)
    fetched: dict[str, Callable[[], None]] = field(default_factory=dict)
    started: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    connected: list[bool] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    async def run_job(self, job: AnyDispatch, stop: StopSignal, fetched: Callable[[], None]) -> DispatchEnd | None:
        self.fetched[job.dispatch_id] = fetched
        self.ends[job.dispatch_id] = asyncio.get_running_loop().create_future()
        self.started.put_nowait(job.dispatch_id)
        return await self.ends[job.dispatch_id]

    async def on_connected(self, there: bool) -> None:
        self.connected.append(there)
        if not there:
            self.lost.set()

    def end(self, job_id: str, *, success: bool = True, message: str = "") -> None:
        self.ends[job_id].set_result(DispatchEnd(job_id, success=success, message=message))

    async def begin(self, job_id: str) -> bytes:
        """Send a dispatch for the next offer, and wait until it runs; return the worker's identity."""
        ((identity, _),) = await self.broker.offers(1)
        await self.broker.send(identity, dispatch(job_id, SPAN))
        assert await self.started.get() == job_id
        return identity

    async def restart_broker(self) -> None:
        self.broker.close()
        self.broker = await FakeBroker.at(self.context, self.broker.address)


@asynccontextmanager
async def staged(slots: int = 2, **settings: Any) -> AsyncIterator[Stage]:
    with zmq.asyncio.Context() as context:
        stage = Stage(context, FakeBroker(context))
        values = {**FAST, "broker": stage.broker.address, "drain_seconds": 0, **settings}
        worker = BrokerConnection(
            IngestorSettings(**values),
            history_slots(slots, repeat_ns=60_000_000_000),
            stage.run_job,
            IngestorMetrics(stage.registry),
            SystemClock(),
            on_connected=stage.on_connected,
        )
        task = asyncio.create_task(worker.run(stage.stop))
        try:
            yield stage
        finally:
            stage.stop.set()
            await task
            stage.broker.close()


def closed_address(context: zmq.asyncio.Context) -> str:
    """Return the address of a broker that is not there."""
    broker = FakeBroker(context)
    broker.close()
    return broker.address


async def test_one_offer_a_free_slot_each_for_one_exchange() -> None:
    async with staged(slots=3) as stage:
        offers = await stage.broker.offers(3)
        assert len({identity for identity, _ in offers}) == 1
        assert all((list(o.exchanges), o.job_type) == (["SIM"], pb.HISTORICAL) for _, o in offers)


async def test_completion_comes_before_the_slot_is_offered_again() -> None:
    async with staged(slots=1) as stage:
        await stage.begin("j1")
        stage.end("j1", success=False, message="no gateway")
        _, complete = await stage.broker.wait_for(pb.WorkComplete)
        assert (complete.job_id, complete.success, complete.error_message) == ("j1", False, "no gateway")
        assert not [m for _, m in stage.broker.heard[1:] if isinstance(m, pb.WorkerReady)]
        await stage.broker.offers(1)


async def test_after_a_loss_a_new_identity_says_everything_again() -> None:
    async with staged(slots=3) as stage:
        ((first, _), *_) = await stage.broker.offers(3)
        for job_id in ("j1", "j2"):
            await stage.broker.send(first, dispatch(job_id, SPAN))
            await stage.started.get()
        stage.end("j1")
        await stage.broker.wait_for(pb.WorkComplete, "j1")
        await stage.broker.offers(1)
        await stage.restart_broker()
        second, repeated = await stage.broker.wait_for(pb.WorkComplete)
        assert (repeated.job_id, repeated.success) == ("j1", True)
        assert second != first
        await stage.broker.wait_for(pb.WorkHeartbeat, "j2")
        assert {identity for identity, _ in await stage.broker.offers(2)} == {second}
        stage.end("j2")
        await stage.broker.wait_for(pb.WorkComplete, "j2")
        await stage.broker.offers(1)
        offers = [m for _, m in stage.broker.heard if isinstance(m, pb.WorkerReady)]
        assert len(offers) == 3
        assert stage.connected[:3] == [True, False, True]


async def test_a_slot_is_offered_while_its_dispatch_still_publishes() -> None:
    async with staged(slots=1) as stage:
        await stage.begin("j1")
        stage.fetched["j1"]()
        await stage.begin("j2")
        await stage.broker.wait_for(pb.WorkHeartbeat, "j1")
        await stage.restart_broker()
        await stage.broker.wait_for(pb.WorkHeartbeat, "j1")
        stage.end("j1")
        await stage.broker.wait_for(pb.WorkComplete, "j1")
        stage.end("j2")
        await stage.broker.wait_for(pb.WorkComplete, "j2")
        assert not [m for _, m in stage.broker.heard if isinstance(m, pb.WorkerReady)], "j2 held the only slot"
        await stage.broker.offers(1)


async def test_a_stop_waits_for_what_is_published() -> None:
    async with staged(slots=1, drain_seconds=60) as stage:
        await stage.begin("j1")
        stage.fetched["j1"]()
        await stage.broker.offers(1)
        stage.stop.set()
        stage.end("j1")
        _, complete = await stage.broker.wait_for(pb.WorkComplete, "j1")
        assert complete.success


async def test_job_that_ends_while_the_broker_is_away_is_completed_afterwards() -> None:
    async with staged(slots=1) as stage:
        await stage.begin("j1")
        address = stage.broker.address
        stage.broker.close()
        await stage.lost.wait()
        stage.end("j1")
        stage.broker = await FakeBroker.at(stage.context, address)
        _, complete = await stage.broker.wait_for(pb.WorkComplete)
        assert complete.job_id == "j1"
        await stage.broker.offers(1)


async def test_worker_that_starts_first_waits_for_the_broker() -> None:
    with zmq.asyncio.Context() as context:
        address = closed_address(context)
        async with staged(broker=address) as stage:
            late = await FakeBroker.at(context, address)
            assert len(await late.offers(2)) == 2
            assert stage.connected[-1]
            late.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ticker": "BTC/USDT.MOON"}, "exchange 'MOON' is not served by this ingestor; it serves SIM"),
        ({"ticker": "BTC"}, "ticker 'BTC'"),
        ({"type": pb.DataRequest.REALTIME_TICKS}, "realtime is missing"),
    ],
)
async def test_what_can_not_be_taken_is_rejected(change: dict[str, Any], reason: str) -> None:
    async with staged(slots=1) as stage:
        ((identity, _),) = await stage.broker.offers(1)
        request = dispatch("j1", SPAN)
        for name, value in change.items():
            setattr(request, name, value)
        await stage.broker.send(identity, request)
        _, reject = await stage.broker.wait_for(pb.WorkReject)
        assert reject.job_id == "j1"
        assert reason in reject.reason


async def test_dispatch_without_a_free_slot_is_rejected_and_a_second_copy_ignored() -> None:
    async with staged(slots=1) as stage:
        ((identity, _),) = await stage.broker.offers(1)
        for job_id in ("j1", "j1", "j2"):
            await stage.broker.send(identity, dispatch(job_id, SPAN))
        _, reject = await stage.broker.wait_for(pb.WorkReject)
        assert (reject.job_id, reject.reason) == ("j2", "no free slot for historical jobs of SIM")
        assert stage.started.qsize() == 1


async def test_garbage_and_stops_do_no_harm() -> None:
    async with staged(slots=1) as stage:
        ((identity, _),) = await stage.broker.offers(1)
        await stage.broker.send_raw(identity, b"\x02", b"\x24")
        await stage.broker.send_raw(identity, b"\x01", b"\x24\xff\xff")
        await stage.broker.send_raw(identity, b"\x01")
        await stage.broker.send(identity, pb.WorkComplete(job_id="j1"))
        await stage.broker.send(identity, pb.WorkStop(job_id="j1"))
        await stage.broker.send(identity, dispatch("j1", SPAN))
        assert await stage.started.get() == "j1"
        assert stage.registry.get_sample_value("dexorder_ingestor_dropped_frames_total") == 4


async def test_fault_of_a_job_hands_it_back_and_leaves_the_others_alone() -> None:
    async with staged(slots=2) as stage:
        for job_id in ("j1", "j2"):
            await stage.begin(job_id)
        stage.ends["j1"].set_exception(RuntimeError("a bug"))
        _, complete = await stage.broker.wait_for(pb.WorkComplete, "j1")
        assert (complete.success, complete.error_message) == (False, "internal error: RuntimeError")
        stage.end("j2")
        _, complete = await stage.broker.wait_for(pb.WorkComplete, "j2")
        assert complete.success


async def test_stop_without_a_broker_ends() -> None:
    with zmq.asyncio.Context() as context:
        async with staged(broker=closed_address(context)) as stage:
            stage.stop.set()
