"""A backtest on the running candle reads the stored trades, and the closed candles before them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dexorder_common.lake.commit import append_rows
from dexorder_common.lake.tables import TICKS, writable
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.triggers import Trigger
from dexorder_common.rpc.trigger_messages import decode_event
from dexorder_relay.triggers.backtest import Backtest, answers
from tests.unit.services.relay.harness import TICKER, at, catalog_settings, make_tables

SQL = "SELECT ts, close, high FROM ohlc WHERE high > 5"
PRICES = (4.0, 6.0, 7.0, 5.0, 4.5, 8.0)


def test_the_trades_of_the_range_form_the_candles(tmp_path: Path) -> None:
    settings = catalog_settings(tmp_path)
    catalog = settings.load()
    make_tables(catalog)
    rows = [
        {
            "ticker": TICKER,
            "trade_id": str(number),
            "time": (at(0) + number * 25 * SECOND_NS) // 1_000,
            "price": price,
            "amount": 1.0,
            "side": "buy",
            "received_at": None,
            "dispatch": 1,
        }
        for number, price in enumerate(PRICES)
    ]
    table = TICKS.load_or_create(catalog)
    table.metadata = writable(table.metadata)
    append_rows(table, pa.Table.from_pylist(rows, schema=TICKS.arrow))
    for on in ("tick", "bar"):
        trigger = Trigger("t", SQL, (TICKER,), parameters={"on": on})
        *events, last = answers(Backtest(settings, trigger, TimeRange(at(0), at(3)), 1_000))
        found = [decode_event(each.event) for answer in events for each in answer.events]
        assert [each.rows[0][1] for each in found] == [6.0, 8.0]
        assert [each.time_ns for each in found] == [at(0) + 25 * SECOND_NS, at(0) + 125 * SECOND_NS]
        (market,) = last.markets
        assert (market.rows, market.firings, last.period_seconds) == (len(PRICES), 2, 60)
    catalog.close()
