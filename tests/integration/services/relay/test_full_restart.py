"""Restart of the relay with hundreds of queued jobs and eight dispatched ones; nothing is submitted again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq.asyncio

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from tests.rig.processes import free_ports
from tests.unit.services.relay.harness import Ingestor, minute, page, suite
from tests.unit.services.relay.harness import final_of as final

QUEUED, RUNNING = 300, 8


@pytest.mark.smoke
async def test_every_request_ends_once_after_a_restart(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    broker = f"tcp://127.0.0.1:{port}"
    context = zmq.asyncio.Context()
    async with suite(tmp_path, broker_listen=broker) as before:
        ingestor = Ingestor(context, broker, before.ingestors)
        await ingestor.offer(RUNNING)
        total = QUEUED + RUNNING
        await asyncio.gather(*(before.queued(f"r{n}", n * 10, n * 10 + 1, client_id="c") for n in range(total)))
        held = [await ingestor.take() for _ in range(RUNNING)]
    async with suite(tmp_path, broker_listen=broker) as after:
        ingestor.stub = after.ingestors
        for job in held:  # it went on working; the job_ids are still good
            first = minute(job.historical.start_time)
            assert await ingestor.page(job.job_id, first, first + 1)
            await ingestor.send(ingest.WorkComplete(job_id=job.job_id, success=True))
        jobs = held + [await take(ingestor) for _ in range(QUEUED)]
        assert len({job.job_id for job in jobs}) == len({job.historical.start_time for job in jobs}) == total
        minutes = [minute(job.historical.start_time) for job in jobs]
        await after.pipeline.report(
            snapshot_id=after.pipeline.write(minutes),
            pages=[page(job.job_id, at, at + 1) for job, at in zip(jobs, minutes, strict=True)],
            finals=[final(job.job_id) for job in jobs],
        )
        reported: list[ingest.HistoryReadyNotification] = []
        watch = rpb.WatchNotificationsRequest(topic="RESPONSE:c")
        call = after.relay.history.WatchNotifications(watch, timeout=110)
        assert (await call.read()).HasField("opened")
        while len(reported) < total:
            reported.append((await call.read()).notification.ready)
        call.cancel()
        assert {(each.status, each.row_count) for each in reported} == {(ingest.HistoryReadyNotification.OK, 1)}
        assert len({each.request_id for each in reported}) == total
    ingestor.socket.close()
    context.term()


async def take(ingestor: Ingestor) -> ingest.DataRequest:
    await ingestor.offer()
    job = await ingestor.take()
    await ingestor.send(ingest.WorkComplete(job_id=job.job_id, success=True))
    return job
