"""Honest ingestors at a given pace, and a client that keeps their queue filled.

    python -m tests.nightly.honest_workers RELAY BROKER SLOTS PAUSE_SECONDS

Each slot has a socket of its own. Until stdin ends requests are submitted; then those under way are carried to their
end. The one line of JSON on stdout has, for each dispatch, when it came and how long after its WorkerReady (monotonic,
ns), and every request that did not end as it should. Pages are verified empty, so that nothing needs a table.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from typing import Any

import zmq
import zmq.asyncio

from dexorder_common.messaging.frames import decode_work, encode_work
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as prpc
from tests.series_messages import series

JOBS, JOB_PERIODS = 100, 10
AT_ONCE = 3
FIRST_NS = 1_300_000_020 * SECOND_NS
STUCK_SECONDS = 60


class Honest:
    """Ingestors with one slot for each socket; all share the channel."""

    def __init__(self, channel: Any, broker: str, pause_seconds: float) -> None:
        self.relay = RelayStubs(channel)
        self.pages = irpc.IngestorServiceStub(channel)
        self.pipeline = prpc.PipelineServiceStub(channel)
        self.broker = broker
        self.pause_seconds = pause_seconds
        self.stopped = asyncio.Event()
        self.numbers = itertools.count()
        self.dispatches: list[tuple[int, int]] = []
        self.ended = 0
        self.bad = list[str]()

    async def work(self, context: zmq.asyncio.Context) -> None:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self.broker)
            while True:
                offered_ns = time.monotonic_ns()
                await socket.send_multipart(encode_work(pb.WorkerReady(exchanges=["SIM"], job_type=pb.HISTORICAL)))
                frames = await socket.recv_multipart()
                now_ns = time.monotonic_ns()
                self.dispatches.append((now_ns, now_ns - offered_ns))
                job: Any = decode_work(frames)
                await socket.send_multipart(encode_work(pb.WorkHeartbeat(job_id=job.job_id)))
                await self.page(job)
                await socket.send_multipart(encode_work(pb.WorkComplete(job_id=job.job_id, success=True)))
                await self.commit(job)
                await asyncio.sleep(self.pause_seconds)

    async def page(self, job: Any) -> None:
        span = common_pb.TimeRange(start_ns=job.historical.start_time, end_ns=job.historical.end_time)
        answer = await self.pages.ReportPage(
            ipb.ReportPageRequest(
                job_id=job.job_id,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                candles=0,
                empty=[span],
            ),
            timeout=STUCK_SECONDS,
        )
        if not answer.current:
            self.bad.append(f"the dispatch {job.job_id} was fenced while its ingestor worked")

    async def commit(self, job: Any) -> None:
        """Commit pages as the pipeline does."""
        span = common_pb.TimeRange(start_ns=job.historical.start_time, end_ns=job.historical.end_time)
        page = ppb.PageResult(
            job_id=job.job_id,
            series=series(job.ticker, 60),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            empty=[span],
        )
        final = ppb.FinalResult(job_id=job.job_id, status=pb.DataResponse.OK)
        await self.pipeline.ReportJobs(ppb.ReportJobsRequest(pages=[page], finals=[final]), timeout=STUCK_SECONDS)

    async def ask(self) -> None:
        while not self.stopped.is_set():
            number = next(self.numbers)
            step_ns = JOBS * JOB_PERIODS * 60 * SECOND_NS
            asked = pb.SubmitHistoricalRequest(
                request_id=f"honest-{number}",
                ticker="BTC/USDT.SIM",
                period_seconds=60,
                start_time=FIRST_NS + number * step_ns,
                end_time=FIRST_NS + (number + 1) * step_ns,
            )
            await self.relay.history.SubmitHistorical(asked, timeout=STUCK_SECONDS)
            async for _ in self.relay.history.WatchProgress(
                history_pb.WatchProgressRequest(request_id=asked.request_id)
            ):
                pass
            record = (
                await self.relay.history.GetRequest(history_pb.GetRequestRequest(request_id=asked.request_id))
            ).record
            self.ended += 1
            done = (record.status, record.progress.finished_jobs, record.empty_periods)
            if done != (pb.HistoryReadyNotification.NOT_FOUND, JOBS, JOBS * JOB_PERIODS):
                self.bad.append(f"{asked.request_id}: {record.error_message or record}")

    async def watch(self) -> None:
        """Raise an error if nothing makes progress."""
        while True:
            before = len(self.dispatches), self.ended
            await asyncio.sleep(STUCK_SECONDS)
            if before == (len(self.dispatches), self.ended):
                raise SystemExit(f"no dispatch within {STUCK_SECONDS} s")


async def main() -> None:
    relay, broker, slots, pause_seconds = sys.argv[1:5]
    async with open_channel(relay) as channel:
        with zmq.asyncio.Context() as context:
            honest = Honest(channel, broker, float(pause_seconds))
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(honest.work(context)) for _ in range(int(slots))]
                background.append(group.create_task(honest.watch()))
                asking = [asyncio.create_task(honest.ask()) for _ in range(AT_ONCE)]
                await asyncio.to_thread(sys.stdin.read)
                honest.stopped.set()
                await asyncio.gather(*asking)
                for task in background:
                    task.cancel()
    print(json.dumps({"requests": honest.ended, "bad": honest.bad, "dispatches": honest.dispatches}))


if __name__ == "__main__":
    asyncio.run(main())
