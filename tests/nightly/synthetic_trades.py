"""Files of trades, written from the simulated exchange's synthetic markets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import SyntheticMarket

FIRST_S = 1_704_067_200
"""2024-01-01."""
_NEVER_NS = 2**62


def write_trades(path: Path, symbol: str, *, hours: float) -> Path:
    """Write the trades of some hours from 2024-01-01 on, with the columns of recorded trades."""
    market = SyntheticMarket(next(each for each in INSTRUMENTS if each.symbol == symbol), seed=9)
    end_ns = int((FIRST_S + hours * 3_600) * SECOND_NS)
    first = market.first_trade_at(FIRST_S * 1_000, now_ns=_NEVER_NS)
    count = market.first_trade_at(end_ns // 1_000_000, now_ns=_NEVER_NS) - first
    trades = market.trades(first, count, now_ns=_NEVER_NS)
    pq.write_table(
        pa.table(
            {
                "timestamp": pa.array(trades.time_ms),
                "id": [str(number) for number in trades.id.tolist()],
                "side": ["sell" if maker else "buy" for maker in trades.buyer_is_maker.tolist()],
                "price": pa.array(trades.price),
                "amount": pa.array(trades.amount),
            }
        ),
        path,
    )
    return path
