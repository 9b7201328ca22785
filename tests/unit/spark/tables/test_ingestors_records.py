"""Records as the ingestor encodes them become the rows that they stand for."""

from __future__ import annotations

from dexorder_common.lake.tables import TICKERS, TICKS
from dexorder_ingestor.exchange.trades import Trade
from dexorder_ingestor.realtime.records import trades_value
from dexorder_ingestor.tickers import encode_ticker
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.tables.tickers import SNAPSHOTS
from dexorder_spark.tables.ticks import TRADES
from tests.fakes.trades import second, snapshots_head, trades_head


def test_trades() -> None:
    trades = [
        Trade(second(1), 17, "17", 1.5, 2.5, "buy", 1, second(2)),
        Trade(second(1), 0, "b-7", 1e-8, 0.0, "", 3, second(2)),
    ]
    head = trades_head(0, 5, job=9)
    TRADES.check(head)
    rows = TICKS.rows(TRADES.decode(head, trades_value(trades)))
    times = {"time": second(1) // 1_000, "received_at": second(2) // 1_000}
    shared = {"ticker": head.ticker, "dispatch": 9, "revision": None} | times
    assert rows == [
        shared | {"trade_id": "17", "price": 1.5, "amount": 2.5, "side": "buy"},
        shared | {"trade_id": "b-7", "price": 1e-8, "amount": 0.0, "side": None},
    ]


def test_tickers() -> None:
    given = {"symbol": "ETH2.S/ETH", "timestamp": second(1) // 1_000_000, "last": 3.5, "bid": 0, "baseVolume": 0}
    encoded = [
        encode_ticker("BINANCE", given, second(2)),
        encode_ticker("BINANCE", {"symbol": "A", "ask": 1}, second(2)),
    ]
    value = pb.TickerSnapshots(snapshots=filter(None, encoded)).SerializeToString()
    head = snapshots_head(job=9, page=1)
    SNAPSHOTS.check(head)
    rows = TICKERS.rows(SNAPSHOTS.decode(head, value))
    assert [
        (row["ticker"], row["time"] * 1_000, row["last"], row["bid"], row["ask"], row["base_volume"]) for row in rows
    ] == [
        ("ETH2.S/ETH.BINANCE", second(1), 3.5, None, None, 0.0),
        ("A.BINANCE", second(2), None, None, 1.0, None),
    ]
