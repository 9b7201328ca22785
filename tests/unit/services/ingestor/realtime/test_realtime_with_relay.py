"""Realtime jobs, snapshots and instructions with a real relay; the exchange has the machine's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.model import datasets
from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor import control
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_relay.realtime.control import Connected, ControlChannel
from tests.fakes.mesh_proxy import ResettingProxy
from tests.unit.services.ingestor.conftest import until
from tests.unit.services.ingestor.fakes import Record
from tests.unit.services.ingestor.realtime.live_world import MARKETS, LiveWorld
from tests.unit.services.ingestor.whole import Chain, chain

SECOND_NS = 1_000_000_000
TICKER = "BTC/USDT.SIM"
CANCEL, SHUTDOWN, CONFIG_UPDATE, HEARTBEAT = (
    ingest.IngestorControl.ControlAction.Value(name) for name in ("CANCEL", "SHUTDOWN", "CONFIG_UPDATE", "HEARTBEAT")
)
CONFIG = ingest.IngestorConfig(max_concurrent=3, timeout_seconds=60)
APPLIED, REFUSED = operator_service_pb2.CONTROL_OUTCOME_APPLIED, operator_service_pb2.CONTROL_OUTCOME_REFUSED


@dataclass
class LiveChain(Chain):
    """Relay, gateway and exchange, with what realtime jobs need."""

    def records(self, kind: Kind) -> list[Record]:
        return [record for record in self.gateway.records if record.control.kind is kind]

    def settled(self) -> int:
        """Return the time before which all trades are in Kafka."""
        return max((record.control.span.end_ns for record in self.records(Kind.TRADES)), default=0)

    async def subscribe(self, since_ns: int) -> None:
        wanted = realtime_pb.RealtimeSubscription(
            subscription_id="s1",
            ticker=TICKER,
            params=ingest.RealtimeParams(include_ticks=True, include_ohlc=True, ohlc_period_seconds=[60]),
            since_ns=since_ns,
        )
        await self.suite.relay.realtime.StartRealtime(realtime_pb.StartRealtimeRequest(subscription=wanted))

    async def jobs(self) -> list[realtime_pb.RealtimeJob]:
        return list((await self.suite.relay.realtime.ListRealtime(realtime_pb.ListRealtimeRequest())).jobs)

    async def instruct(self, action: Any, **fields: Any) -> Any:
        request = operator_service_pb2.ControlIngestorsRequest(control=ingest.IngestorControl(action=action, **fields))
        (result,) = (await self.suite.relay.operator.ControlIngestors(request)).results
        return result


@asynccontextmanager
async def live_chain(folder: Path) -> AsyncIterator[LiveChain]:
    venue = {"slots": 2, "realtime": 2, "rate_per_second": 1000}
    # an ingestor that ends may miss a dispatch that is on its way: the lease brings it to another one
    relay = {"lease_seconds": 15}
    async with chain(folder, sim={"now_ns": None}, venue=venue, drain_seconds=2, relay=relay) as there:
        yield LiveChain(there.suite, there.gateway, there.sim, there.settings)


async def test_a_subscription_survives_the_change_of_its_ingestor_without_a_hole(tmp_path: Path) -> None:
    """An ingestor is stopped while trades go on; the next one begins where it ended."""
    async with live_chain(tmp_path) as c:
        since_ns = (time.time_ns() // SECOND_NS - 200) * SECOND_NS
        live = c.suite.relay.realtime.WatchMarketData(
            realtime_pb.WatchMarketDataRequest(tickers=[TICKER], include_trades=True, period_seconds=[60])
        )
        async with c.ingestor(name="one"):
            await c.subscribe(since_ns)
            await until(lambda: c.settled() > time.time_ns() - 3 * SECOND_NS)
            (job,) = await c.jobs()
            assert (job.state, job.ingestor) == (realtime_pb.REALTIME_STATE_RUNNING, "one")
            async with asyncio.timeout(20):
                while not (await live.read()).trades:
                    pass
        settled_ns = c.settled()
        (job,) = await c.jobs()
        (told_ns,) = [each.settled_until_ns for each in job.series if not each.series.period_seconds]
        async with c.ingestor(name="two"):
            await until(lambda: c.settled() > settled_ns + SECOND_NS)
            await c.suite.relay.realtime.StopRealtime(realtime_pb.StopRealtimeRequest(subscription_id="s1"))
            async with asyncio.timeout(20):
                while await c.jobs():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        live.cancel()
        records = c.records(Kind.TRADES)
        dispatches = dict.fromkeys(record.control.dispatch_id for record in records)
        assert len(dispatches) == 2
        world: Any = None
        truth = await LiveWorld(world, c.sim, "binance", MARKETS["binance"]).true_trades(
            TimeRange(since_ns, c.settled())
        )
        written = {trade.trade_id for record in records for trade in record.trades}
        assert truth.keys() <= written
        second = [record for record in records if record.control.dispatch_id == list(dispatches)[1]]
        assert second[0].control.span.start_ns >= told_ns, "it repeats nothing that the relay knew as settled"


async def test_snapshot_of_all_tickers_ends_its_request(tmp_path: Path) -> None:
    async with live_chain(tmp_path) as c, c.ingestor(name="one"):
        request = history_pb.SnapshotTickersRequest(request_id="t1", exchange="SIM")
        answer = (await c.suite.relay.history.SnapshotTickers(request)).answer
        assert answer.status == ingest.SubmitResponse.QUEUED
        await until(lambda: bool(c.records(Kind.FINAL)))
        (page,), (final,) = c.records(Kind.TICKERS), c.records(Kind.FINAL)
        assert {page.topic, final.topic} == {datasets.TICKERS.topic}
        assert page.control.ticker == final.control.ticker == "*.SIM"
        snapshots = market_pb2.TickerSnapshots.FromString(page.message).snapshots
        assert (final.value.status, final.value.total_records) == (ingest.DataResponse.OK, len(snapshots))
        (bitcoin,) = [each for each in snapshots if each.ticker == TICKER]
        async with c.sim.http.get(f"{c.sim.url}/api/v3/ticker/24hr", params={"symbol": "BTCUSDT"}) as found:
            theirs = await found.json()
        assert bitcoin.open == float(theirs["openPrice"]) or bitcoin.time_ns != theirs["closeTime"] * 1_000_000
        assert bitcoin.low <= bitcoin.last <= bitcoin.high and bitcoin.bid <= bitcoin.ask
        assert bitcoin.base_volume > 0 and bitcoin.received_ns > 0


async def test_instructions_arrive_though_a_proxy_resets_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_FIRST_PAUSE_SECONDS", 0.01)
    opened: list[str] = []
    connect = ControlChannel.connect

    def counted(channel: ControlChannel, ingestor: Connected) -> AbstractContextManager[None]:
        opened.append(ingestor.ingestor_id)
        return connect(channel, ingestor)

    monkeypatch.setattr(ControlChannel, "connect", counted)
    async with live_chain(tmp_path) as c:
        proxy = ResettingProxy(int(c.suite.running.address.rpartition(":")[2]))
        proxy.after = [2] * 1_000  # a stream ends with its first instruction; calls have one message
        async with proxy.listening(0) as port, c.ingestor(name="one", relay=f"127.0.0.1:{port}"):
            for number in range(1, 4):
                await until(lambda: len(opened) == number)  # noqa: B023
                assert (await c.instruct(HEARTBEAT)).outcome == APPLIED
            await until(lambda: len(opened) == 4)
            assert proxy.resets == 3
            assert (await c.instruct(CONFIG_UPDATE, config=CONFIG)).state.config.max_concurrent == 3


async def test_instructions_have_their_effect_before_they_are_answered(tmp_path: Path) -> None:
    async with live_chain(tmp_path) as c, c.ingestor(name="one") as process:
        async with asyncio.timeout(20):
            while True:
                request = operator_service_pb2.ControlIngestorsRequest(control=ingest.IngestorControl(action=HEARTBEAT))
                if (await c.suite.relay.operator.ControlIngestors(request)).results:
                    break
                await asyncio.sleep(0.02)
        state = (await c.instruct(HEARTBEAT)).state
        assert (state.running_jobs, state.config.max_concurrent, state.config.timeout_seconds) == (0, 4, 3600)

        result = await c.instruct(CONFIG_UPDATE, config=CONFIG)
        assert (result.outcome, result.state.config.max_concurrent, result.state.config.timeout_seconds) == (
            APPLIED,
            3,
            60,
        )
        refused = await c.instruct(CONFIG_UPDATE, config=ingest.IngestorConfig(max_concurrent=5, timeout_seconds=1))
        assert refused.outcome == REFUSED and "max_concurrent 5 is not between 1 and 4" in refused.reason
        assert refused.state.config.timeout_seconds == 60, "nothing is changed"

        await c.sim.faults({"kind": "hang"})
        await c.suite.queued("r1", 0, 300)
        async with asyncio.timeout(20):
            while not (await c.instruct(HEARTBEAT)).state.running_jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        cancelled = await c.instruct(CANCEL, request_id="r1")
        assert (cancelled.outcome, cancelled.state.running_jobs) == (APPLIED, 0), "the fetch has ended"

        drained = await c.instruct(SHUTDOWN)
        assert (drained.outcome, drained.state.draining) == (APPLIED, True)
        await asyncio.wait_for(asyncio.shield(process), 20)
