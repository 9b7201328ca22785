"""CPU of the relay for each request of many, with a scripted ingestor and pipeline and the product's own client.

    .venv/bin/python -m bench.relay_requests [--requests 620] [--parallel 256] [--one-by-one]

Each request is a day of one-minute candles of a market of its own: a job, two pages, a final record. The pipeline
writes the rows of all jobs that are done three times a second and reports them, as Spark does. Neither Kafka nor Spark
runs, so the figure also means something beside other load.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import zmq.asyncio
from pyiceberg.catalog import Catalog

from bench.parts.cpu import process_cpu_seconds
from dexorder.client.async_client import AsyncClient
from dexorder.client.many import PARALLEL
from dexorder.client.requests import Ended
from dexorder_common.lake.tables import OHLC
from dexorder_common.messaging.frames import decode_work
from dexorder_common.model.history import HistoryRequest
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as prpc
from tests.rig import report
from tests.series_messages import series
from tests.unit.services.relay import harness
from tests.unit.services.relay.harness import Ingestor, at, final_of, span_of

DAY = 1_440
PAGE = 1_000
SLOTS = 4
BATCH_SECONDS = 0.3


def rows(tickers: list[str]) -> pa.Table:
    """Return a day of candles of each ticker."""
    count = len(tickers) * DAY
    minutes = np.tile(np.arange(DAY, dtype=np.int64) * 60_000_000 + harness.START_NS // 1_000, len(tickers))
    own = {
        "ticker": np.repeat(np.array(tickers, dtype=object), DAY),
        "period_seconds": np.full(count, 60, np.int32),
        "open_time": minutes,
        "fetched_at": minutes,
    }
    values = (pa.array(own.get(each.name, np.ones(count, np.int64))) for each in OHLC.arrow)
    return pa.table([value.cast(each.type) for value, each in zip(values, OHLC.arrow, strict=True)], schema=OHLC.arrow)


async def fetch(ingestor: Ingestor, landed: list[Any]) -> None:
    """Take dispatches for ever; report their pages at once."""

    async def work(dispatch: Any) -> None:
        start, end = span_of(dispatch)
        for first in range(start, end, PAGE):
            await ingestor.page(dispatch.job_id, first, min(first + PAGE, end))
        await ingestor.send(ingest.WorkComplete(job_id=dispatch.job_id, success=True))
        landed.append(dispatch)
        await ingestor.offer()

    await ingestor.offer(SLOTS)
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(work(decode_work(await ingestor.socket.recv_multipart())))


async def commit(catalog: Catalog, pipeline: Any, landed: list[Any]) -> None:
    """Write and report what has landed, for ever."""
    while True:
        await asyncio.sleep(BATCH_SECONDS)
        done, landed[:] = list(landed), []
        if not done:
            continue
        await asyncio.to_thread(catalog.load_table(OHLC.name).append, rows([each.ticker for each in done]))
        current = catalog.load_table(OHLC.name).current_snapshot()
        pages = [
            ppb.PageResult(
                job_id=each.job_id,
                series=series(ticker=each.ticker, period_seconds=60),
                start_ns=at(first),
                end_ns=at(min(first + PAGE, DAY)),
            )
            for each in done
            for first in range(0, DAY, PAGE)
        ]
        finals = [final_of(each.job_id) for each in done]
        snapshot_id = current.snapshot_id if current else None
        await pipeline.ReportJobs(ppb.ReportJobsRequest(snapshot_id=snapshot_id, pages=pages, finals=finals))


def wanted(count: int) -> list[HistoryRequest]:
    """Return a day of each of so many markets."""
    return [HistoryRequest(f"r{n}", f"X{n:05}/USDT.SIM", at(0), at(DAY), 60) for n in range(count)]


async def ask(client: AsyncClient, requests: Iterator[HistoryRequest]) -> None:
    """Make one request after the other, and follow each to its end."""
    for request in requests:
        await client.submit(request)
        ended = await client.requests.wait(request.request_id)
        assert ended.record.row_count == DAY, ended.record


def measure(folder: Path, requests: int, parallel: int, *, one_by_one: bool) -> report.Row:
    """Run all requests against a new relay."""
    used, seconds = run(folder, requests, parallel, one_by_one=one_by_one)
    how = "one by one" if one_by_one else "in batches"
    what = f"{requests} requests {how}, {parallel} at a time: relay CPU ms a request"
    return report.Row(what, f"{used * 1_000 / requests:.1f}", f"{seconds:.1f} s", "", "at most 5")


def run(folder: Path, requests: int, parallel: int, *, one_by_one: bool) -> tuple[float, float]:
    """Run all requests against a new relay; return its processor time, and the time that passed, in seconds."""
    with relay_alone(folder) as (catalog, pid, ports):
        return asyncio.run(_run(catalog, pid, ports, requests, parallel, one_by_one))


@contextmanager
def relay_alone(folder: Path) -> Iterator[tuple[Catalog, int, tuple[int, int]]]:
    """Run a new relay on new tables; give the catalog, its process id, and its ports, of gRPC and of the broker."""
    catalog = harness.catalog_settings(folder).load()
    harness.make_tables(catalog)
    ports = harness.free_port(), harness.free_port()
    environment, log = harness.environment(folder, *ports), (folder / "relay.log").open("w")
    with log, subprocess.Popen([sys.executable, "-m", "dexorder_relay"], env=environment, stderr=log) as process:
        try:
            yield catalog, process.pid, ports
        finally:
            process.terminate()


async def _run(
    catalog: Catalog, pid: int, ports: tuple[int, int], requests: int, parallel: int, one_by_one: bool
) -> tuple[float, float]:
    """Return the relay's CPU time, and the time that passed."""
    address, broker = f"127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}"
    async with grpc.aio.insecure_channel(address) as channel, AsyncClient(address) as client:
        await channel.channel_ready()
        with zmq.asyncio.Context() as context:
            ingestor, landed = Ingestor(context, broker, irpc.IngestorServiceStub(channel)), list[Any]()
            before, started = process_cpu_seconds(pid), time.perf_counter()
            neighbours = [
                asyncio.create_task(fetch(ingestor, landed)),
                asyncio.create_task(commit(catalog, prpc.PipelineServiceStub(channel), landed)),
            ]
            if one_by_one:
                each = iter(wanted(requests))
                await asyncio.gather(*(ask(client, each) for _ in range(parallel)))
            else:
                async for _, ended in client.fetch_each(wanted(requests), parallel=parallel):
                    assert isinstance(ended, Ended) and ended.record.row_count == DAY, ended
            used, seconds = process_cpu_seconds(pid) - before, time.perf_counter() - started
            for task in neighbours:
                task.cancel()
            await asyncio.gather(*neighbours, return_exceptions=True)
            ingestor.socket.close()
    return used, seconds


def main() -> None:
    """Run once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=620)
    parser.add_argument("--parallel", type=int, default=PARALLEL)
    parser.add_argument("--one-by-one", action="store_true", help="a call for each submission and each end")
    options = parser.parse_args()
    print(report.heading("Relay: requests"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), options.requests, options.parallel, one_by_one=options.one_by_one)
    print(report.table("Requests, with a scripted ingestor and pipeline", [row]))


if __name__ == "__main__":
    main()
