"""Coinbase.

The Advanced Trade API without keys. `start` and `end` are in seconds; a window of over 300 candles is refused; newest
first. Candles without trades are left out, so illiquid markets have true holes. Periods: 1m, 5m, 15m, 30m, 1h, 2h, 6h,
1d; any other is refused. The list of markets takes five calls. ccxt calls it 9.8 times a second.

Ids of trades are texts of digits in an undocumented order. Older trades are not available: ccxt
refuses a start without an end.
"""

from __future__ import annotations

from dexorder_ingestor.exchange.dialect import CandleFacts, Columns, Dialect, ErrorFacts, HealingCode, Remedy
from dexorder_ingestor.exchange.trades import TradeSeries

_COLUMNS: Columns = ("start", "open", "high", "low", "close", "volume", None, None)

DIALECT = Dialect(
    "coinbase",
    candles=CandleFacts(
        300,
        rows_at=("candles",),
        columns=_COLUMNS,
        linear_columns=_COLUMNS,
        time_unit_ms=1_000,
        volume_tolerance=1e-6,
    ),
    trades=TradeSeries(by_time=False),
    errors=ErrorFacts(
        codes_at=(("errors", 0, "id"), ("error",)),
        healing={"internal_server_error": HealingCode(Remedy.REPEAT, "internal error (ccxt: ExchangeError)")},
    ),
)
