"""The relay's triggers as processes that follow each other on one disk: registrations, changes, events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from dexorder_cep import compile_trigger, differences
from dexorder_common.model.errors import SuiteError
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.rpc.history_messages import encode_issued_dispatch
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_relay.config import RelaySettings
from dexorder_relay.engine import RelayEngine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.requests.context import Context
from dexorder_relay.service.triggers import TriggerReports, TriggerRpcs
from dexorder_relay.triggers.edits import TriggerEdits
from dexorder_relay.triggers.text_checks import Text
from dexorder_relay.triggers.triggers import RegisteredTriggers
from tests.simulation.disk import Disk
from tests.simulation.loop import Process
from tests.simulation.network import CallFailed, Handler
from tests.simulation.run import Run

VENUE = "SIM"
_METRICS = RelayMetrics(CollectorRegistry())
_SETTINGS = RelaySettings()


async def _periods(texts: Sequence[Text], _: str) -> list[int | SuiteError]:
    """Check texts in this process: no other one is in virtual time."""
    return [compile_trigger(sql, parameters).period_seconds for sql, parameters in texts]


async def _differences(old: Text, new: Text, _: str) -> list[str]:
    return list(differences(compile_trigger(*old), compile_trigger(*new)))


class Follower(Protocol):
    """The process that follows the changes."""

    process: Process
    inbox: asyncio.Queue[ppb.WatchTriggersResponse | None]


class TriggersRelay:
    """The relay; `start` it again after `kill`.

    Attributes:
        follower: Gets the changes of triggers.
        kills_at_next_call: Kill the process about the commit of the next call that writes.
        disk: Keeps its file.
        issued: Dispatches whose records count, by id.
    """

    def __init__(self, run: Run, dispatches: Sequence[IssuedDispatch]) -> None:
        self.run = run
        self.process = Process("relay")
        self.process.is_alive = False
        self.follower: Follower | None = None
        self.kills_at_next_call = False
        self.issued = {each.dispatch_id: each for each in dispatches}
        self._random = run.generator("relay")
        self.disk = Disk(run.generator("trigger disk"))
        self._stream = 0
        self._arrives_s = 0.0

    def start(self) -> None:
        """Start a process on the disk as the last one has left it."""
        if not self.process.is_alive:
            self.process = Process("relay")
            self.run.note("relay: starts")
            self.run.loop.spawn(self.process, self._main())

    def kill(self) -> None:
        """End the process; what it has not synced is lost."""
        if self.process.is_alive:
            self.run.note("relay: killed")
            self.run.loop.kill(self.process)
            self._stream += 1
            if self.follower:
                self.follower.inbox.put_nowait(None)

    def restore(self) -> None:
        """Replace the file by its earlier copy."""
        self.run.note("relay: the file is replaced by an older copy")
        self.disk.restore()

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a query over what is durable."""
        return self.disk.rows(sql, *values)

    async def _main(self) -> None:
        clock = self.run.clock(self.process)
        store = self.disk.store(self.process, clock.wall_ns())
        nothing = cast(Any, None)
        context = Context(_SETTINGS, frozenset({VENUE}), nothing, store, nothing, clock, _METRICS)
        triggers = RegisteredTriggers(context, nothing, _periods)
        engine = cast(
            RelayEngine,
            SimpleNamespace(context=context, triggers=triggers, edits=TriggerEdits(context, triggers, _differences)),
        )
        rpcs, reports = TriggerRpcs(engine), TriggerReports(engine)
        self._serve("RegisterTrigger", rpcs.RegisterTrigger, writes=True)
        self._serve("RegisterTriggers", rpcs.RegisterTriggers, writes=True)
        self._serve("EditTrigger", rpcs.EditTrigger, writes=True)
        self._serve("PauseTrigger", rpcs.PauseTrigger, writes=True)
        self._serve("ResumeTrigger", rpcs.ResumeTrigger, writes=True)
        self._serve("DeleteTrigger", rpcs.DeleteTrigger, writes=True)
        self._serve("ListTriggers", rpcs.ListTriggers)
        self._serve("ReportTriggerEvents", reports.ReportTriggerEvents, writes=True)
        self._serve("DescribeDispatches", self._describe)
        self._serve("WatchTriggers", lambda request, _: self._watch(reports, request))
        await store.failed

    def _serve(self, method: str, rpc: Callable[[Any, object], Awaitable[Message]], *, writes: bool = False) -> None:
        async def handle(request: Any) -> Message:
            if writes and self.kills_at_next_call:
                self.kills_at_next_call = False
                self.run.loop.call_later(self._random.uniform(0.0, 0.03), self.kill)
            try:
                answer = await rpc(request, None)
                if isinstance(request, ppb.ReportTriggerEventsRequest) and request.events:
                    self.run.note(f"relay: has {', '.join(each.event_id for each in request.events)}")
                return answer
            except SuiteError as error:
                raise CallFailed(grpc.StatusCode[error.code.name], str(error)) from error

        handler: Handler = handle
        self.run.network.serve(self.process, method, handler)

    async def _describe(self, request: ppb.DescribeDispatchesRequest, _: object) -> ppb.DescribeDispatchesResponse:
        known = [self.issued[each] for each in request.job_ids if each in self.issued]
        return ppb.DescribeDispatchesResponse(dispatches=map(encode_issued_dispatch, known))

    async def _watch(self, reports: TriggerReports, request: ppb.WatchTriggersRequest) -> ppb.WatchTriggersResponse:
        assert self.follower
        self._stream += 1
        self._pump = asyncio.ensure_future(self._answer(reports, request, self._stream, self.follower.inbox))
        return ppb.WatchTriggersResponse()

    async def _answer(
        self,
        reports: TriggerReports,
        request: ppb.WatchTriggersRequest,
        stream: int,
        inbox: asyncio.Queue[ppb.WatchTriggersResponse | None],
    ) -> None:
        """Send the answers of one stream in order, until the client opens another one or the link is cut."""
        loop, network = self.run.loop, self.run.network
        async for answer in reports.WatchTriggers(request, None):
            if self._stream != stream or frozenset(("relay", "triggers")) in network.weather.cut:
                return
            self._arrives_s = max(self._arrives_s, loop.time() + self._random.uniform(*network.weather.delay))
            copy = ppb.WatchTriggersResponse.FromString(answer.SerializeToString())
            loop.call_at(self._arrives_s, inbox.put_nowait, copy)
