"""Each call that is answered with "it is on disk" waits for its commit: while the disk takes nothing, nobody is told.

Submissions and dispatches have such tests in `requests/test_submitter.py`. A request's end is told by streams and
records that read the database, behind its commit; its trace is not, so it is looked at here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as udf_pb
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2_grpc as udf_rpc
from dexorder_relay import engine
from dexorder_relay.requests import completion
from dexorder_relay.store.writer import WriterThread
from tests.series_messages import series
from tests.unit.services.relay.harness import ERROR, TICKER, Suite, at, page, suite
from tests.unit.services.relay.realtime.worker import at_work, resume, start, subscription
from tests.unit.services.relay.requests.test_instruments import market
from tests.unit.services.relay.triggers.test_trigger_rpc import register

Call = Callable[[], Awaitable[Any]]
MINUTE_NS = 60 * SECOND_NS


class Disk:
    """Takes commits until `hold`; from then on none after so many, until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._released = threading.Event(), threading.Event()
        self._patch = monkeypatch
        monkeypatch.setattr(engine, "TICK_SECONDS", 3_600)  # nothing else writes

    def hold(self, after: int = 0) -> None:
        run, left = WriterThread._run, after

        def held_back(writer: WriterThread, group: list[Any]) -> None:
            nonlocal left
            writes = sum(work.writes for work in group)
            if writes > left:
                self.reached.set()
                assert self._released.wait(60)
            left -= writes
            run(writer, group)

        self._patch.setattr(WriterThread, "_run", held_back)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def start_realtime(s: Suite) -> Awaitable[Any]:
    wanted = realtime_pb.StartRealtimeRequest(subscription=subscription("a"))
    answer: Awaitable[Any] = s.relay.realtime.StartRealtime(wanted)
    return answer


async def other_subscribed(s: Suite) -> Call:
    await start(s, "b")  # what the relay writes at its start is on disk then
    return lambda: start_realtime(s)


async def subscribed(s: Suite) -> Call:
    await start(s, "a")
    return lambda: start_realtime(s)


async def to_unsubscribe(s: Suite) -> Call:
    await start(s, "a")
    return lambda: s.relay.realtime.StopRealtime(realtime_pb.StopRealtimeRequest(subscription_id="a"))


async def candles_in_kafka(s: Suite) -> Call:
    _, sent = await at_work(s, 60)
    open_ns = (await resume(s, sent.job_id)).candles[0].start_ns
    report = ipb.RealtimeReport(
        job_id=sent.job_id, series=series(TICKER, 60), start_ns=open_ns, end_ns=open_ns + MINUTE_NS
    )
    return lambda: s.ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=[report]))


async def candles_in_the_table(s: Suite) -> Call:
    _, sent = await at_work(s, 60)
    open_ns = (await resume(s, sent.job_id)).candles[0].start_ns
    landed = ppb.PageResult(job_id=sent.job_id, series=series(TICKER, 60), start_ns=open_ns, end_ns=open_ns + MINUTE_NS)
    return lambda: s.pipeline.report(pages=[landed])


async def page_in_kafka(s: Suite) -> Call:
    ingestor, sent = await s.dispatched("r", 0, 10)
    return lambda: ingestor.page(sent.job_id, 0, 10)


async def page_in_the_table(s: Suite) -> Call:
    _, sent = await s.dispatched("r", 0, 10)
    s.pipeline.write(range(10))
    return lambda: s.pipeline.report(pages=[page(sent.job_id, 0, 10)])


async def instruments(s: Suite) -> Call:
    await start(s, "b")
    listed = ipb.ReportInstrumentsRequest(exchange="SIM", instruments=[market("A/Q")], fetched_ns=at(0))
    return lambda: s.ingestors.ReportInstruments(listed)


async def udf_to_start(s: Suite) -> Call:
    await start(s, "b")
    wanted = udf_pb.StartUdfRequest(udf=udf_pb.Udf(name="mine", program="average"))
    return lambda: udf_rpc.UdfRegistryServiceStub(s.channel).StartUdf(wanted)


async def udf_that_runs(s: Suite) -> Call:
    call = await udf_to_start(s)
    await call()
    return call


async def udf_to_stop(s: Suite) -> Call:
    await (await udf_to_start(s))()
    return lambda: udf_rpc.UdfRegistryServiceStub(s.channel).StopUdf(udf_pb.StopUdfRequest(name="mine"))


async def trigger_to_register(s: Suite) -> Call:
    await start(s, "b")
    return lambda: register(s, "t")


async def trigger_to_delete(s: Suite) -> Call:
    await register(s, "t")
    return lambda: s.relay.trigger.DeleteTrigger(trigger_pb.DeleteTriggerRequest(trigger_id="t"))


CASES: list[tuple[Callable[[Suite], Awaitable[Call]], int]] = [
    (other_subscribed, 0),
    (subscribed, 0),
    (to_unsubscribe, 0),
    (candles_in_kafka, 0),
    (candles_in_the_table, 1),  # behind the commit for the jobs of history
    (page_in_kafka, 0),
    (page_in_the_table, 0),
    (instruments, 0),
    (udf_to_start, 0),
    (udf_that_runs, 0),
    (udf_to_stop, 0),
    (trigger_to_register, 0),
    (trigger_to_delete, 0),
]


@pytest.mark.parametrize(("prepare", "commits_before"), CASES, ids=[prepare.__name__ for prepare, _ in CASES])
async def test_call_is_answered_after_its_commit(
    prepare: Callable[[Suite], Awaitable[Call]], commits_before: int, tmp_path: Path, disk: Disk
) -> None:
    async with suite(tmp_path) as s:
        call = await prepare(s)
        disk.hold(commits_before)
        answer = asyncio.ensure_future(call())
        try:
            assert await asyncio.to_thread(disk.reached.wait, 60)
            answered, _ = await asyncio.wait({answer}, timeout=0.3)
            assert not answered
        finally:
            disk.release()
        await answer


async def test_the_end_of_a_request_is_told_after_its_commit(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(completion, "record_request", lambda *_, **__: told.append("trace"))
    async with suite(tmp_path) as s:
        await s.queued("r", 0, 10)
        disk.hold()
        cancelled = asyncio.ensure_future(
            s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="r"))
        )
        finished = asyncio.ensure_future(s.finished("r"))
        notified = asyncio.ensure_future(s.notification("HISTORY_READY:r"))
        try:
            assert await asyncio.to_thread(disk.reached.wait, 60)
            ended, _ = await asyncio.wait({cancelled, finished, notified}, timeout=0.3)
            assert not ended and not told
        finally:
            disk.release()
        assert (await cancelled).record.state == history_pb.REQUEST_STATE_FINISHED
        assert (await finished).status == ERROR and await notified
        assert told == ["trace"]
