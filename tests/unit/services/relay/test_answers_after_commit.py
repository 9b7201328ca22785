"""Each call that is answered with "it is on disk" waits for its commit: while the disk takes nothing, nobody is told.

Submissions and dispatches have such tests in `requests/test_submitter.py`. A request's end is told by streams and
records that read the database, behind its commit; its trace is not, so it is looked at here. `PLACES` has each commit
in the relay's code with what is told after it.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import dexorder_relay
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
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
from tests.unit.services.relay.triggers.test_many_triggers import entry, register_many
from tests.unit.services.relay.triggers.test_trigger_rpc import event, register

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


async def registered(s: Suite) -> None:
    """Register a trigger, and wait for the subscription that follows: its commit is not the one to hold."""
    await register(s, "t")
    while not (await s.relay.realtime.ListRealtime(realtime_pb.ListRealtimeRequest())).subscriptions:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def trigger_events(s: Suite) -> Call:
    await registered(s)
    (known,) = (await s.relay.trigger.ListTriggers(trigger_pb.ListTriggersRequest())).triggers
    fired = event("e", known.registration)
    return lambda: s.pipeline.stub.ReportTriggerEvents(ppb.ReportTriggerEventsRequest(events=[fired]))


async def coverage_to_repair(s: Suite) -> Call:
    _, sent = await s.dispatched("r", 0, 10)
    s.pipeline.write(range(9))
    await s.pipeline.report(pages=[page(sent.job_id, 0, 10)])
    wanted = operator_pb.RepairCoverageRequest(series=series(TICKER, 60), start_ns=at(0), end_ns=at(10))

    async def repaired() -> None:
        async for answer in s.relay.operator.RepairCoverage(wanted):
            if answer.HasField("result"):
                return
        raise AssertionError("the stream has no result")

    return repaired


async def trigger_to_register(s: Suite) -> Call:
    await start(s, "b")
    return lambda: register(s, "t")


async def triggers_to_register(s: Suite) -> Call:
    await start(s, "b")
    return lambda: register_many(s.relay, [entry("t"), entry("u")])


async def trigger_to_delete(s: Suite) -> Call:
    await registered(s)
    return lambda: s.relay.trigger.DeleteTrigger(trigger_pb.DeleteTriggerRequest(trigger_id="t"))


async def trigger_to_pause(s: Suite) -> Call:
    await registered(s)
    return lambda: s.relay.trigger.PauseTrigger(trigger_pb.PauseTriggerRequest(trigger_id="t"))


async def trigger_to_edit(s: Suite) -> Call:
    await registered(s)
    edit = trigger_pb.EditTriggerRequest(trigger_id="t", parameters={"cooldown": "5"})
    return lambda: s.relay.trigger.EditTrigger(edit)


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
    (triggers_to_register, 0),
    (trigger_to_delete, 0),
    (trigger_to_pause, 0),
    (trigger_to_edit, 0),
    (trigger_events, 0),
    (coverage_to_repair, 0),
]
AFTER, SUBMITTER = "test_call_is_answered_after_its_commit[{}]", "requests/test_submitter.py::{}"
QUIET = "test_quiet_commits.py::test_nothing_follows_from_a_commit_that_is_held_back[{}]"
ORDER = "nobody is told, and what follows from it is given to the writer behind it"
PLACES = {
    "broker/dispatcher.py JobDispatcher.run await": SUBMITTER.format("test_a_dispatch_is_on_disk_before_it_is_sent"),
    "broker/dispatcher.py JobDispatcher._send": ORDER,
    "broker/dispatcher.py JobDispatcher.complete": ORDER,
    "broker/dispatcher.py JobDispatcher.give_back": ORDER,
    "broker/upkeep.py Upkeep._plan_on await": QUIET.format("plan"),
    "realtime/jobs.py RealtimeJobs.start await": AFTER.format("subscribed"),
    "realtime/jobs.py RealtimeJobs.start await 2": AFTER.format("other_subscribed"),
    "realtime/jobs.py RealtimeJobs.stop await": AFTER.format("to_unsubscribe"),
    "realtime/jobs.py RealtimeJobs.resume": ORDER,
    "realtime/jobs.py RealtimeJobs.report await": AFTER.format("candles_in_kafka"),
    "realtime/jobs.py RealtimeJobs.landed await": AFTER.format("candles_in_the_table"),
    "realtime/jobs.py RealtimeJobs.tick await": ORDER,
    "realtime/jobs.py RealtimeJobs._repeat_history await": QUIET.format("history"),
    "realtime/jobs.py RealtimeJobs._submit_history await": ORDER,
    "requests/completion.py Completion._decide await": QUIET.format("wave"),
    "requests/completion.py Completion._cut_short await": "test_the_end_of_a_request_is_told_after_its_commit",
    "requests/completion.py Completion._finish await": "test_the_end_of_a_request_is_told_after_its_commit",
    "requests/instruments.py Instruments.report await": AFTER.format("instruments"),
    "requests/jobs.py HistoryJobs.report_page await": AFTER.format("page_in_kafka"),
    "requests/jobs.py HistoryJobs.report_jobs await": AFTER.format("page_in_the_table"),
    "requests/outcome.py OutcomeDecider._replace await": QUIET.format("claim"),
    "requests/submitter.py Submitter._refetch await": AFTER.format("coverage_to_repair"),
    "requests/submitter.py Submitter._accept": SUBMITTER.format("test_queued_is_on_disk_before_it_is_answered"),
    "service/udfs.py UdfRpcs.StartUdf await": AFTER.format("udf_to_start"),
    "service/udfs.py UdfRpcs.StopUdf await": AFTER.format("udf_to_stop"),
    "start.py load await": "the relay serves when it has loaded",
    "triggers/alerts.py AlertSender._send_some await": ORDER,
    "triggers/edits.py TriggerEdits.edit await": AFTER.format("trigger_to_edit"),
    "triggers/triggers.py RegisteredTriggers._accept await": AFTER.format("trigger_to_register"),
    "triggers/triggers.py RegisteredTriggers.pause await": AFTER.format("trigger_to_pause"),
    "triggers/triggers.py RegisteredTriggers.delete await": AFTER.format("trigger_to_delete"),
    "triggers/triggers.py RegisteredTriggers.report await": AFTER.format("trigger_events"),
    "verification/rechecker.py Rechecker._second_look await": QUIET.format("look"),
}
"""Each call of ``store.commit`` and ``store.write``, whether it is awaited there, and the test that holds it back."""


class Commits(ast.NodeVisitor):
    """Finds the places of a module, as `PLACES` names them."""

    def __init__(self, module: str) -> None:
        self.found: list[str] = []
        self._module, self._names = module, list[str]()
        self._awaited = set[ast.AST]()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._awaited.add(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] in ("commit", "write") and called.split(".")[-2].endswith("store"):
            place = f"{self._module} {'.'.join(self._names)}{' await' * (node in self._awaited)}"
            again = sum(each == place or each.startswith(f"{place} ") for each in self.found)
            self.found.append(f"{place} {again + 1}" if again else place)
        self.generic_visit(node)

    def _inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()


def test_every_commit_of_the_relay_has_a_test_in_which_it_is_held_back() -> None:
    package, found = Path(dexorder_relay.__file__).parent, list[str]()
    for path in sorted(package.rglob("*.py")):
        commits = Commits(str(path.relative_to(package)))
        commits.visit(ast.parse(path.read_text()))
        found += commits.found
    assert sorted(found) == sorted(PLACES)
    here = Path(__file__)
    for test in set(PLACES.values()) - {ORDER, PLACES["start.py load await"]}:
        other, _, name = test.rpartition("::")
        name, _, case = name.partition("[")
        text, case = (here.parent / other if other else here).read_text(), case.rstrip("]")
        assert f"async def {name}(" in text
        assert not case or f"async def {case}(" in text or f'"{case}": (' in text


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
        again = asyncio.ensure_future(s.relay.history.CancelRequest(history_pb.CancelRequestRequest(request_id="r")))
        finished = asyncio.ensure_future(s.finished("r"))
        notified = asyncio.ensure_future(s.notification("HISTORY_READY:r"))
        try:
            assert await asyncio.to_thread(disk.reached.wait, 60)
            ended, _ = await asyncio.wait({cancelled, again, finished, notified}, timeout=0.3)
            assert not ended and not told
        finally:
            disk.release()
        assert (await cancelled).record.state == history_pb.REQUEST_STATE_FINISHED
        assert (await again).record.state == history_pb.REQUEST_STATE_FINISHED
        assert (await finished).status == ERROR and await notified
        assert told == ["trace"]
