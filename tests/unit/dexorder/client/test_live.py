"""The client's realtime calls, against a scripted relay."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from dexorder import AsyncClient, Client
from dexorder.client.live import LiveCandle, LiveTrade, LiveUpdate, MissedData
from dexorder.errors import RequestRefused, RequestUnknown
from dexorder_common.model.realtime import (
    ProvisionalReason,
    ProvisionalSpan,
    RealtimeParams,
    RealtimeState,
    SeriesProgress,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.market.v1 import market_pb2
from dexorder_protos.dexorder.market.v1.ohlcv_pb2 import OHLCV
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay
from tests.series_messages import series

TICKER = "BTC/USDT.SIM"


def trade(number: int, **more: object) -> market_pb2.Trade:
    """Return a trade of the ``number``-th second."""
    values: dict[str, object] = {
        "trade_id": str(number),
        "time_ns": START + number * SECOND_NS,
        "price": 100.0 + number,
    }
    return market_pb2.Trade(**{"ticker": TICKER, "amount": 0.5, **values, **more})  # type: ignore[arg-type]


def candle(number: int, *, closed: bool = True, **more: object) -> market_pb2.Candle:
    """Return a candle of the ``number``-th minute."""
    open_ns = START + 60 * number * SECOND_NS
    ohlcv = OHLCV(open_time_ns=open_ns, open=1.0, high=3.0, low=0.5, close=2.0, volume=7.0)
    return market_pb2.Candle(ticker=TICKER, period_seconds=60, ohlcv=ohlcv, closed=closed, **more)  # type: ignore[arg-type]


def answer(*messages: market_pb2.Trade | market_pb2.Candle, **more: object) -> pb.WatchMarketDataResponse:
    """Return an answer of WatchMarketData."""
    trades = [each for each in messages if isinstance(each, market_pb2.Trade)]
    candles = [each for each in messages if isinstance(each, market_pb2.Candle)]
    return pb.WatchMarketDataResponse(trades=trades, candles=candles, **more)  # type: ignore[arg-type]


def lacking(first: str, last: str) -> pb.ProvisionalSpan:
    """Return a span in which ids lack a trade."""
    reason = pb.PROVISIONAL_REASON_MISSING_IDS
    return pb.ProvisionalSpan(
        start_ns=START, end_ns=START + SECOND_NS, reason=reason, first_id=first, last_id=last, since_ns=START, queries=2
    )


def test_every_field_of_an_update_arrives(fake: FakeRelay) -> None:
    first = answer(
        trade(1, side=market_pb2.Trade.SIDE_SELL, received_ns=START + 5),
        candle(2, closed=False, amends=True, received_ns=START + 6, provisional=True),
        states=[
            pb.LiveState(
                ticker=TICKER,
                state=pb.REALTIME_STATE_RUNNING,
                waiting="REST\nis behind",
                provisional=[lacking("7", "9")],
            )
        ],
        missed=[pb.Missed(series=series(TICKER, 60), count=4, start_ns=START, end_ns=START + 9)],
    )
    fake.live = [[first]]
    with Client() as client:
        found = next(client.live(TICKER, ["1m"]))
    assert found == LiveUpdate(
        (MissedData(TICKER, 60, 4, START, START + 9),),
        ((TICKER, RealtimeState.RUNNING),),
        (LiveTrade(TICKER, "1", START + SECOND_NS, 101.0, 0.5, "sell", START + 5),),
        (
            LiveCandle(
                TICKER, 60, START + 120 * SECOND_NS, 1.0, 3.0, 0.5, 2.0, 7.0, None, None, False, True, START + 6, True
            ),
        ),
        {TICKER: "REST is behind"},
        {
            TICKER: (
                ProvisionalSpan(
                    TimeRange(START, START + SECOND_NS), ProvisionalReason.MISSING_IDS, "7", "9", START, queries=2
                ),
            )
        },
    )
    assert found.as_json()[1] == {
        "kind": "status",
        "ticker": TICKER,
        "status": "RUNNING",
        "waiting": "REST is behind",
        "provisional": [
            {
                "since": "2024-01-01T00:00:00Z",
                "until": "2024-01-01T00:00:01Z",
                "reason": "missing_ids",
                "first_id": "7",
                "last_id": "9",
                "queries": 2,
            }
        ],
    }
    assert [value["kind"] for value in found.as_json()] == ["missed", "status", "trade", "candle"]


async def test_live_data_continues_after_the_relay_was_away(fake: FakeRelay) -> None:
    fake.break_streams = 2
    fake.live = [[answer(trade(1)), answer(trade(2))], [answer(trade(2)), answer(trade(3))]]
    ids: list[str] = []
    async with AsyncClient() as client, aclosing(client.live([TICKER], keep_all=True)) as updates:
        async for update in updates:
            ids += [each.trade_id for each in update.trades]
            if ids[-1] == "3":
                break
    assert ids == ["1", "2", "2", "3"]
    assert {request.slow_client for request in fake.asked} == {pb.SLOW_CLIENT_POLICY_DROP_OLDEST}


async def test_live_data_has_subscriptions_that_last_as_long_as_it_does(fake: FakeRelay) -> None:
    fake.live = [[answer(trade(1))]] * 2
    tickers = [TICKER, "ETH/USDT.SIM"]
    async with AsyncClient() as client:
        async with aclosing(client.live(tickers, ["1m"], trades=False, client_id="desk")) as updates:
            await anext(updates)
            started = (await client.realtime.list()).subscriptions
            assert sorted(each.subscription.ticker for each in started) == tickers
            assert {(each.subscription.params, each.subscription.client_id) for each in started} == {
                (RealtimeParams(False, (60,)), "desk")
            }
        assert not (await client.realtime.list()).subscriptions
        async with aclosing(client.live(tickers, subscribe=False)) as updates:
            await anext(updates)
            assert not (await client.realtime.list()).subscriptions


@pytest.mark.parametrize(
    ("tickers", "periods", "text"),
    [
        ([], [], "0 tickers"),
        ("BTCUSDT", [], "SYMBOL.VENUE"),
        (TICKER, ["7m"], "'7m' is not one of"),
        ([TICKER] * 1_001, [], "1001 tickers"),
    ],
)
def test_invalid_values_are_refused_before_the_relay_is_asked(
    fake: FakeRelay, tickers: str | list[str], periods: list[str], text: str
) -> None:
    with Client() as client, pytest.raises(RequestRefused, match=text):
        next(client.live(tickers, periods))
    assert not fake.asked


def test_a_subscription_is_started_listed_and_stopped(fake: FakeRelay) -> None:
    fake.realtime_page = 1
    with Client() as client:
        name = client.start_realtime(TICKER, ["5m", 60, "1m"], since="2024-01-01", client_id="desk")
        assert client.start_realtime(TICKER, ["1m", "5m"], since="2024-01-01", client_id="desk", subscription_id=name)
        other = client.start_realtime("ETH/USDT.SIM", trades=True)
        found = client.list_realtime()
        assert [each.subscription.subscription_id for each in found.subscriptions] == [name, other]
        first = found.subscriptions[0].subscription
        assert (first.params, first.since_ns, first.client_id) == (RealtimeParams(True, (60, 300)), START, "desk")
        assert [each.subscription.ticker for each in client.list_realtime(ticker="ETH/USDT.SIM").subscriptions] == [
            "ETH/USDT.SIM"
        ]
        client.stop_realtime(name)
        client.stop_realtime(name)
        assert [each.subscription.subscription_id for each in client.list_realtime().subscriptions] == [other]
        with pytest.raises(RequestRefused, match="stopped"):
            client.start_realtime(TICKER, ["1m"], subscription_id=name)
        with pytest.raises(RequestUnknown, match="unknown"):
            client.stop_realtime("nobody's")
        with pytest.raises(RequestRefused, match="neither trades nor periods"):
            client.start_realtime(TICKER, trades=False)


def test_jobs_are_listed_with_their_series(fake: FakeRelay) -> None:
    progress = pb.RealtimeSeries(
        series=series(TICKER, 60), settled_until_ns=START, count=3, reported_ns=START + 1, lag_ns=2_000_000
    )
    fake.jobs = [
        pb.RealtimeJob(
            ticker=TICKER, state=pb.REALTIME_STATE_RUNNING, ingestor="ingestor-1", restarts=2, series=[progress]
        ),
        pb.RealtimeJob(ticker="A/B.SIM", state=pb.REALTIME_STATE_WAITING, last_error="its lease expired"),
    ]
    with Client() as client:
        found = client.list_realtime()
    assert [(job.ticker, job.state) for job in found.jobs] == [
        ("A/B.SIM", RealtimeState.WAITING),
        (TICKER, RealtimeState.RUNNING),
    ]
    assert found.jobs[1].series == (SeriesProgress(60, START, 3, START + 1, 2_000_000),)
    assert found.as_json()["jobs"][1]["series"][0]["lag_ms"] == 2
