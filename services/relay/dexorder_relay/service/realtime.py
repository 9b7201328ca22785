"""RPCs of realtime, for clients and for ingestors; ``services.py`` has the services that they belong to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.periods import check_period
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_common.rpc import realtime_messages as messages
from dexorder_common.rpc.identity import current_caller
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from dexorder_relay import access
from dexorder_relay.engine import RelayEngine
from dexorder_relay.realtime.control import CANCEL, Connected
from dexorder_relay.realtime.control import check as check_control
from dexorder_relay.realtime.live import Interest, LiveStream, SlowClientPolicy
from dexorder_relay.requests.queries import fitting, page_size, read_token
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.request import check_ticker
from dexorder_relay.triggers.triggers import SUBSCRIPTION_PREFIX

HISTORY_IDS = 20
ITEMS_IN_AN_ANSWER = 1_000
MAX_NAME = 256


@dataclass(frozen=True)
class RealtimeRpcs:
    """RPCs for clients."""

    engine: RelayEngine

    async def StartRealtime(self, request: pb.StartRealtimeRequest, _: object) -> pb.StartRealtimeResponse:
        """Start a subscription."""
        caller = current_caller()
        _check_own(request.subscription.subscription_id)
        wanted = access.signed(caller, messages.decode_subscription(request.subscription))
        return pb.StartRealtimeResponse(duplicate=not await self.engine.realtime.start(wanted, caller))

    async def StopRealtime(self, request: pb.StopRealtimeRequest, _: object) -> pb.StopRealtimeResponse:
        """Stop a subscription."""
        _check_own(request.subscription_id)
        await self.engine.realtime.stop(request.subscription_id, current_caller())
        return pb.StopRealtimeResponse()

    async def ListRealtime(self, request: pb.ListRealtimeRequest, _: object) -> pb.ListRealtimeResponse:
        """Return a page of subscriptions with their jobs; the token is the sequence number of its last one."""
        size = page_size(request.page_size)
        client_id = access.listed(current_caller(), request.client_id)
        found, jobs = self.engine.realtime.listed(client_id, request.ticker, read_token(request.page_token) or 0, size)
        history = await self.engine.realtime.history_ids(found, HISTORY_IDS)
        job_of = {job.ticker: messages.encode_job(job) for job in jobs}
        page = fitting(  # a job may have hundreds of provisional spans; the first subscription of a market brings it
            pb.ListRealtimeResponse(
                subscriptions=[messages.encode_started(each, history[each.subscription.subscription_id])],
                jobs=[job] if (job := job_of.pop(each.subscription.ticker, None)) else (),
            )
            for each in found
        )
        is_last = len(page) == len(found) < size
        answer = pb.ListRealtimeResponse(next_page_token="" if is_last else str(found[len(page) - 1].sequence))
        for entry in page:
            answer.MergeFrom(entry)
        return answer

    async def WatchMarketData(
        self, request: pb.WatchMarketDataRequest, _: object
    ) -> AsyncIterator[pb.WatchMarketDataResponse]:
        """Stream live data without end."""
        interest = self._interest(request)
        metrics, signals = self.engine.context.metrics, self.engine.context.signals
        with (
            self.engine.context.quotas.stream(current_caller()),
            metrics.live_streams.track_inprogress(),
            self.engine.live.open(interest) as stream,
            signals.listen("live", stream.event),
        ):
            while True:
                answer = _answer(stream, self.engine.realtime.registry)
                metrics.live_dropped.inc(sum(each.count for each in answer.missed))
                if answer.ByteSize():  # the event may be older than the last answer
                    yield answer
                if not stream.queue.items:
                    await signals.wait(stream.event)

    async def ControlIngestors(
        self, request: operator_pb.ControlIngestorsRequest, _: object
    ) -> operator_pb.ControlIngestorsResponse:
        """Give an instruction to ingestors; CANCEL ends its request first, so that its jobs are fenced."""
        access.check_admin(current_caller(), "control ingestors")
        control = request.control
        check_control(control)
        if control.action == CANCEL:
            self.engine.context.store.check_space()
            await self.engine.queries.record(control.request_id)
            await self.engine.completion.cancel(control.request_id, stop_work=False)
        ingestor_id = request.ingestor_id if request.HasField("ingestor_id") else None
        return operator_pb.ControlIngestorsResponse(results=await self.engine.control.instruct(control, ingestor_id))

    def _interest(self, request: pb.WatchMarketDataRequest) -> Interest:
        for ticker in request.tickers:
            check_ticker(ticker, self.engine.context.venues)
        for period in request.period_seconds:
            check_period(period)
        if not request.include_trades and not request.period_seconds:
            raise InvalidRequest("include_trades is not set and period_seconds is empty; ask for one of them")
        return Interest(
            frozenset(request.tickers),
            request.include_trades,
            frozenset(request.period_seconds),
            request.include_running,
            SlowClientPolicy(request.slow_client or SlowClientPolicy.COALESCE),
            request.live_only,
        )


def _check_own(subscription_id: str) -> None:
    if subscription_id.startswith(SUBSCRIPTION_PREFIX):
        raise InvalidRequest(
            f"subscription_id {subscription_id[:64]!r} starts with {SUBSCRIPTION_PREFIX!r}, which is reserved for "
            "triggers; their subscriptions exist while a trigger watches the market"
        )


def _answer(stream: LiveStream, registry: Registry) -> pb.WatchMarketDataResponse:
    dropped, items = stream.queue.take(ITEMS_IN_AN_ANSWER)
    states, stream.states = stream.states, {}
    return pb.WatchMarketDataResponse(
        missed=[
            pb.Missed(
                series=messages.encode_realtime_series(ticker, period),
                count=each.count,
                start_ns=each.start_ns,
                end_ns=each.end_ns,
            )
            for (ticker, period), each in dropped.items()
        ],
        states=[
            pb.LiveState(
                ticker=ticker,
                state=messages.encode_state(state),
                provisional=map(messages.encode_provisional, registry.provisional(ticker)),
                waiting=registry.waiting(ticker),
            )
            for ticker, state in states.items()
        ],
        trades=[item.message for item in items if isinstance(item.message, market_pb2.Trade)],
        candles=[item.message for item in items if isinstance(item.message, market_pb2.Candle)],
    )


@dataclass(frozen=True)
class RealtimeReports:
    """RPCs for ingestors."""

    engine: RelayEngine

    async def ResumeRealtime(self, request: ipb.ResumeRealtimeRequest, _: object) -> ipb.ResumeRealtimeResponse:
        """Return where a dispatch starts."""
        exchange_ns = min(request.exchange_time_ns, MAX_TIME_NS) if request.HasField("exchange_time_ns") else None
        resumption = self.engine.realtime.resume(request.job_id, request.ingestor_id[:MAX_NAME], exchange_ns)
        return messages.encode_resumption(resumption)

    async def ReportRealtime(self, request: ipb.ReportRealtimeRequest, _: object) -> ipb.ReportRealtimeResponse:
        """Settle records that Kafka has acknowledged."""
        reports, statuses = map(messages.decode_report, request.reports), map(messages.decode_status, request.statuses)
        fenced = await self.engine.realtime.report(list(reports), list(statuses))
        return ipb.ReportRealtimeResponse(fenced_job_ids=fenced)

    async def PushMarketData(
        self, request: AsyncIterator[ipb.PushMarketDataRequest], _: object
    ) -> ipb.PushMarketDataResponse:
        """Give live data to the streams; data of a fenced dispatch is dropped."""
        live, current, dropped = self.engine.live, self.engine.realtime.live_ticker, 0
        async for message in request:
            for job in message.jobs:
                ticker = current(job.job_id)
                if ticker is None:
                    dropped += 1
                    self.engine.context.metrics.live_fenced.inc()
                else:
                    live.push(ticker, job.trades, job.candles, job.missed)
        return ipb.PushMarketDataResponse(dropped=dropped)

    async def WatchControl(
        self, request: ipb.WatchControlRequest, _: object
    ) -> AsyncIterator[ipb.WatchControlResponse]:
        """Stream the instructions for an ingestor; the first answer is empty."""
        ingestor = Connected(request.ingestor_id, frozenset(request.exchanges), frozenset(request.topics))
        control, signals = self.engine.control, self.engine.context.signals
        with control.connect(ingestor), signals.listen("control", ingestor.event):
            yield ipb.WatchControlResponse()
            while True:
                if (found := control.next(ingestor)) is not None:
                    yield ipb.WatchControlResponse(control_id=found[0], control=found[1])
                else:
                    await signals.wait(ingestor.event)

    async def ReportControl(self, request: ipb.ReportControlRequest, _: object) -> ipb.ReportControlResponse:
        """Take the result of an instruction."""
        if request.result.outcome not in (operator_pb.CONTROL_OUTCOME_APPLIED, operator_pb.CONTROL_OUTCOME_REFUSED):
            raise InvalidRequest(f"result.outcome {request.result.outcome} is neither APPLIED (1) nor REFUSED (2)")
        self.engine.control.report(request.control_id, request.result)
        return ipb.ReportControlResponse()
