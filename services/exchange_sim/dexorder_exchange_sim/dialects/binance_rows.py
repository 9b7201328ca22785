"""Rows of Binance's answers: klines, trades and the ticker of a day. Pure.

A kline's quote volume and taker columns are 0; its trade count is the market's average rate, and 0 for recorded
candles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dexorder_exchange_sim.candles import Candles, Source, printer, sum_up
from dexorder_exchange_sim.dialects.dialect import Rows
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.market import usual_trades
from dexorder_exchange_sim.periods import DAY, Period
from dexorder_exchange_sim.trades import Trades

AGGREGATES = 10**12
"""Id of the aggregate of trade 0: each trade is an aggregate, but their ids are another series, as at Binance."""


def aggregate_id(trade_id: int, again_id: int | None) -> int:
    """Return the id of a trade's aggregate; the ids restart at 1 with the trade ``again_id``."""
    if again_id is not None and trade_id >= again_id:
        return trade_id - again_id + 1
    return trade_id + AGGREGATES


def trade_of_aggregate(id: int, again_id: int | None) -> int:
    """Return the trade of an aggregate's id; an id that was used twice means the newer aggregate."""
    return max(0, id - AGGREGATES) if again_id is None else again_id + max(0, id - 1)


def kline_rows(candles: Candles, period: Period, instrument: SimInstrument) -> list[list[Any]]:
    """Return candles as the twelve columns of a kline; values are text that reads back to the same float64."""
    indexes = period.indexes(candles.open_s)
    ends_s = period.opens_s(indexes + 1)
    price, lot = printer(instrument.price_decimals), printer(instrument.lot_decimals)
    columns = (
        (candles.open_s * 1000).tolist(),
        *(price(column) for column in (candles.open, candles.high, candles.low, candles.close)),
        lot(candles.volume),
        (ends_s * 1000 - 1).tolist(),
        ["0"] * len(candles),
        usual_trades(instrument, ends_s - candles.open_s).tolist(),
    )
    return [[*row, "0", "0", "0"] for row in zip(*columns, strict=True)]


def raw_trade_rows(trades: Trades, instrument: SimInstrument, again_id: int | None) -> Rows:
    """Return trades as ``trades`` and ``historicalTrades`` have them; their ids never restart."""
    price, lot = printer(instrument.price_decimals), printer(instrument.lot_decimals)
    cost = printer(8)(trades.price * trades.amount)
    columns = (trades.id.tolist(), price(trades.price), lot(trades.amount), cost, trades.time_ms.tolist())
    names = ("id", "price", "qty", "quoteQty", "time", "isBuyerMaker", "isBestMatch")
    return [
        dict(zip(names, (*row, True), strict=True))
        for row in zip(*columns, trades.buyer_is_maker.tolist(), strict=True)
    ]


def aggregate_rows(trades: Trades, instrument: SimInstrument, again_id: int | None) -> Rows:
    """Return trades as ``aggTrades`` has them."""
    price, lot = printer(instrument.price_decimals), printer(instrument.lot_decimals)
    columns = (trades.id.tolist(), price(trades.price), lot(trades.amount), trades.time_ms.tolist())
    rows = zip(*columns, trades.buyer_is_maker.tolist(), strict=True)
    return [
        {"a": aggregate_id(i, again_id), "p": p, "q": q, "f": i, "l": i, "T": t, "m": maker, "M": True}
        for i, p, q, t, maker in rows
    ]


def day_ticker(source: Source, now_ns: int) -> dict[str, Any]:
    """Return the ticker of the last 24 hours, to the minute."""
    end_s = source.newest_s(now_ns=now_ns)
    start_s = end_s - DAY
    day = sum_up(source, start_s, end_s, now_ns=now_ns)
    instrument = source.instrument
    price, lot, rough = (printer(d) for d in (instrument.price_decimals, instrument.lot_decimals, 8))
    prices = price(np.array([day.open, day.high, day.low, day.close]))
    percent = (day.close / day.open - 1) * 100 if day.open else 0.0
    change, percent_text, average, turnover = rough(
        np.array([day.close - day.open, percent, day.mean, day.mean * day.volume])
    )
    return {
        "symbol": instrument.id,
        "priceChange": change,
        "priceChangePercent": percent_text,
        "weightedAvgPrice": average,
        "prevClosePrice": prices[0],
        "lastPrice": prices[3],
        "lastQty": lot(np.array([0.0]))[0],
        "bidPrice": prices[3],
        "bidQty": lot(np.array([0.0]))[0],
        "askPrice": prices[3],
        "askQty": lot(np.array([0.0]))[0],
        "openPrice": prices[0],
        "highPrice": prices[1],
        "lowPrice": prices[2],
        "volume": lot(np.array([day.volume]))[0],
        "quoteVolume": turnover,
        "openTime": start_s * 1000,
        "closeTime": end_s * 1000,
        "firstId": -1,
        "lastId": -1,
        "count": 0,
    }
