"""Kraken.

Its candle call ignores an old start and returns the newest 720 without an error. **History is built from trades**
([rules](#candles-from-trades)).

- `Trades` returns the oldest 1,000 after `since`, in time order, with a cursor `last`; the pair is the key of the list.
  `since` is sent in nanoseconds: ccxt's own argument would be cut to seconds, which can hold more than 1,000 trades.
- ccxt's list of trades is not used because it sorts trades of one millisecond by their ids as text. The raw rows are
  read: `[price, amount, seconds, side, type, misc, id]`. A time is a double, exact to 0.2 µs.
- Trades without an id (older answers) are accepted when two consecutive answers are equal, which doubles the calls, and
  holes are proven by agreeing answers as at any other exchange.

Prices are exact, volumes are decimal sums. A period without trades gets no candle (Kraken's own call would return a
flat one). These candles have not been compared with Kraken's own.

ccxt calls it 0.83 times a second, so 1,000 trades cost 1.2 s. Long periods of a busy market are slow (a million trades
take 20 minutes), and a dispatch must end within `DISPATCH_DEADLINE_SECONDS`. Only one page of trades is in memory at a
time.

A dark-pool market (`XXBTZUSD.d`) has the same symbol as the lit one. ccxt would use the last one of its list; the
ingestor drops the dark one. `EService:Throttled` comes with status 200 and names the second until which calls are
refused.

Ids are consecutive in a market, so a missing trade shows in the socket's trades, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import MARKET, BadAnswer, at
from dexorder_ingestor.exchange.dialect import CandleFacts, Dialect, ErrorFacts, HealingCode, Quirks, Remedy
from dexorder_ingestor.exchange.trades import TradeRow, TradeSeries

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_ERROR_NS = 1_000
"""Trade times are seconds in a double, exact to 0.2 us."""


def read_trades(rows: list[Any], last: Any, *, since_ns: int) -> list[TradeRow]:
    """Return the trades of raw rows, ``[price, amount, seconds, side, type, misc, id]``; older answers lack the id.

    Args:
        rows: In the exchange's order; ccxt's own sorting mixes up trades of one millisecond.
        last: The cursor that came with them, nanoseconds.
    Raises:
        BadAnswer: A row is not a trade; trades are out of order, duplicates or older than queried; or the cursor goes
            back.
    """
    trades = [_read_trade(row) for row in rows]
    if len({trade.id is None for trade in trades}) > 1:
        raise BadAnswer("only some of the trades have an id")
    for one, other in pairwise(trades):
        if one.time_ns > other.time_ns or (one.id is not None and other.id is not None and one.id >= other.id):
            raise BadAnswer(f"trade {other.row!r} comes after {one.row!r}", kind="order")
    second_ns = since_ns - since_ns % SECOND_NS
    if trades and trades[0].time_ns < second_ns:
        raise BadAnswer(f"trade {trades[0].row!r} is older than the queried time {iso(since_ns)}", kind="window")
    if not str(last).isdecimal():
        raise BadAnswer(f"the answer's cursor is {str(last)[:40]!r}, not a number")
    if int(last) < (trades[-1].time_ns - _TIME_ERROR_NS if trades else second_ns):
        raise BadAnswer(f"the answer's cursor goes back to {last}", kind="window")
    return trades


def _read_trade(row: Any) -> TradeRow:
    if not isinstance(row, list) or len(row) < 6:
        raise BadAnswer(f"row {str(row)[:80]!r} is not a trade")
    time_s = row[2]
    if isinstance(time_s, bool) or not isinstance(time_s, (int, float)) or not 0 < time_s < 9e9:
        raise BadAnswer(f"trade {str(row)[:120]} lacks a time in seconds")
    whole_s = int(time_s)
    # ccxt appends the cursor, a text, to the last row.
    trade_id = row[6] if len(row) > 6 and type(row[6]) is int else None
    return TradeRow(whole_s * SECOND_NS + int((time_s - whole_s) * 1e9), trade_id, tuple(row[:6]))


def _read_answer(rows: list[Any], answer: Any, since_ns: int) -> list[TradeRow]:
    return read_trades(rows, at(answer, ("result", "last")), since_ns=since_ns)


def _time_ns(trade: Mapping[str, Any]) -> int:
    """Return the time to the microsecond, which the socket and REST both have; ccxt cuts it to milliseconds."""
    info = trade["info"]
    if isinstance(info, Mapping):
        return (datetime.fromisoformat(info["timestamp"]) - _EPOCH) // _MICROSECOND * 1_000
    return int(Decimal(repr(info[2])) * 1_000_000) * 1_000


DIALECT = Dialect(
    "kraken",
    candles=CandleFacts(240, wide=True, read_trades=_read_answer, rows_at=("result", MARKET), publish_seconds=30.0),
    trades=TradeSeries(numbered=True, since_text=True, since_slack_ns=2_000, time_ns=_time_ns),
    errors=ErrorFacts(
        codes_at=(("error", 0),),
        healing={"EService:Throttled": HealingCode(Remedy.SLOW_DOWN, "throttled (ccxt: ExchangeError)")},
        throttled_until=re.compile(r"EService: ?Throttled: ?(\d{10})\b"),
    ),
    quirks=Quirks(dark_pool_suffix=".d"),
)
