"""(d) Durable submissions and dispatches a second of the broker, compared with raw SQLite and raw pyzmq."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
import zmq
import zmq.asyncio

from dexorder_common.messaging.frames import decode_work, encode_work
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.paths import ROOT
from tests.rig.oracle import minutes
from tests.rig.processes import free_ports
from tests.rig.report import Row, table
from tests.unit.services.relay.harness import environment

CALLERS = 64
SLOTS = 64


def measure(folder: Path, requests: int) -> str:
    """Measure submissions, then the dispatches of their jobs, then the limits."""
    submitted, dispatched = uvloop.run(relay_rates(folder, requests))
    alone, grouped = sqlite_rates(folder, requests)
    echo = uvloop.run(zmq_rate(requests))
    return table(
        "(d) Broker; limits: the same rows into raw SQLite (WAL, synchronous=FULL), the same frames over raw pyzmq",
        [
            Row(
                f"durable submissions a second, {CALLERS} callers, a job each",
                f"{submitted:,.0f}",
                f"{alone:,.0f} a commit each; {grouped:,.0f} in groups of {CALLERS}",
                f"{submitted / alone:.2f}; {submitted / grouped:.2f}",
            ),
            Row(
                f"durable dispatches a second, {SLOTS} slots, completed at once",
                f"{dispatched:,.0f}",
                f"{echo:,.0f} round trips of the same frames",
                f"{dispatched / echo:.2f}",
            ),
        ],
    )


async def relay_rates(folder: Path, requests: int) -> tuple[float, float]:
    port, broker_port = free_ports(2)
    env = environment(folder, port, broker_port) | {"DEXORDER_LOG_LEVEL": "warning"}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dexorder_relay", cwd=ROOT, env=env)
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            submitted = await submit(RelayStubs(channel), requests)
            return submitted, await dispatch(f"tcp://127.0.0.1:{broker_port}", requests)
    finally:
        process.terminate()
        await process.wait()


async def submit(relay: Any, requests: int) -> float:
    numbers = iter(range(requests))

    async def caller() -> None:
        for number in numbers:
            answer = (await relay.history.SubmitHistorical(request(number))).answer
            if answer.status != pb.SubmitResponse.QUEUED:
                raise AssertionError(f"answered {answer}")

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return requests / (time.perf_counter() - started)


def request(number: int) -> pb.SubmitHistoricalRequest:
    span = minutes(-2_000_000 + number * 10, 1)  # apart from each other: no two share a job
    return pb.SubmitHistoricalRequest(
        request_id=f"request-{number}",
        ticker="BTC/USDT.SIM",
        start_time=span.start_ns,
        end_time=span.end_ns,
        period_seconds=60,
        client_id="bench",
    )


async def dispatch(broker: str, jobs: int) -> float:
    """Take every job, complete it at once, and offer the slot again."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(broker)
    ready = encode_work(pb.WorkerReady(exchanges=["SIM"], job_type=pb.HISTORICAL))
    started = time.perf_counter()
    for _ in range(SLOTS):
        await socket.send_multipart(ready)
    for _ in range(jobs):
        job = decode_work(await asyncio.wait_for(socket.recv_multipart(), 60))
        await socket.send_multipart(encode_work(pb.WorkComplete(job_id=job.job_id, success=True)))  # type: ignore[union-attr]
        await socket.send_multipart(ready)
    seconds = time.perf_counter() - started
    socket.close()
    context.term()
    return jobs / seconds


def sqlite_rates(folder: Path, rows: int) -> tuple[float, float]:
    """Return rows a second with one commit each, and in groups as large as the number of callers."""
    with sqlite3.connect(folder / "raw.db", isolation_level=None) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("CREATE TABLE requests (id INTEGER PRIMARY KEY, request_id TEXT UNIQUE, body BLOB)")
        return insert(raw, rows, 1), insert(raw, rows, CALLERS)


def insert(raw: sqlite3.Connection, rows: int, group: int) -> float:
    started = time.perf_counter()
    for first in range(0, rows, group):
        raw.execute("BEGIN IMMEDIATE")
        for number in range(first, min(first + group, rows)):
            body = request(number).SerializeToString()
            raw.execute("INSERT INTO requests (request_id, body) VALUES (?, ?)", (f"{group}-{number}", body))
        raw.execute("COMMIT")
    return rows / (time.perf_counter() - started)


async def zmq_rate(rounds: int) -> float:
    """Return round trips a second between a DEALER and a ROUTER of one loop, with as many in flight as slots."""
    context = zmq.asyncio.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer.connect(f"tcp://127.0.0.1:{port}")
    job = encode_work(pb.DataRequest(request_id="request-1", ticker="BTC/USDT.SIM", job_id="0" * 32))
    ready = encode_work(pb.WorkerReady(exchanges=["SIM"], job_type=pb.HISTORICAL))

    async def answer() -> None:
        for _ in range(rounds):
            identity, *_frames = await router.recv_multipart()
            await router.send_multipart([identity, *job])

    task = asyncio.create_task(answer())
    started = time.perf_counter()
    for _ in range(min(SLOTS, rounds)):
        await dealer.send_multipart(ready)
    for number in range(rounds):
        await dealer.recv_multipart()
        if number < rounds - SLOTS:
            await dealer.send_multipart(ready)
    seconds = time.perf_counter() - started
    await task
    router.close()
    dealer.close()
    context.term()
    return rounds / seconds
