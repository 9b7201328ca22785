"""Live data of a job: bounded whatever the stream takes, and what is dropped is counted."""

from __future__ import annotations

from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.live_buffer import LiveBuffer
from dexorder_ingestor.realtime.live_candles import ClosedCandles
from dexorder_ingestor.realtime.records import encode_live
from dexorder_ingestor.realtime.relay_client import LivePush
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as pb
from tests.series_messages import series

TICKER = "BTC/USDT.SIM"


def trade(number: int) -> Trade:
    return Trade(number * 10, number, str(number), 1.5, 2.5, "buy", 1, number * 10 + 1)


def candle(open_ns: int) -> Candle:
    return Candle(open_ns, 1.0, 2.0, 0.5, 1.5, 3.0)


def closed(*opens: int) -> ClosedCandles:
    return ClosedCandles(60, TimeRange(opens[0], opens[-1] + 60), tuple(map(candle, opens)))


def test_refilled_trades_are_marked_and_forgotten_with_what_is_dropped() -> None:
    buffer = LiveBuffer(include_trades=True, max_items=3)
    buffer.add_trades([trade(1), trade(2)], received_ns=21, is_refilled=True)
    buffer.add_trades([trade(3), trade(4)], received_ns=41)
    news = buffer.take()
    assert news is not None and news.refilled == {"2"}
    data = encode_live("j1", TICKER, news, [])
    assert [(each.trade_id, each.refilled) for each in data.trades] == [("2", True), ("3", False), ("4", False)]
    buffer.add_trades([trade(5)], received_ns=51)
    later = buffer.take()
    assert later is not None and not later.refilled


def test_everything_is_taken_once_with_the_candles_that_run() -> None:
    buffer = LiveBuffer(include_trades=True)
    assert buffer.take() is None, "no news"
    buffer.add_trades([trade(1), trade(2)], received_ns=21)
    buffer.add_closed([closed(0)])
    news = buffer.take()
    assert news is not None and not news.missed
    data = encode_live("j1", TICKER, news, [(60, candle(60))])
    assert [each.trade_id for each in data.trades] == ["1", "2"]
    assert [(each.ohlcv.open_time_ns, each.closed, each.received_ns) for each in data.candles] == [
        (0, True, 0),
        (60, False, 21),
    ]
    assert buffer.take() is None


def test_a_stream_that_takes_nothing_is_told_what_it_missed() -> None:
    buffer = LiveBuffer(include_trades=True, max_items=3)
    for number in range(1, 11):
        buffer.add_trades([trade(number)], received_ns=0)
    buffer.add_closed([closed(*range(0, 600, 60))])  # ten at once, as after a long refill
    news = buffer.take()
    assert news is not None
    data = encode_live("j1", TICKER, news, [])
    assert [each.trade_id for each in data.trades] == ["8", "9", "10"]
    assert [each.ohlcv.open_time_ns for each in data.candles] == [420, 480, 540]
    assert [(m.series, m.count, m.start_ns, m.end_ns) for m in data.missed] == [
        (series(TICKER), 7, 10, 70),
        (series(TICKER, 60), 7, 0, 360),
    ]
    buffer.add_trades([trade(11)], received_ns=0)
    again = buffer.take()
    assert again is not None and not again.missed, "told once"


def test_without_trades_only_candles_are_kept() -> None:
    buffer = LiveBuffer(include_trades=False, max_items=1)
    buffer.add_trades([trade(1), trade(2)], received_ns=21)
    news = buffer.take()
    assert news is not None and not news.trades and not news.missed and news.received_ns == 21


class Source:
    """A job that always has some trades."""

    def __init__(self, name: str, trades: int) -> None:
        self.name = name
        self._buffer = LiveBuffer(include_trades=True)
        self._buffer.add_trades(map(trade, range(trades)), received_ns=0)

    def take_live(self) -> pb.JobMarketData | None:
        news = self._buffer.take()
        return encode_live(self.name, TICKER, news, []) if news else None


@pytest.mark.parametrize(("trades", "messages"), [(1, [600]), (1_000, [2, 2, 2])])
async def test_a_message_has_the_data_of_many_jobs_and_is_bounded(trades: int, messages: list[int]) -> None:
    """A message each would let 600 markets wait for one another: each costs a turn of a busy event loop."""
    push = LivePush(cast(IngestorPublisher, None), IngestorMetrics(CollectorRegistry()))
    names = [f"j{number}" for number in range(sum(messages))]
    for name in names:
        push.changed(Source(name, trades))
    stream = push._messages()
    found = [[data.job_id for data in (await anext(stream)).jobs] for _ in messages]
    assert [len(each) for each in found] == messages
    assert [name for each in found for name in each] == names
