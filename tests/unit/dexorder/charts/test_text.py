import random

import pyarrow as pa
from rich.cells import cell_len

from dexorder.charts.bars import bars
from dexorder.charts.text import candle_chart
from dexorder.rows.table import Rows
from tests.fakes.candle_table import TICKER, candles


def table(*rows: tuple[float, float, float, float, float]) -> Rows:
    plain = candles(TICKER, 0, len(rows)).select(["ticker", "period_seconds", "open_time"])
    for i, name in enumerate(("open", "high", "low", "close", "volume")):
        plain = plain.append_column(name, pa.array([row[i] for row in rows], pa.float64()))
    return Rows(plain)


def test_chart_of_three_candles() -> None:
    rows = table((2, 6, 1, 4, 10), (4, 8, 4, 8, 80), (8, 8, 0, 2, 40))
    text = candle_chart(rows, width=20, height=4)
    assert text.plain.splitlines() == [
        "╷┃┃ ┤7",  # each line is two halves of 1 high: the first candle's wick ends in the lower one
        "╽┃┃",
        "┃ ┃",
        "╵ │ ┤1",
        "▁█▄ volume, max 80",
        "2024-01-01T00:00:00Z 2024-01-01T02:00:00Z",
    ]


def test_rising_and_falling_candles_differ_in_colour() -> None:
    rows = table((1, 2, 1, 2, 1), (2, 2, 1, 1, 1))
    rising, falling = bars(rows, 10)
    assert rising.rises and not falling.rises
    assert [str(span.style) for span in candle_chart(rows, height=1).spans[:2]] == ["green", "red"]


def test_neighbours_are_combined_if_the_chart_is_too_narrow() -> None:
    rows = table((1, 5, 1, 2, 1), (2, 3, 0, 3, 2), (3, 4, 3, 4, 4))
    first, last = bars(rows, 2)
    assert (first.open, first.high, first.low, first.close, first.volume) == (1, 5, 0, 3, 3)
    assert (last.open, last.close, last.volume) == (3, 4, 4)


def test_any_candles_fit_the_chart() -> None:
    rng = random.Random(3)
    for count in (1, 2, 7, 99, 1000, 2881):
        rows = []
        for _ in range(count):
            low, open_, close, high = sorted(rng.uniform(0, 1e5) for _ in range(4))
            rows.append((open_, high, low, close, rng.choice([0.0, rng.uniform(0, 10)])))
        lines = candle_chart(table(*rows), width=80, height=10).plain.splitlines()
        assert len(lines) == 12
        assert max(cell_len(line) for line in lines[:10]) <= 80


def test_flat_and_empty_tables_can_be_drawn() -> None:
    assert candle_chart(table()).plain == "no candles"
    assert "┃" in candle_chart(table((5, 5, 5, 5, 0))).plain or "╻" in candle_chart(table((5, 5, 5, 5, 0))).plain
