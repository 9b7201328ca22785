"""Subscriptions outlive the relay's process: no client is needed to run them again."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import zmq.asyncio

from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.paths import ROOT
from tests.series_messages import series
from tests.unit.services.relay.harness import environment, free_port
from tests.unit.services.relay.realtime.worker import RawWorker, subscription


@asynccontextmanager
async def running(folder: Path, port: int, broker: int) -> AsyncIterator[tuple[Process, grpc.aio.Channel]]:
    env = environment(folder, port, broker) | {"DEXORDER_RELAY_LEASE_SECONDS": "1"}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dexorder_relay", cwd=ROOT, env=env)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process, channel
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_subscriptions_run_again_after_kill_9_and_begin_where_kafka_has_them(tmp_path: Path) -> None:
    port, broker = free_port(), free_port()
    context = zmq.asyncio.Context()
    worker = RawWorker(context, f"tcp://127.0.0.1:{broker}")
    try:
        async with running(tmp_path, port, broker) as (process, channel):
            wanted = pb.StartRealtimeRequest(subscription=subscription("a", 60, client_id="me"))
            stub = RelayStubs(channel)
            answer = await stub.realtime.StartRealtime(wanted, timeout=60, wait_for_ready=True)
            assert not answer.duplicate
            process.send_signal(signal.SIGKILL)  # at once: nothing but the answer has happened
            await process.wait()
        async with running(tmp_path, port, broker) as (process, channel):
            await channel.channel_ready()
            await worker.ready()
            sent = await worker.job()
            assert (sent.ticker, list(sent.realtime.ohlc_period_seconds)) == ("BTC/USDT.SIM", [60])
            ingestors = irpc.IngestorServiceStub(channel)
            begin = await ingestors.ResumeRealtime(ipb.ResumeRealtimeRequest(job_id=sent.job_id))
            settled_ns = begin.start_ns + 1_000
            report = ipb.RealtimeReport(
                job_id=sent.job_id,
                series=series(sent.ticker),
                start_ns=begin.start_ns,
                end_ns=settled_ns,
                count=4,
                last_trade_id="4",
            )
            await ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=[report]))
            await asyncio.sleep(2.5)  # positions are on disk every two seconds
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with running(tmp_path, port, broker) as (process, channel):
            await channel.channel_ready()
            stub, ingestors = RelayStubs(channel), irpc.IngestorServiceStub(channel)
            answer = await stub.realtime.StartRealtime(wanted, timeout=60)
            assert answer.duplicate
            await worker.ready()
            again = await worker.job()  # the lease of the dispatch before has expired
            assert again.job_id != sent.job_id
            begin = await ingestors.ResumeRealtime(ipb.ResumeRealtimeRequest(job_id=again.job_id))
            assert (begin.start_ns, begin.last_trade_id) == (settled_ns, "4")
            fenced = await ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=[report]))
            assert list(fenced.fenced_job_ids) == [sent.job_id]
    finally:
        worker.socket.close()
        context.term()
