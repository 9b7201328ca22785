"""Fake services on free ports: a broker on a real ROUTER, a gateway and a relay on real gRPC servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import grpc
import zmq
import zmq.asyncio

from dexorder_common.kafka.joined_record import records_in
from dexorder_common.messaging.frames import WorkFrame, decode_work, encode_work
from dexorder_common.model import datasets
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.realtime_messages import encode_realtime_series
from dexorder_ingestor.broker.slots import JobKind, JobSlots, SlotType
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.market.v1 import market_pb2, ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as relay_rpc
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc

M = TypeVar("M", bound=WorkFrame)


@dataclass
class Record:
    """A record that the gateway received."""

    key: bytes
    control: PageHeaders
    message: bytes
    topic: str = datasets.CANDLES.topic

    @property
    def value(self) -> pb.DataResponse:
        return pb.DataResponse.FromString(self.message)

    @property
    def trades(self) -> list[market_pb2.Trade]:
        return list(market_pb2.Trades.FromString(self.message).trades)

    @property
    def candles(self) -> list[ohlcv_pb2.OHLCV]:
        return [ohlcv_pb2.OHLCV.FromString(data) for data in self.value.ohlc_data]


@dataclass
class FakeGateway(pixy_rpc.KafkaPixyServicer):
    """Gateway that keeps the records; raises ``trouble`` instead, one for each call, and ``lost_acks`` after keeping.

    After ``free`` records, calls wait until ``gate`` is set; a waiting call sets ``waiting``. For each call,
    ``traceparents`` has that of its metadata and that of the record.
    """

    records: list[Record] = field(default_factory=list)
    trouble: list[grpc.StatusCode] = field(default_factory=list)
    lost_acks: int = 0
    running: int = 0
    most_at_once: dict[bytes, int] = field(default_factory=dict)
    free: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    traceparents: list[tuple[str | None, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def _not_asked(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    GetOffsets = SetOffsets = ListTopics = ListConsumers = GetTopicMetadata = ConsumeNAck = Ack = _not_asked

    async def Produce(self, request: pixy_pb.ProdRq, context: Any) -> pixy_pb.ProdRs:
        assert (request.cluster, request.async_mode, request.key_undefined) == ("", False, False)
        if len(self.records) >= self.free:
            self.waiting.set()
            await self.gate.wait()
        if self.trouble:
            await context.abort(self.trouble.pop(0), "as the test wants it")
        headers = {h.key: h.value.decode() for h in request.headers}
        self.traceparents.append((dict(context.invocation_metadata()).get("traceparent"), headers.get("traceparent")))
        for control, value in records_in(headers, request.message):
            self.records.append(Record(request.key_value, control, value, request.topic))
        if self.lost_acks:
            self.lost_acks -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the acknowledgement is lost")
        return pixy_pb.ProdRs(partition=0, offset=len(self.records) - 1)

    @property
    def finals(self) -> list[Record]:
        return [r for r in self.records if r.control.kind is Kind.FINAL]

    def of(self, job_id: str) -> list[Record]:
        return [r for r in self.records if r.control.dispatch_id == job_id]

    def pages(self, job_id: str) -> list[Record]:
        return [r for r in self.of(job_id) if r.control.kind is Kind.PAGE]

    def final(self, job_id: str) -> Record:
        (final,) = [r for r in self.of(job_id) if r.control.kind is Kind.FINAL]
        return final


@dataclass
class FakeRelay(relay_rpc.IngestorServiceServicer):
    """Keeps reports; jobs in ``fenced`` are no longer current. Realtime dispatches begin as ``resume`` says.

    Reports of pages that the gateway has not are in ``early``.
    """

    gateway: FakeGateway
    reports: list[ipb.ReportPageRequest] = field(default_factory=list)
    early: list[ipb.ReportPageRequest] = field(default_factory=list)
    fenced: set[str] = field(default_factory=set)
    trouble: list[grpc.StatusCode] = field(default_factory=list)
    markets: asyncio.Queue[ipb.ReportInstrumentsRequest] = field(default_factory=asyncio.Queue)
    markets_trouble: list[grpc.StatusCode] = field(default_factory=list)

    resume: ipb.ResumeRealtimeResponse = field(default_factory=ipb.ResumeRealtimeResponse)
    progress: list[ipb.RealtimeReport] = field(default_factory=list)
    live: list[ipb.PushMarketDataRequest] = field(default_factory=list)
    instructions: asyncio.Queue[ipb.WatchControlResponse] = field(default_factory=asyncio.Queue)
    results: asyncio.Queue[ipb.ReportControlRequest] = field(default_factory=asyncio.Queue)
    watchers: list[ipb.WatchControlRequest] = field(default_factory=list)

    async def ResumeRealtime(self, request: ipb.ResumeRealtimeRequest, context: Any) -> ipb.ResumeRealtimeResponse:
        return ipb.ResumeRealtimeResponse() if request.job_id in self.fenced else self.resume

    async def ReportRealtime(self, request: ipb.ReportRealtimeRequest, context: Any) -> ipb.ReportRealtimeResponse:
        for report in request.reports:
            written = [r.control for r in self.gateway.of(report.job_id)]
            series = [c for c in written if encode_realtime_series(c.ticker, c.period_seconds) == report.series]
            assert report.start_ns in {c.span.start_ns for c in series}, "only what Kafka has is reported"
            assert report.end_ns in {c.span.end_ns for c in series}, "only what Kafka has is reported"
        self.progress += request.reports
        fenced = {report.job_id for report in request.reports} & self.fenced
        return ipb.ReportRealtimeResponse(fenced_job_ids=sorted(fenced))

    async def PushMarketData(
        self, messages: AsyncIterator[ipb.PushMarketDataRequest], context: Any
    ) -> ipb.PushMarketDataResponse:
        async for message in messages:
            self.live.append(message)
        return ipb.PushMarketDataResponse()

    async def WatchControl(
        self, request: ipb.WatchControlRequest, context: Any
    ) -> AsyncIterator[ipb.WatchControlResponse]:
        self.watchers.append(request)
        yield ipb.WatchControlResponse()
        while True:
            yield await self.instructions.get()

    async def ReportControl(self, request: ipb.ReportControlRequest, context: Any) -> ipb.ReportControlResponse:
        self.results.put_nowait(request)
        return ipb.ReportControlResponse()

    async def ReportInstruments(
        self, request: ipb.ReportInstrumentsRequest, context: Any
    ) -> ipb.ReportInstrumentsResponse:
        self.markets.put_nowait(request)
        if self.markets_trouble:
            await context.abort(self.markets_trouble.pop(0), "as the test wants it")
        return ipb.ReportInstrumentsResponse()

    async def ReportPage(self, request: ipb.ReportPageRequest, context: Any) -> ipb.ReportPageResponse:
        if self.trouble:
            await context.abort(self.trouble.pop(0), "as the test wants it")
        spans = {(r.control.span.start_ns, r.control.span.end_ns) for r in self.gateway.pages(request.job_id)}
        if (request.start_ns, request.end_ns) not in spans:
            self.early.append(request)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a page is reported only after Kafka has it")
        self.reports.append(request)
        return ipb.ReportPageResponse(current=request.job_id not in self.fenced)

    async def ReportDelay(self, request: ipb.ReportDelayRequest, context: Any) -> ipb.ReportDelayResponse:
        return ipb.ReportDelayResponse(current=request.job_id not in self.fenced)


@asynccontextmanager
async def grpc_peer(register: Callable[[grpc.aio.Server], None], address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    register(server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class FakeBroker:
    """A ROUTER that keeps what it hears, by identity."""

    def __init__(self, context: zmq.asyncio.Context, address: str = "tcp://127.0.0.1:0") -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.LINGER, 0)
        try:
            self._socket.bind(address)
        except zmq.ZMQError:
            self._socket.close()
            raise
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.heard: list[tuple[bytes, WorkFrame]] = []
        self._unused: list[tuple[bytes, pb.WorkerReady]] = []

    @staticmethod
    async def at(context: zmq.asyncio.Context, address: str) -> FakeBroker:
        """A broker where one was closed: ZMQ lets go of a port a moment after close() returns."""
        for _ in range(1000):
            try:
                return FakeBroker(context, address)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                await asyncio.sleep(0.01)
        raise TimeoutError(f"{address} stays taken")

    async def hear(self) -> tuple[bytes, WorkFrame]:
        identity, *frames = await self._socket.recv_multipart()
        heard = (identity, decode_work(frames))
        self.heard.append(heard)
        return heard

    async def wait_for(self, kind: type[M], job_id: str | None = None) -> tuple[bytes, M]:
        """The next message of a kind, whatever comes before it; an offer that came before another message counts."""
        if kind is pb.WorkerReady and self._unused:
            return cast(tuple[bytes, M], self._unused.pop(0))
        while True:
            identity, message = await self.hear()
            if isinstance(message, kind) and (job_id is None or getattr(message, "job_id", None) == job_id):
                return identity, message
            if isinstance(message, pb.WorkerReady):
                self._unused.append((identity, message))

    async def offers(self, count: int) -> list[tuple[bytes, pb.WorkerReady]]:
        return [await self.wait_for(pb.WorkerReady) for _ in range(count)]

    async def send(self, identity: bytes, message: WorkFrame) -> None:
        await self._socket.send_multipart([identity, *encode_work(message)])

    async def send_raw(self, identity: bytes, *frames: bytes) -> None:
        await self._socket.send_multipart([identity, *frames])

    def close(self) -> None:
        self._socket.close()


def history_slots(count: int, *, repeat_ns: int = 0) -> JobSlots:
    return JobSlots({SlotType("SIM", JobKind.HISTORICAL): count}, repeat_ns=repeat_ns)


def dispatch(
    job_id: str, span: TimeRange, *, ticker: str = "BTC/USDT.SIM", period_seconds: int = 60, limit: int | None = None
) -> pb.DataRequest:
    return pb.DataRequest(
        request_id=f"request of {job_id}",
        type=pb.DataRequest.HISTORICAL_OHLC,
        ticker=ticker,
        job_id=job_id,
        historical=pb.HistoricalParams(
            start_time=span.start_ns, end_time=span.end_ns, period_seconds=period_seconds, limit=limit
        ),
    )
