"""Scripted relay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from dexorder_common.model.datasets import DATASETS
from dexorder_common.model.server_info import CAPABILITIES
from dexorder_common.packages import version
from dexorder_protos.dexorder.api.v1.annotations_pb2 import STABILITY_STABLE
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb2
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as triggers_pb2
from dexorder_protos.dexorder.server.v1 import server_info_service_pb2 as server_pb
from dexorder_protos.dexorder.server.v1.server_info_service_pb2_grpc import (
    ServerInfoServiceServicer,
    add_ServerInfoServiceServicer_to_server,
)
from tests.fakes.candle_table import HOURS, START
from tests.fakes.relay_servicer import RelayServicer, add_relay_services

Notify = ingest_pb2.HistoryReadyNotification
NO_ROOM = "client_id '': too many unfinished requests"
EPOCH = "epoch-1"
"""Of the cursors of notifications."""


@dataclass
class FakeRelay:
    """State and answers of the relay; tests change the fields.

    Attributes:
        ends: The record every submitted request gets at its end.
        refuse: error_message of an INVALID answer; empty accepts.
        token: What a submission must be sent with; empty asks for none.
        no_room: So many submissions are refused because the caller's quota is used up.
        unavailable: So many calls are refused as UNAVAILABLE first.
        crowded: So many streams are refused because the caller has too many open.
        break_streams: So many streams break before their first message.
        break_after_answers: So many batches break after their answers.
        batches: Number of requests in each batch.
        silent: The notification never comes, though the record ends.
        stuck: Nothing ends.
        stuck_tickers: Requests of these do not end.
        ends_of: The record at the end for requests of these tickers, instead of ``ends``.
        refuse_tickers: Tickers that are answered INVALID, with the sentence.
        markets: What ListInstruments answers by exchange, in pages.
        coverage: What StreamCoverage answers, one after the other.
        verified: What VerifyCoverage and RepairCoverage answer, one after the other.
        asked: What else was asked of the relay than requests.
        subscriptions: Realtime subscriptions by id; None for one that was stopped.
        jobs: What ListRealtime answers beside them.
        live: What WatchMarketData answers, one list for each stream that is opened; then nothing more comes.
        realtime_page: Subscriptions in a page of ListRealtime.
        missing_calls: RPCs that this relay does not have, as one of another version.
        info: What GetServerInfo answers.
        info_calls: So many times it was called.
    """

    properties: dict[str, str]
    ends: history_pb.RequestRecord
    refuse: str = ""
    token: str = ""
    no_room: int = 0
    unavailable: int = 0
    crowded: int = 0
    break_streams: int = 0
    break_after_answers: int = 0
    silent: bool = False
    stuck: bool = False
    stuck_tickers: set[str] = field(default_factory=set)
    ends_of: dict[str, history_pb.RequestRecord] = field(default_factory=dict)
    refuse_tickers: dict[str, str] = field(default_factory=dict)
    markets: dict[str, history_pb.ListInstrumentsResponse] = field(default_factory=dict)
    coverage: list[coverage_pb.StreamCoverageResponse] = field(default_factory=list)
    verified: list[coverage_pb.VerifyCoverageResponse] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    subscriptions: dict[str, realtime_pb2.RealtimeSubscription | None] = field(default_factory=dict)
    jobs: list[realtime_pb2.RealtimeJob] = field(default_factory=list)
    live: list[list[realtime_pb2.WatchMarketDataResponse]] = field(default_factory=list)
    realtime_page: int = 1_000
    missing_calls: set[str] = field(default_factory=set)
    info: server_pb.GetServerInfoResponse = field(default_factory=lambda: relay_info(version()))
    info_calls: int = 0
    submitted: list[ingest_pb2.SubmitHistoricalRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)
    """Ids of the requests of which progress was asked."""
    cancelled: list[str] = field(default_factory=list)
    address: str = ""
    name: str = "dexorder"

    def record(self, request_id: str) -> history_pb.RequestRecord | None:
        for request in self.submitted:
            if request.request_id == request_id:
                record = history_pb.RequestRecord()
                record.CopyFrom(self.ends_of.get(request.ticker, self.ends))
                if request.ticker.startswith("*."):
                    record.snapshot.request_id, record.snapshot.exchange = request_id, request.ticker[2:]
                else:
                    record.request.CopyFrom(request)
                record.notification_topic = f"HISTORY_READY:{request_id}"
                if self.held(request.ticker):
                    record.state = history_pb.REQUEST_STATE_RUNNING
                    record.ClearField("status")
                return record
        return None

    def held(self, ticker: str) -> bool:
        return self.stuck or ticker in self.stuck_tickers


def relay_info(of_version: str) -> server_pb.GetServerInfoResponse:
    """Return the answer of a relay of a version that has all that this one has."""
    return server_pb.GetServerInfoResponse(
        part="relay",
        version=of_version,
        services=[server_pb.ServedService(name="dexorder.relay.v1.HistoryService", stability=STABILITY_STABLE)],
        datasets=[each.name for each in DATASETS],
        capabilities=sorted(CAPABILITIES),
        limits=[server_pb.ServerLimit(name="max_request_periods", value=200_000_000)],
    )


class _Servicer(RelayServicer, ServerInfoServiceServicer):
    def __init__(self, fake: FakeRelay) -> None:
        self.fake = fake

    async def _gate(self, context: Any) -> None:
        if self.fake.token and ("authorization", f"Bearer {self.fake.token}") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")
        if self.fake.unavailable:
            self.fake.unavailable -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    async def _record(self, request_id: str, context: Any) -> history_pb.RequestRecord:
        record = self.fake.record(request_id)
        if record is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"request_id {request_id!r} is unknown")
        assert record is not None
        return record

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        self.fake.info_calls += 1
        return self.fake.info

    async def SubmitHistorical(self, request: Any, context: Any) -> Any:
        return history_pb.SubmitHistoricalResponse(answer=await self._submit(request, context))

    async def SubmitHistoricalBatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        await self._break(context)
        self.fake.batches.append(len(request.requests))
        accepted, answers = [], []
        for each in request.requests:
            if self.fake.no_room:
                self.fake.no_room -= 1
                answer = ingest_pb2.SubmitResponse(
                    request_id=each.request_id, status=ingest_pb2.SubmitResponse.ERROR, error_message=NO_ROOM
                )
                answers.append(history_pb.BatchAnswer(answer=answer, over_quota=True))
                continue
            answers.append(history_pb.BatchAnswer(answer=self._answer(each)))
            if answers[-1].answer.notification_topic:
                accepted.append(await self._record(each.request_id, context))
        yield history_pb.SubmitHistoricalBatchResponse(answers=answers)
        if self.fake.break_after_answers:
            self.fake.break_after_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        for record in accepted:
            if request.with_progress:
                self.fake.watched.append(record.request.request_id)
                yield history_pb.SubmitHistoricalBatchResponse(
                    progress=[
                        history_pb.RequestProgress(
                            request_id=record.request.request_id,
                            state=history_pb.REQUEST_STATE_RUNNING,
                            progress=history_pb.Progress(expected_periods=record.progress.expected_periods, jobs=1),
                        )
                    ]
                )
            if not self.fake.held(record.request.ticker):
                yield history_pb.SubmitHistoricalBatchResponse(ended=[record])
        if any(self.fake.held(record.request.ticker) for record in accepted):
            await asyncio.Event().wait()

    async def _submit(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        if self.fake.no_room:
            self.fake.no_room -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, NO_ROOM)
        return self._answer(request)

    def _answer(self, request: Any) -> Any:
        answer = ingest_pb2.SubmitResponse
        if refusal := self.fake.refuse_tickers.get(request.ticker, self.fake.refuse):
            return answer(request_id=request.request_id, status=answer.INVALID, error_message=refusal)
        known = request in self.fake.submitted
        if not known:
            self.fake.submitted.append(request)
        return answer(
            request_id=request.request_id,
            status=answer.DUPLICATE if known else answer.QUEUED,
            notification_topic=f"HISTORY_READY:{request.request_id}",
        )

    async def RefreshHistorical(self, request: Any, context: Any) -> Any:
        self.fake.asked.append(request)
        return operator_pb.RefreshHistoricalResponse(answer=await self._submit(request.request, context))

    async def GetRequest(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        return history_pb.GetRequestResponse(record=await self._record(request.request_id, context))

    async def ListRequests(self, request: Any, context: Any) -> Any:
        found = [await self._record(r.request_id, context) for r in reversed(self.fake.submitted)]
        found = [
            record
            for record in found
            if request.client_id in ("", record.request.client_id) and request.state in (0, record.state)
        ]
        first = int(request.page_token or 0)
        chosen = found[first : first + request.page_size]
        more = first + len(chosen) < len(found)
        return history_pb.ListRequestsResponse(records=chosen, next_page_token=str(first + len(chosen)) if more else "")

    async def CancelRequest(self, request: Any, context: Any) -> Any:
        self.fake.cancelled.append(request.request_id)
        return history_pb.CancelRequestResponse(record=await self._record(request.request_id, context))

    async def GetCatalog(self, request: Any, context: Any) -> Any:
        return rows_pb.GetCatalogResponse(name=self.fake.name, properties=self.fake.properties)

    async def ListInstruments(self, request: Any, context: Any) -> Any:
        if request.exchange not in self.fake.markets:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no ingestor has reported markets of {request.exchange!r}")
        page = history_pb.ListInstrumentsResponse()
        page.CopyFrom(self.fake.markets[request.exchange])
        found, first = list(page.instruments), int(request.page_token or 0)
        last = first + (request.page_size or 100)
        del page.instruments[:]
        page.instruments.extend(found[first:last])
        page.next_page_token = str(last) if last < len(found) else ""
        return page

    async def StreamCoverage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        self.fake.asked.append(request)
        for answer in self.fake.coverage:
            yield answer

    async def VerifyCoverage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        self.fake.asked.append(request)
        for answer in self.fake.verified:
            yield answer

    async def RepairCoverage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._gate(context)
        self.fake.asked.append(request)
        for answer in self.fake.verified:
            yield operator_pb.RepairCoverageResponse.FromString(answer.SerializeToString())  # the same fields

    def StreamOhlc(self, request: Any, context: Any) -> Any:
        raise NotImplementedError("our clients read from Iceberg")

    async def WatchProgress(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.fake.watched.append(request.request_id)
        await self._break(context)
        record = await self._record(request.request_id, context)
        expected = record.progress.expected_periods
        for settled in (0, expected // 2):
            progress = history_pb.Progress(expected_periods=expected, settled_periods=settled, expected_pages=2, jobs=1)
            yield history_pb.WatchProgressResponse(state=history_pb.REQUEST_STATE_RUNNING, progress=progress)
        if self.fake.held(record.request.ticker):
            await asyncio.Event().wait()
        yield history_pb.WatchProgressResponse(state=history_pb.REQUEST_STATE_FINISHED, progress=record.progress)

    async def WatchNotifications(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._break(context)
        kind, _, request_id = request.topic.partition(":")
        record = self.fake.record(request_id)
        assert kind == "HISTORY_READY"
        yield self._opened(request)
        if self.fake.silent or record is None or self.fake.held(record.request.ticker):
            await asyncio.Event().wait()
        assert record is not None
        note = Notify(
            request_id=request_id,
            status=record.status,
            error_message=record.error_message,
            iceberg_namespace="trading",
            iceberg_table="ohlc",
            row_count=record.row_count,
        )
        yield history_pb.WatchNotificationsResponse(
            notification=history_pb.Notification(cursor=common_pb2.Cursor(epoch=EPOCH, sequence=7), ready=note)
        )
        await asyncio.Event().wait()

    async def StartRealtime(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        asked = request.subscription
        known = self.fake.subscriptions.get(asked.subscription_id, asked)
        if known != asked:
            name = asked.subscription_id
            text = f"subscription_id {name!r} was used for another subscription, or for one that was stopped"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        duplicate = asked.subscription_id in self.fake.subscriptions
        self.fake.subscriptions[asked.subscription_id] = asked
        return realtime_pb2.StartRealtimeResponse(duplicate=duplicate)

    async def StopRealtime(self, request: Any, context: Any) -> Any:
        if request.subscription_id not in self.fake.subscriptions:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"subscription_id {request.subscription_id!r} is unknown")
        self.fake.subscriptions[request.subscription_id] = None
        return realtime_pb2.StopRealtimeResponse()

    async def ListRealtime(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        found = [
            realtime_pb2.StartedSubscription(subscription=each, started_ns=START)
            for each in self.fake.subscriptions.values()
            if each and request.client_id in ("", each.client_id) and request.ticker in ("", each.ticker)
        ]
        first = int(request.page_token or 0)
        chosen = found[first : first + self.fake.realtime_page]
        more = first + len(chosen) < len(found)
        token = str(first + len(chosen)) if more else ""
        return realtime_pb2.ListRealtimeResponse(subscriptions=chosen, jobs=self.fake.jobs, next_page_token=token)

    async def ListTriggers(self, request: Any, context: Any) -> Any:
        await self._gate(context)
        return triggers_pb2.ListTriggersResponse()

    async def BacktestTrigger(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Answer that nothing is stored of the markets."""
        await self._gate(context)
        markets = [triggers_pb2.BacktestMarket(ticker=each) for each in request.trigger.tickers]
        yield triggers_pb2.BacktestTriggerResponse(markets=markets, period_seconds=60)

    async def SnapshotTickers(self, request: Any, context: Any) -> Any:
        submitted = ingest_pb2.SubmitHistoricalRequest(
            request_id=request.request_id, ticker=f"*.{request.exchange}", client_id=request.client_id or None
        )
        return history_pb.SnapshotTickersResponse(answer=await self._submit(submitted, context))

    async def WatchMarketData(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._break(context)
        self.fake.asked.append(request)
        for answer in self.fake.live.pop(0) if self.fake.live else ():
            yield answer
        if not self.fake.live:
            await asyncio.Event().wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    def _opened(self, request: Any) -> history_pb.WatchNotificationsResponse:
        """Return the first answer: it continues after the cursor, or is a reset if that is of another log."""
        is_known = request.after.epoch in ("", EPOCH)
        cursor = common_pb2.Cursor(epoch=EPOCH, sequence=request.after.sequence if is_known else 0)
        start = common_pb2.StreamStart(cursor=cursor, oldest_sequence=7)
        if is_known:
            return history_pb.WatchNotificationsResponse(opened=start)
        return history_pb.WatchNotificationsResponse(reset=start)

    async def _break(self, context: Any) -> None:
        if self.fake.crowded:
            self.fake.crowded -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "open_streams would be 3")
        if self.fake.break_streams:
            self.fake.break_streams -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")


def ended(status: Any, *, rows: int = 0, snapshot: int | None = None, **more: Any) -> history_pb.RequestRecord:
    """Return a finished record; the fake adds the request."""
    progress = history_pb.Progress(expected_periods=HOURS, settled_periods=HOURS, candles=rows, jobs=1, finished_jobs=1)
    return history_pb.RequestRecord(
        state=history_pb.REQUEST_STATE_FINISHED,
        status=status,
        row_count=rows,
        snapshot_id=snapshot,
        progress=progress,
        **more,
    )


class _Missing(grpc.aio.ServerInterceptor):
    """Answers calls that the fake does not have with UNIMPLEMENTED, as gRPC does for unknown methods."""

    def __init__(self, fake: FakeRelay) -> None:
        self.fake = fake

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        return None if name in self.fake.missing_calls else await continuation(handler_call_details)


@contextmanager
def serving(relay: FakeRelay) -> Iterator[None]:
    """Serve the fake on a free port in a thread, and set its ``address``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=(_Missing(relay),))
        servicer = _Servicer(relay)  # type: ignore[abstract]  # the others: UNIMPLEMENTED
        add_relay_services(server, servicer)
        add_ServerInfoServiceServicer_to_server(servicer, server)
        relay.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
