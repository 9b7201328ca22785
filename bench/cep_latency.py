"""Latency of triggers: from a closed candle at the source to the event at a subscriber of the relay.

    .venv/bin/python -m bench.cep_latency [--triggers 1000 10000] [--tickers 20] [--candles 10]

Relay and triggers' process run as in the suite; the source has its records in memory, so Kafka and the exchange are not
measured. All tickers close a candle of a second at once, which fires one trigger in a hundred on each; then there is a
pause.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import zmq.asyncio

from bench.parts.cpu import process_cpu_seconds
from dexorder_common.kafka.page_record import page_value
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from tests.fakes.source_server import FakeSource, RunningSource
from tests.paths import ROOT
from tests.rig import report
from tests.rig.processes import free_block
from tests.unit.services.relay.harness import catalog_settings, environment, make_tables
from tests.unit.services.relay.realtime.worker import RawWorker

CALLBACK = "bench"
FIRING = 100
"""One trigger in so many fires at a candle."""
AT_ONCE = 50
PAUSE_SECONDS = 2.0


class Rig:
    """The processes, and the markets of one run."""

    def __init__(self, folder: Path, tickers: Sequence[str]) -> None:
        self.tickers = tickers
        self.source = RunningSource(FakeSource(4))
        port = free_block(2)
        self.relay_address, self.broker_address = f"127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
        catalog = catalog_settings(folder).load()
        make_tables(catalog)
        catalog.close()
        # The worker that takes the jobs sends no signs of life: with a usual lease the dispatches would be lost.
        env = environment(folder, port, port + 1) | {
            "DEXORDER_LOG_LEVEL": "warning",
            "DEXORDER_RELAY_LEASE_SECONDS": "3600",
        }
        self._env = env | {
            "DEXORDER_SPARK_SOURCE": self.source.address,
            "DEXORDER_SPARK_RELAY": self.relay_address,
            "DEXORDER_SPARK_TRIGGER_FOLDER": str(folder / "triggers"),
        }
        self._processes = [subprocess.Popen([sys.executable, "-m", "dexorder_relay"], cwd=ROOT, env=env)]
        self._jobs: dict[str, str] = {}
        self._pages = 0

    def start_triggers(self) -> subprocess.Popen[bytes]:
        """Start the triggers' process."""
        command = [sys.executable, "-m", "dexorder_spark.cep"]
        process = subprocess.Popen(command, cwd=ROOT, env=self._env, stdin=subprocess.PIPE)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """End the processes."""
        for process in reversed(self._processes):
            if process.stdin:
                process.stdin.close()
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        self.source.stop()

    async def take_jobs(self) -> None:
        """Take the realtime jobs of the triggers' subscriptions, whose dispatches stand behind the records."""
        context = zmq.asyncio.Context()
        worker = RawWorker(context, self.broker_address)
        for _ in self.tickers:
            await worker.ready()
        while len(self._jobs) < len(self.tickers):
            kind, message = await worker.receive(60)
            if kind == 0x24:
                self._jobs[message.ticker] = message.job_id
        worker.socket.close()
        context.term()

    def close_candles(self, open_ns: int, price: float) -> None:
        """Close a candle of every ticker."""
        for number, ticker in enumerate(self.tickers):
            candle = Candle(open_ns, price, price, price, price, 1.0)
            span = TimeRange(open_ns, open_ns + SECOND_NS)
            headers = PageHeaders(Kind.PAGE, ticker, 1, self._jobs[ticker], self._pages, span, open_ns + SECOND_NS)
            self.source.fake.add(number % 4, page_value("r", [candle]), ticker, headers.encode())
        self._pages += 1


async def register(stub: Any, triggers: int, tickers: Sequence[str]) -> None:
    """Register triggers, of which trigger n fires at a price above n modulo ``FIRING``."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        level = 1_000 * (1 + number % FIRING)
        sql = f"SELECT ticker, `close`, volume FROM ohlc WHERE `close` > {level - 1} AND `close` < {level + 1}"
        request = ingest.CEPTriggerRequest(
            trigger_id=f"t{number}",
            sql_pattern=sql,
            tickers=tickers,
            callback_id=CALLBACK,
            parameters={"fire": "level", "period": "1"},
        )
        async with gate:
            answer = (await stub.trigger.RegisterTrigger(pb.RegisterTriggerRequest(trigger=request))).ack
        assert answer.status == ingest.CEPTriggerAck.REGISTERED, answer

    await asyncio.gather(*(one(number) for number in range(triggers)))


async def measure(folder: Path, triggers: int, tickers: Sequence[str], candles: int) -> tuple[list[float], float]:
    """Return the latencies in seconds, and the CPU seconds of the triggers' process for one candle of every ticker."""
    rig = Rig(folder, tickers)
    try:
        async with grpc.aio.insecure_channel(rig.relay_address) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            stub: Any = RelayStubs(channel)
            await register(stub, triggers, tickers)
            await rig.take_jobs()
            process = rig.start_triggers()
            while not await is_running(stub):  # noqa: ASYNC110 - it happens in the relay
                await asyncio.sleep(0.2)
            call = stub.trigger.WatchTriggerEvents(pb.WatchTriggerEventsRequest(callback_id=CALLBACK))
            await asyncio.wait_for(call.read(), 120)  # the stream is open
            latencies: list[float] = []
            expected = -(-triggers // FIRING) * len(tickers)
            cpu_s = 0.0
            for number in range(candles + 1):
                before_s, closed_s = process_cpu_seconds(process.pid), time.perf_counter()
                await asyncio.to_thread(
                    rig.close_candles, time.time_ns() // SECOND_NS * SECOND_NS, 1_000.0 * (1 + number)
                )
                for _ in range(expected):
                    await asyncio.wait_for(call.read(), 120)
                    if number:  # the first one is the first of the process, too
                        latencies.append(time.perf_counter() - closed_s)
                await asyncio.sleep(PAUSE_SECONDS)
                cpu_s += (process_cpu_seconds(process.pid) - before_s) if number else 0.0
            call.cancel()
            return latencies, cpu_s / candles
    finally:
        rig.stop()


async def is_running(stub: Any) -> bool:
    """Return whether the pipeline has taken the last trigger."""
    token, states = "", [pb.TRIGGER_STATE_WAITING]
    while True:
        answer = await stub.trigger.ListTriggers(pb.ListTriggersRequest(page_size=1_000, page_token=token))
        states += [each.state for each in answer.triggers]
        if not answer.next_page_token:  # the last page may be empty
            return bool(states[-1] == pb.TRIGGER_STATE_RUNNING)
        token = answer.next_page_token


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--tickers", type=int, default=20)
    parser.add_argument("--candles", type=int, default=10)
    options = parser.parse_args()
    tickers = [f"M{number}/USDT.SIM" for number in range(options.tickers)]
    print(report.heading("Triggers: latency"), flush=True)
    print("| triggers | tickers | events | p50 | p99 | last | CPU of the process a candle of all, with its pause |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for triggers in options.triggers:
        with tempfile.TemporaryDirectory() as folder:
            found, cpu_s = asyncio.run(measure(Path(folder), triggers, tickers, options.candles))
        p50, p99 = report.quantile(found, 0.5), report.quantile(found, 0.99)
        print(
            f"| {triggers:,} | {len(tickers)} | {len(found):,} | {p50:.2f} s | {p99:.2f} s | {max(found):.2f} s"
            f" | {cpu_s:.2f} s |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
