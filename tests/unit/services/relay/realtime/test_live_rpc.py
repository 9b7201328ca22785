"""Live data from ingestors to clients through a real relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_protos.dexorder.market.v1 import market_pb2, ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite, refused, suite
from tests.unit.services.relay.realtime.worker import at_work, stop

COALESCE, DROP_OLDEST = pb.SLOW_CLIENT_POLICY_COALESCE, pb.SLOW_CLIENT_POLICY_DROP_OLDEST


def trade(number: int, **fields: Any) -> market_pb2.Trade:
    return market_pb2.Trade(trade_id=str(number), time_ns=number, price=1.5, amount=2.5, **fields)


def candle(open_ns: int, period: int = 60, *, closed: bool = False) -> market_pb2.Candle:
    return market_pb2.Candle(
        period_seconds=period, closed=closed, ohlcv=ohlcv_pb2.OHLCV(open_time_ns=open_ns, close=7.0)
    )


async def running_job(s: Suite) -> str:
    _, sent = await at_work(s, 60)
    return str(sent.job_id)


def watch(s: Suite, **fields: Any) -> Any:
    values = {"tickers": [TICKER], "include_trades": True, **fields}
    return s.relay.realtime.WatchMarketData(pb.WatchMarketDataRequest(**values))


async def push(s: Suite, *jobs: ipb.JobMarketData) -> int:
    """Push data, a message for each job, and end the stream; return how many were dropped."""

    async def requests() -> AsyncIterator[ipb.PushMarketDataRequest]:
        for job in jobs:
            yield ipb.PushMarketDataRequest(jobs=[job])

    return int((await s.ingestors.PushMarketData(requests())).dropped)


async def test_a_client_may_leave_out_what_is_refilled_and_any_other_sees_the_mark(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        job_id = await running_job(s)
        everything, live_only = watch(s), watch(s, live_only=True, period_seconds=[60])
        for call in (everything, live_only):
            await call.read()
        await push(s, ipb.JobMarketData(job_id=job_id, trades=[trade(1, refilled=True), trade(2)]))
        await push(
            s, ipb.JobMarketData(job_id=job_id, trades=[trade(3, refilled=True)], candles=[candle(0, closed=True)])
        )
        seen = list[tuple[str, bool]]()
        while len(seen) < 3:
            seen += [(each.trade_id, each.refilled) for each in (await everything.read()).trades]
        assert seen == [("1", True), ("2", False), ("3", True)]
        answers = [await live_only.read()]
        while not answers[-1].candles:
            answers.append(await live_only.read())
        assert [each.trade_id for answer in answers for each in answer.trades] == ["2"]


async def test_clients_receive_what_they_asked_for_and_nothing_of_a_fenced_dispatch(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        job_id = await running_job(s)
        trades, candles = watch(s), watch(s, include_trades=False, period_seconds=[60], include_running=True)
        closed, other = watch(s, period_seconds=[60, 300]), watch(s, tickers=["ETH/USDT.SIM"])
        for call, state in ((trades, "RUNNING"), (candles, "RUNNING"), (closed, "RUNNING"), (other, "WAITING")):
            first = await call.read()
            assert [pb.RealtimeState.Name(each.state) for each in first.states] == [f"REALTIME_STATE_{state}"]
        dropped = await push(
            s,
            ipb.JobMarketData(job_id="1-0123456789abcdef", trades=[trade(1)]),
            ipb.JobMarketData(
                job_id=job_id,
                trades=[trade(2), trade(3)],
                candles=[candle(0, closed=True), candle(60), candle(0, 300)],
            ),
        )
        assert dropped == 1
        got = await trades.read()
        assert [(each.trade_id, each.ticker) for each in got.trades] == [("2", TICKER), ("3", TICKER)]
        assert not got.candles and not got.missed
        got = await candles.read()
        assert [(each.ohlcv.open_time_ns, each.closed, each.period_seconds) for each in got.candles] == [
            (0, True, 60),
            (60, False, 60),
        ]
        assert not got.trades
        got = await closed.read()
        assert [each.ohlcv.open_time_ns for each in got.candles] == [0] and len(got.trades) == 2
        await stop(s, "a")
        got = await trades.read()
        assert [each.state for each in got.states] == [pb.REALTIME_STATE_STOPPING]
        unheard = asyncio.ensure_future(other.read())
        assert not (await asyncio.wait({unheard}, timeout=0.1))[0]
        for call in (trades, candles, closed, other):
            call.cancel()


async def test_clients_are_told_what_the_ingestor_did_not_send(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        job_id = await running_job(s)
        trades, candles = watch(s), watch(s, include_trades=False, period_seconds=[60])
        for call in (trades, candles):
            await call.read()
        missed = [
            pb.Missed(series=series(TICKER, 0), count=3, start_ns=1, end_ns=5),
            pb.Missed(series=series(TICKER, 60), count=2, start_ns=0, end_ns=60),
        ]
        data: dict[str, Any] = {"trades": [trade(6)], "candles": [candle(120, closed=True)]}
        assert await push(s, ipb.JobMarketData(job_id=job_id, missed=missed, **data)) == 0
        for call, (period, *expected) in ((trades, (0, 3, 1, 5)), (candles, (60, 2, 0, 60))):
            got = await call.read()
            assert [(m.series, m.count, m.start_ns, m.end_ns) for m in got.missed] == [
                (series(TICKER, period), *expected)
            ]
            call.cancel()


@pytest.mark.parametrize("policy", [COALESCE, DROP_OLDEST])
async def test_a_client_that_does_not_read_is_told_what_it_missed_and_delays_nobody(
    tmp_path: Path, policy: Any
) -> None:
    """Far more is pushed than the connection's buffers hold; the relay keeps at most 50 items for the client."""
    total, text = 30_000, "x" * 200
    async with suite(tmp_path, live_queue=50) as s:
        job_id = await running_job(s)
        slow, fast = watch(s, slow_client=policy), watch(s, slow_client=policy)
        for call in (slow, fast):
            await call.read()

        async def read(call: Any, until: int) -> tuple[list[int], int]:
            numbers, missed = [], 0
            while (answer := await call.read()) is not grpc.aio.EOF:
                missed += sum(each.count for each in answer.missed)
                for each in answer.missed:
                    assert each.series == series(TICKER)
                    assert each.start_ns <= each.end_ns and each.count <= each.end_ns - each.start_ns + 1
                numbers += [each.time_ns for each in answer.trades]
                if numbers and numbers[-1] == until:
                    break
            return numbers, missed

        reading = asyncio.ensure_future(read(fast, total))
        messages = (
            ipb.JobMarketData(
                job_id=job_id, trades=[market_pb2.Trade(trade_id=text, time_ns=n) for n in range(first, first + 20)]
            )
            for first in range(1, total, 20)
        )
        assert await push(s, *messages) == 0
        numbers, missed = await asyncio.wait_for(reading, 60)
        assert len(numbers) + missed == total
        slow_numbers, slow_missed = await asyncio.wait_for(read(slow, total), 60)
        assert len(slow_numbers) + slow_missed == total and slow_missed > total // 10
        assert slow_numbers == sorted(slow_numbers)
        for call in (slow, fast):
            call.cancel()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tickers": []}, "tickers is missing"),
        ({"tickers": ["BTC"]}, "is not SYMBOL.VENUE"),
        ({"period_seconds": [7]}, "period_seconds 7 is not one of"),
        ({"include_trades": False}, "ask for one of them"),
        ({"slow_client": 9}, "slow_client 9 is not a value of SlowClientPolicy"),
    ],
)
async def test_invalid_streams_are_refused(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async with suite(tmp_path) as s:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            await watch(s, **fields).read()
