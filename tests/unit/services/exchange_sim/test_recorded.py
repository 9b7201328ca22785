from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dexorder_exchange_sim.candles import CandleRequest, Candles, Source
from dexorder_exchange_sim.periods import PERIODS
from dexorder_exchange_sim.recorded import load

START_MS = 1_546_300_800_000
LATER_NS = 1_700_000_000 * 10**9
MISSING = {0, 7, 8, 9, 61, 62, 130, *range(300, 480)}
"""Minutes of a ten-hour recording in which nobody traded; from minute 300 on three whole hours."""
COLUMNS = ("timestamp", "open", "high", "low", "close", "volume")


def recording() -> dict[str, Any]:
    """Ten hours of minutes with holes; values with all the digits a float64 has, some tiny."""
    random = np.random.default_rng(1)
    minutes = np.array([minute for minute in range(600) if minute not in MISSING])
    opened, closed = random.uniform(1e-6, 4e-6, len(minutes)), random.uniform(1e-6, 4e-6, len(minutes))
    high = np.maximum(opened, closed) * random.uniform(1, 1.1, len(minutes))
    low = np.minimum(opened, closed) / random.uniform(1, 1.1, len(minutes))
    volume = random.uniform(0, 1e6, len(minutes))
    return dict(zip(COLUMNS, (START_MS + minutes * 60_000, opened, high, low, closed, volume), strict=True))


@pytest.fixture(params=["parquet", "csv", "shuffled"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    columns = recording()
    if request.param == "csv":
        path = tmp_path / "recording.csv"
        lines = [
            ",".join(map(repr, row)) for row in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]
        path.write_text("\n".join([",".join(COLUMNS).replace("timestamp", "open_time"), *lines]))
        return path
    if request.param == "shuffled":
        order = np.random.default_rng(2).permutation(len(columns["open"]))
        columns = {name: column[order] for name, column in columns.items()}
    path = tmp_path / "recording.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def fetch(market: Source, period: str, start: int | None = None, end: int | None = None, n: int = 1000) -> Candles:
    return market.candles(PERIODS[period], CandleRequest(start, end, n), now_ns=LATER_NS)


def test_rows_come_back_as_recorded(file: Path) -> None:
    [market] = load([f"{file}=ABC/USDT"])
    rows = fetch(market, "1m")
    for served, recorded in zip((rows.open_s * 1000, *rows.columns()[1:]), recording().values(), strict=True):
        assert np.array_equal(served, recorded)


def test_pages_follow_the_exchange_rules(file: Path) -> None:
    [market] = load([f"{file}=ABC/USDT"])

    def minutes(rows: Candles) -> list[int]:
        return [(time_s * 1000 - START_MS) // 60_000 for time_s in rows.open_s.tolist()]

    def at(minute: int) -> int:
        return START_MS + minute * 60_000

    assert minutes(fetch(market, "1m", at(5), n=4)) == [5, 6, 10, 11]
    assert minutes(fetch(market, "1m", at(5), at(10))) == [5, 6, 10]
    assert minutes(fetch(market, "1m", at(7), at(9))) == []
    assert minutes(fetch(market, "1m", end=at(10), n=2)) == [6, 10]
    assert minutes(fetch(market, "1m", n=2)) == [598, 599]
    assert minutes(fetch(market, "1m", at(600))) == []


def test_coarser_periods_are_added_up_and_finer_ones_are_empty(file: Path) -> None:
    [market] = load([f"{file}=ABC/USDT"])
    columns, rows = recording(), fetch(market, "1h")
    hours = (columns["timestamp"] - START_MS) // 3_600_000
    assert ((rows.open_s * 1000 - START_MS) // 3_600_000).tolist() == [0, 1, 2, 3, 4, 8, 9]
    for number, hour in enumerate([0, 1, 2, 3, 4, 8, 9]):
        part = {name: column[hours == hour] for name, column in columns.items()}
        assert rows.open[number] == part["open"][0] and rows.close[number] == part["close"][-1]
        assert rows.high[number] == part["high"].max() and rows.low[number] == part["low"].min()
        assert rows.volume[number] == pytest.approx(part["volume"].sum(), rel=1e-12)
    assert len(fetch(market, "1M")) == 1
    assert not len(fetch(market, "1s"))


def test_a_candle_shows_once_it_is_over(file: Path) -> None:
    [market] = load([f"{file}=ABC/USDT"])
    half_past = START_MS + 30 * 60_000 + 30_000
    rows = market.candles(PERIODS["1m"], CandleRequest(None, None, 1), now_ns=half_past * 10**6)
    assert (rows.open_s * 1000 - START_MS).tolist() == [29 * 60_000]
    running = market.candles(PERIODS["1h"], CandleRequest(None, None, 1), now_ns=half_past * 10**6)
    assert running.close[0] == rows.close[0]
    assert fetch(market, "1h", n=1, end=START_MS).close[0] != rows.close[0]


def test_one_file_may_hold_several_timeframes(tmp_path: Path) -> None:
    columns = recording()
    part = {name: column[:3] for name, column in columns.items()}
    names = ["1m"] * len(columns["open"]) + ["4h"] * 3
    merged: dict[str, Any] = {name: np.concatenate((columns[name], part[name])) for name in COLUMNS}
    merged["timestamp"][-3:] = START_MS + np.arange(3) * 4 * 3_600_000
    pq.write_table(pa.table({"timeframe": names, **merged}), tmp_path / "multi.parquet")
    [market] = load([f"{tmp_path / 'multi.parquet'}=ABC/USDT"])
    assert len(fetch(market, "1m")) == len(columns["open"])
    assert fetch(market, "4h").close.tolist() == part["close"].tolist()
    assert fetch(market, "1h").close[-1] == columns["close"][-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": [START_MS, START_MS, START_MS + 60_000]}, "duplicate 1m candle"),
        ({"timestamp": [1_546_300_800, 1_546_300_860, 1_546_300_920]}, "milliseconds"),
        ({"timestamp": [START_MS, START_MS + 500, START_MS + 60_000]}, "whole seconds"),
        ({"open": [1.0, float("nan"), 1.0]}, "empty or infinite"),
        ({"timeframe": ["1m", "1m", "7m"]}, "unknown timeframe '7m'"),
        ({"volume": None}, "volume"),
    ],
)
def test_a_file_that_cannot_be_served_exactly_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {name: [1.0, 1.0, 1.0] for name in COLUMNS}
    columns["timestamp"] = [START_MS, START_MS + 60_000, START_MS + 120_000]
    columns = {name: column for name, column in {**columns, **change}.items() if column is not None}
    pq.write_table(pa.table(columns), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=message):
        load([f"{tmp_path / 'bad.parquet'}=ABC/USDT"])


def test_the_period_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "one.parquet"
    pq.write_table(pa.table({name: [START_MS if name == "timestamp" else 1.0] for name in COLUMNS}), file)
    with pytest.raises(ValueError, match="FILE=SYMBOL@PERIOD"):
        load([f"{file}=ABC/USDT"])
    [market] = load([f"{file}=ABC/USDT@1h"])
    assert len(fetch(market, "1h")) == 1 and not len(fetch(market, "1m"))
    with pytest.raises(ValueError, match="already served"):
        load([f"{file}=ABC/USDT@1h", f"{file}=ABC/USDT@1h"])


@pytest.mark.parametrize("spec", ["nofile", "=A/B", "f.parquet=AB", "f.parquet=A/B@7m"])
def test_a_malformed_spec_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="is not FILE"):
        load([spec])
