"""Oracle: the candles that the simulated exchange must have delivered, and their comparison with the table."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from dexorder.rows.table import Rows
from dexorder_common.model.periods import PERIOD_SECONDS
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_exchange_sim.candles import CandleRequest
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import SyntheticMarket
from dexorder_exchange_sim.periods import PERIODS

VALUES = ["open", "high", "low", "close", "volume"]


def oracle(symbol: str, period: str, span: TimeRange) -> pa.Table:
    """Return the rows of a range as the simulated exchange's pure market computes them, in time order."""
    instrument = next(i for i in INSTRUMENTS if i.symbol == symbol)
    market = SyntheticMarket(instrument, seed=SimSettings().seed)
    return candles_of(market, period, span, now_ns=time.time_ns())


def candles_of(market: SyntheticMarket, period: str, span: TimeRange, *, now_ns: int) -> pa.Table:
    """Return the rows of a range as a pure market computes them, in time order."""
    step_ms = PERIOD_SECONDS[period] * 1_000
    start_ms, end_ms = span.start_ns // 1_000_000, span.end_ns // 1_000_000
    count = (end_ms - start_ms) // step_ms
    candles = market.candles(
        PERIODS[period], CandleRequest(start_ms=start_ms, end_ms=end_ms - 1, limit=count), now_ns=now_ns
    )
    return pa.table(
        {
            "open_time": pa.array(candles.open_s * 1_000_000, pa.int64()),
            **{name: pa.array(getattr(candles, name), pa.float64()) for name in VALUES},
        }
    )


def assert_equal(found: Rows | pa.Table, expected: pa.Table) -> None:
    """Assert the same keys in the same number, and the same values bit for bit."""
    rows = found.to_arrow() if isinstance(found, Rows) else found
    times = pc.cast(rows["open_time"], pa.int64())
    assert len(pc.unique(times)) == len(rows), "duplicate rows"
    assert len(rows) == len(expected)
    assert times.equals(expected["open_time"]), "other keys"
    for name in VALUES:
        assert rows[name].equals(expected[name]), name


def minutes(start_minute: int, count: int) -> TimeRange:
    """Return a range of one-minute candles, counted from 2024-01-01."""
    start_ns = (1_704_067_200 + start_minute * 60) * SECOND_NS
    return TimeRange(start_ns, start_ns + count * 60 * SECOND_NS)
