"""Exported files, read by the unmodified freqtrade, nautilus_trader and hftbacktest in environments of their own."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from dexorder.exports.formats import FORMATS
from dexorder.rows.table import Rows
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from tests.peers.environment import peer_python

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_200)]
TICKER, COUNT = "BTC/USDT.BINANCE", 500
START = datetime(2024, 1, 1, tzinfo=UTC)
FREQTRADE = """
import json, logging, sys
from pathlib import Path
warnings = []
class Warnings(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.INFO:
            warnings.append(record.getMessage())
logging.getLogger().addHandler(Warnings())
logging.getLogger().setLevel(logging.INFO)
from freqtrade.configuration import TimeRange
from freqtrade.data.history import load_pair_history
from freqtrade.data.history.datahandlers import get_datahandler
from freqtrade.enums import CandleType, TradingMode
folder = Path(sys.argv[1])
wanted = TimeRange.parse_timerange("20240101-20240121")
options = {"timerange": wanted, "data_format": "feather", "candle_type": CandleType.SPOT}
frame = load_pair_history("BTC/USDT", "1h", folder, **options)
trades = get_datahandler(folder, "feather").trades_load("BTC/USDT", TradingMode.SPOT)
columns = ["open", "high", "low", "close", "volume"]
print(json.dumps({
    "candles": [[int(row["date"].timestamp()), *(row[name] for name in columns)] for _, row in frame.iterrows()],
    "trades": trades[["timestamp", "id", "side", "price", "amount"]].values.tolist(),
    "warnings": [each for each in warnings if "issing" in each or "gap" in each or "Error" in each],
}))
"""
NAUTILUS = """
import json, sys
from nautilus_trader.persistence.catalog import ParquetDataCatalog
def exact(value):
    return float(str(value))  # float() of a price is off by a bit
catalog = ParquetDataCatalog(sys.argv[1])
print(json.dumps({
    "candles": [
        [each.ts_event // 10**9 - 3_600, *map(exact, (each.open, each.high, each.low, each.close, each.volume))]
        for each in catalog.bars()
    ],
    "trades": [
        [each.ts_event // 10**6, str(each.trade_id), each.aggressor_side.name, exact(each.price), exact(each.size)]
        for each in catalog.trade_ticks()
    ],
}))
"""
HFTBACKTEST = """
import json, sys
import numpy as np
from hftbacktest import BUY_EVENT, BacktestAsset, HashMapMarketDepthBacktest, LOCAL_EVENT, SELL_EVENT, TRADE_EVENT
from hftbacktest.data.validation import validate_event_order
from hftbacktest.types import event_dtype
data = np.load(sys.argv[1])["data"]
assert data.dtype == event_dtype, data.dtype
validate_event_order(data)
asset = (
    BacktestAsset().data([sys.argv[1]]).linear_asset(1.0).constant_order_latency(0, 0)
    .risk_adverse_queue_model().no_partial_fill_exchange().trading_value_fee_model(0, 0)
    .tick_size(0.01).lot_size(0.001).last_trades_capacity(10_000)
)
backtest = HashMapMarketDepthBacktest([asset])
seen = []
while backtest.elapse(10**12) == 0:
    for each in backtest.last_trades(0):
        side = "buy" if each["ev"] & BUY_EVENT else "sell" if each["ev"] & SELL_EVENT else None
        seen.append([int(each["exch_ts"]) // 10**6, side, float(each["px"]), float(each["qty"])])
    backtest.clear_last_trades(0)
for each in backtest.last_trades(0):
    side = "buy" if each["ev"] & BUY_EVENT else "sell" if each["ev"] & SELL_EVENT else None
    seen.append([int(each["exch_ts"]) // 10**6, side, float(each["px"]), float(each["qty"])])
print(json.dumps({"trades": seen}))
"""


def candles() -> list[list[float]]:
    dice, rows = Random(7), list[list[float]]()
    for number in range(COUNT):
        base = round(40_000 + 1_000 * dice.random(), 2)
        low, high = round(base - dice.random(), 2), round(base + dice.random(), 2)
        rows.append([START.timestamp() + 3_600 * number, base, high, low, base, round(100 * dice.random(), 6)])
    return rows


def trades() -> list[list[Any]]:
    dice, first_ms = Random(8), int(START.timestamp() * 1_000)
    return [
        [
            first_ms + 250 * n,
            str(n + 1),
            dice.choice(["buy", "sell"]),
            round(40_000 + dice.random(), 2),
            round(1 + dice.random(), 3),
        ]
        for n in range(COUNT)
    ]


def candle_rows() -> Rows:
    columns: Any = dict(
        zip(("open", "high", "low", "close", "volume"), list(zip(*candles(), strict=True))[1:], strict=True)
    )
    times = pa.array([START + timedelta(hours=n) for n in range(COUNT)], pa.timestamp("us", "UTC"))
    return Rows(pa.table({"open_time": times, **columns}))


def trade_rows() -> Rows:
    times, ids, sides, prices, amounts = zip(*trades(), strict=True)
    moments: Any = pa.array([each * 1_000 for each in times], pa.int64()).cast(pa.timestamp("us", "UTC"))
    named: Any = {"time": moments, "trade_id": ids, "price": prices, "amount": amounts, "side": sides}
    return Rows(pa.table(named))


def read_by(peer: str, program: str, path: Path) -> dict[str, Any]:
    python = peer_python(peer, "3.12")
    done = subprocess.run([str(python), "-I", "-c", program, str(path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_freqtrade_reads_equal_rows_without_a_warning_of_gaps(tmp_path: Path) -> None:
    FORMATS["freqtrade"].write(candle_rows(), Series(TICKER, 3_600), tmp_path)
    FORMATS["freqtrade"].write(trade_rows(), Series(TICKER, dataset=TRADES), tmp_path)
    found = read_by("freqtrade", FREQTRADE, tmp_path)
    wanted = [each for each in candles() if each[0] < (START + timedelta(days=20)).timestamp()]
    assert found["candles"][: len(wanted)] == wanted and len(wanted) == 480
    assert found["trades"] == trades() and found["warnings"] == []


def test_nautilus_reads_equal_rows(tmp_path: Path) -> None:
    FORMATS["nautilus"].write(candle_rows(), Series(TICKER, 3_600), tmp_path)
    FORMATS["nautilus"].write(trade_rows(), Series(TICKER, dataset=TRADES), tmp_path)
    found = read_by("nautilus", NAUTILUS, tmp_path)
    sides = {"buy": "BUYER", "sell": "SELLER"}
    assert found["candles"] == candles()
    assert found["trades"] == [[ms, trade_id, sides[side], *rest] for ms, trade_id, side, *rest in trades()]


def test_hftbacktest_replays_equal_trades(tmp_path: Path) -> None:
    path = FORMATS["hftbacktest"].write(trade_rows(), Series(TICKER, dataset=TRADES), tmp_path)
    found = read_by("hftbacktest", HFTBACKTEST, path)
    assert found["trades"] == [[ms, *rest] for ms, _, *rest in trades()]
