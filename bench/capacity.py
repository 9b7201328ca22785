"""What saturates first: micro-measurements of parts that can't be spread, and a model of a load from them.

    .venv/bin/python -m bench.capacity [--markets 10000] [--trades 1] [--requests 5]
        [--firings 100] [--host-cores 64]

Trades cost what `bench.realtime markets` measured with 500 markets and 5,000 trades/s (bench/results/realtime.md); the
rest is measured here, as processor time: the relay with a scripted ingestor, the engine of triggers, a commit.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import zmq.asyncio

from bench import cep, realtime_tables, relay_requests
from bench.parts.capacity_model import Costs, Load, Need, needs
from bench.parts.cpu import process_cpu_seconds
from dexorder_common.rpc.trigger_messages import encode_event
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as pipeline_rpc
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2_grpc as realtime_rpc
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as trigger_pb
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2_grpc as trigger_rpc
from tests.rig import report
from tests.series_messages import series
from tests.unit.services.relay.realtime.worker import RawWorker

TRADE_US = {"ingestor": 144.0, "gateway": 2.0, "kafka": 16.0, "udsource": 14.0, "spark": 84.0}
"""Of a trade, from 0.72, 0.01, 0.08, 0.07 and 0.42 cores at 5,000 trades/s."""
MARKETS, SECONDS = 500, 10
CALLS, FIRINGS = 10, 500
ALERTS = 50_000
REQUESTS = 200
FEW, MANY = 100, 1_000
"""Markets of the two commits that are measured."""


def relay_us() -> tuple[float, float]:
    """Return the relay's processor time for a market whose trades are reported each second, and for a firing."""
    with tempfile.TemporaryDirectory() as folder, relay_requests.relay_alone(Path(folder)) as (_, pid, ports):
        return asyncio.run(_against_relay(pid, *ports))


async def _against_relay(pid: int, port: int, broker_port: int) -> tuple[float, float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        with zmq.asyncio.Context() as context:
            worker = RawWorker(context, f"tcp://127.0.0.1:{broker_port}")
            jobs = await _jobs(channel, worker)
            before = process_cpu_seconds(pid)
            await _report_trades(irpc.IngestorServiceStub(channel), jobs)
            of_trades = process_cpu_seconds(pid) - before
            worker.socket.close()
        trigger = ingest.CEPTriggerRequest(
            trigger_id="t", sql_pattern="SELECT close FROM ohlc_1m", tickers=[*jobs.values()][:1]
        )
        triggers: Any = trigger_rpc.TriggerServiceStub(channel)
        answer = await triggers.RegisterTrigger(trigger_pb.RegisterTriggerRequest(trigger=trigger))
        assert answer.ack.status == ingest.CEPTriggerAck.REGISTERED, answer
        (registered,) = (await triggers.ListTriggers(trigger_pb.ListTriggersRequest())).triggers
        before = process_cpu_seconds(pid)
        await _report_firings(pipeline_rpc.PipelineServiceStub(channel), registered.registration)
        of_firings = process_cpu_seconds(pid) - before
    return of_trades / (MARKETS * SECONDS) * 1e6, of_firings / (CALLS * FIRINGS) * 1e6


async def _jobs(channel: grpc.aio.Channel, worker: RawWorker) -> dict[str, str]:
    """Subscribe to the markets, and take their jobs; return the market of each job."""
    jobs = {}
    service: Any = realtime_rpc.RealtimeServiceStub(channel)
    params = ingest.RealtimeParams(include_ticks=True, include_ohlc=True, ohlc_period_seconds=[60])
    for number in range(MARKETS):
        ticker = f"X{number:05}/USDT.SIM"
        await worker.ready()
        wanted = realtime_pb.RealtimeSubscription(subscription_id=ticker, ticker=ticker, params=params)
        await service.StartRealtime(realtime_pb.StartRealtimeRequest(subscription=wanted))
        sent = await worker.job()
        jobs[sent.job_id] = sent.ticker
    return jobs


async def _report_trades(ingestors: Any, jobs: dict[str, str]) -> None:
    begun_ns = time.time_ns()
    for second in range(SECONDS):
        span: dict[str, Any] = {"start_ns": begun_ns + second * 10**9, "end_ns": begun_ns + (second + 1) * 10**9}
        reports = [
            ipb.RealtimeReport(job_id=job, series=series(ticker, 0), count=10, **span) for job, ticker in jobs.items()
        ]
        answer = await ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=reports))
        assert not answer.fenced_job_ids


async def _report_firings(pipeline: Any, registration: int) -> None:
    event = encode_event("t", time.time_ns(), [("close", "DOUBLE")], [(1.5,)], {})
    for call in range(CALLS):
        events = [
            ppb.ReportedTriggerEvent(
                event_id=f"{call}-{number}",
                registration=registration,
                kind=trigger_pb.TRIGGER_EVENT_KIND_FIRED,
                ticker="X00000/USDT.SIM",
                event=event,
            )
            for number in range(FIRINGS)
        ]
        await pipeline.ReportTriggerEvents(ppb.ReportTriggerEventsRequest(events=events))


def commit_time(markets: int) -> float:
    """Return the least seconds of a commit with trades of so many markets, of three."""
    plan = realtime_tables.Plan(hours=1, batch_seconds=2.0, merge_seconds=60.0)
    took, tickers = [], [f"X{number:05}/USDT.SIM" for number in range(markets)]
    with tempfile.TemporaryDirectory() as folder:
        tables = realtime_tables.new_tables(Path(folder) / "tables")
        for number in range(4):
            began = time.perf_counter()
            realtime_tables.commit_batch(tables, np.random.default_rng(1), number + 1, plan, tickers)
            took.append(time.perf_counter() - began)
    return min(took[1:])


def measured() -> Costs:
    """Measure what is measured here."""
    with tempfile.TemporaryDirectory() as folder:
        used, _ = relay_requests.run(Path(folder), REQUESTS, 256, one_by_one=False)
    quiet, _, _ = cep.measure_alerts(ALERTS)
    commits = {markets: commit_time(markets) for markets in (FEW, MANY)}
    of_report, of_firing = relay_us()
    return Costs(used / REQUESTS * 1e6, of_report, of_firing, quiet * 1e6, TRADE_US, commits)


def cost_rows(costs: Costs) -> list[report.Row]:
    return [
        report.Row("relay: a request for a day of minutes", f"{costs.relay_request / 1e3:.2f} ms"),
        report.Row("relay: a second of a market's reports", f"{costs.relay_report:.0f} us"),
        report.Row("relay: a firing", f"{costs.relay_firing:.0f} us"),
        report.Row(f"triggers: a row of a market with {ALERTS:,} alerts that do not fire", f"{costs.alert_row:.1f} us"),
        *(report.Row(f"{part}: a trade, measured before", f"{cost:.0f} us") for part, cost in costs.trade.items()),
        *(
            report.Row(f"a commit of two seconds of trades of {markets:,} markets", f"{seconds:.2f} s")
            for markets, seconds in costs.commit_seconds.items()
        ),
    ]


def rows_of(found: list[Need]) -> list[report.Row]:
    return [
        report.Row(
            each.part,
            f"{each.cores:.2f} {each.unit}",
            each.spread,
            f"{each.ends_at:.1f} times this load" if each.ends_at is not None else "",
        )
        for each in found
    ]


def main() -> None:
    """Measure, and print the costs and the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markets", type=int, default=10_000)
    parser.add_argument("--trades", type=float, default=1.0)
    parser.add_argument("--requests", type=float, default=5.0)
    parser.add_argument("--firings", type=float, default=100.0, help="of all triggers, a second")
    parser.add_argument("--host-cores", type=int, default=64)
    options = parser.parse_args()
    load = Load(options.markets, options.trades, options.requests, options.firings, options.host_cores)
    print(report.heading("What saturates first"), flush=True)
    costs = measured()
    print(report.table("Costs, as processor time; a commit's as time", cost_rows(costs)))
    what = f"{load.markets:,} markets, {load.trades:g} trades/s and up to {ALERTS:,} alerts each"
    print(
        report.table(
            f"{what}, {load.requests:g} requests/s, {load.firings:g} firings/s; hosts of {load.host_cores} cores",
            rows_of(needs(load, costs)),
        )
    )


if __name__ == "__main__":
    main()
