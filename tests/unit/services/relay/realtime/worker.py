"""Realtime in the relay's tests: subscriptions, and workers that know only the frames of the given protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.asyncio

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite


def subscription(
    subscription_id: str, *periods: int, ticks: bool = True, ticker: str = TICKER, **fields: Any
) -> pb.RealtimeSubscription:
    params = ingest.RealtimeParams(include_ticks=ticks, include_ohlc=bool(periods), ohlc_period_seconds=periods)
    return pb.RealtimeSubscription(subscription_id=subscription_id, ticker=ticker, params=params, **fields)


async def start(suite: Suite, subscription_id: str, *periods: int, **fields: Any) -> bool:
    """Start a subscription; return whether it was known."""
    wanted = subscription(subscription_id, *periods, **fields)
    answer = await suite.relay.realtime.StartRealtime(pb.StartRealtimeRequest(subscription=wanted))
    return bool(answer.duplicate)


async def stop(suite: Suite, subscription_id: str) -> None:
    await suite.relay.realtime.StopRealtime(pb.StopRealtimeRequest(subscription_id=subscription_id))


async def listed(suite: Suite, **fields: Any) -> pb.ListRealtimeResponse:
    answer: pb.ListRealtimeResponse = await suite.relay.realtime.ListRealtime(pb.ListRealtimeRequest(**fields))
    return answer


async def the_job(suite: Suite) -> pb.RealtimeJob:
    """Return the only job."""
    (job,) = (await listed(suite)).jobs
    return job


async def job_in(suite: Suite, state: Any) -> pb.RealtimeJob:
    """Wait until the only job is in a state."""
    async with asyncio.timeout(30):
        while (job := await the_job(suite)).state != state:  # noqa: ASYNC110 - it happens in the relay
            await asyncio.sleep(0.02)
    return job


class RawWorker:
    """A worker written from the given protocol alone: bytes on a DEALER, no RPC, none of our frame codec.

    A message is two frames: 01, then the type byte and the protobuf.
    """

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    async def send(self, kind: int, message: Any) -> None:
        await self.socket.send_multipart([b"\x01", bytes([kind]) + message.SerializeToString()])

    async def ready(self, kind: Any = ingest.REALTIME) -> None:
        await self.send(0x20, ingest.WorkerReady(exchanges=["SIM"], job_type=kind))

    async def complete(self, job_id: str, *, success: bool = True) -> None:
        await self.send(0x21, ingest.WorkComplete(job_id=job_id, success=success))

    async def heartbeat(self, job_id: str) -> None:
        await self.send(0x22, ingest.WorkHeartbeat(job_id=job_id))

    async def reject(self, job_id: str, reason: str) -> None:
        await self.send(0x23, ingest.WorkReject(job_id=job_id, reason=reason))

    async def receive(self, seconds: float = 20) -> tuple[int, Any]:
        """Return type and message of the next frame."""
        version, body = await asyncio.wait_for(self.socket.recv_multipart(), seconds)
        assert version == b"\x01"
        message = {0x24: ingest.DataRequest(), 0x25: ingest.WorkStop()}[body[0]]
        message.ParseFromString(body[1:])
        return body[0], message

    async def job(self) -> Any:
        """Return the next DataRequest."""
        kind, message = await self.receive()
        assert kind == 0x24, message
        return message

    async def stopped(self) -> str:
        """Return the job_id of the next WorkStop."""
        kind, message = await self.receive()
        assert kind == 0x25, message
        return str(message.job_id)


def worker(suite: Suite) -> RawWorker:
    made = RawWorker(suite.context, suite.running.broker_address)
    suite.opened.callback(made.socket.close)
    return made


async def at_work(suite: Suite, *periods: int) -> tuple[RawWorker, Any]:
    """Start subscription ``a``; return a worker with the job."""
    made = worker(suite)
    await made.ready()
    await start(suite, "a", *periods)
    return made, await made.job()


async def report(suite: Suite, job_id: str, *spans: tuple[int, int, int], **fields: Any) -> list[str]:
    """Report spans (period, start, end) that Kafka has; return the fenced ids."""
    reports = [
        ipb.RealtimeReport(job_id=job_id, series=series(TICKER, period), start_ns=start_ns, end_ns=end_ns, **fields)
        for period, start_ns, end_ns in spans
    ]
    return list((await suite.ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=reports))).fenced_job_ids)


async def resume(suite: Suite, job_id: str) -> ipb.ResumeRealtimeResponse:
    answer: ipb.ResumeRealtimeResponse = await suite.ingestors.ResumeRealtime(
        ipb.ResumeRealtimeRequest(job_id=job_id, ingestor_id="i1")
    )
    return answer


async def described(suite: Suite, job_ids: Sequence[str]) -> list[Any]:
    answer = await suite.pipeline.stub.DescribeDispatches(ppb.DescribeDispatchesRequest(job_ids=job_ids))
    return list(answer.dispatches)
