"""Candle charts for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.text import Text

from dexorder.charts.bars import Bar, bars, marked
from dexorder.rows.table import Rows
from dexorder_common.model.times import iso

UP, DOWN, DIM, MARK = "green", "red", "bright_black", "yellow"
_VOLUME = " ▁▂▃▄▅▆▇█"
# A cell has an upper and a lower half; each is empty, wick ("w") or body ("b").
_CELLS = {
    (" ", " "): " ",
    ("w", "w"): "│",
    ("b", "b"): "┃",
    ("w", " "): "╵",
    (" ", "w"): "╷",
    ("b", " "): "╹",
    (" ", "b"): "╻",
    ("w", "b"): "╽",
    ("b", "w"): "╿",
}


def candle_chart(rows: Rows, *, width: int = 100, height: int = 16, marks_ns: Sequence[int] | None = None) -> Text:
    """Return a chart of ``rows``, ascending by ``open_time``, in ``width`` x (``height`` + 3) characters.

    Args:
        marks_ns: Times that one more line marks: ends of candles at which something happened.
    """
    if not rows.num_rows:
        return Text("no candles", style=DIM)
    columns = bars(rows, max(width - 13, 1))
    marks = [] if marks_ns is None else [mark_line(columns, marks_ns)]
    return Text("\n").join([*lines(columns, height), *marks, volume_line(columns), _time_axis(columns)])


def mark_line(columns: Sequence[Bar], marks_ns: Sequence[int]) -> Text:
    """Return a line with a mark below each column in which a time falls."""
    found = set(marked([bar.open_ns for bar in columns], marks_ns))
    line = Text()
    for index in range(len(columns)):
        line.append("▲" if index in found else " ", style=MARK)
    return line.append(f" fires, {len(marks_ns):,} times", style=DIM)


def lines(columns: Sequence[Bar], height: int) -> list[Text]:
    """Return the lines of the candles, highest price first, with the price at the right of every fourth line."""
    low, high = min(bar.low for bar in columns), max(bar.high for bar in columns)
    span = (high - low) or abs(high) or 1.0
    halves = height * 2
    step = span / halves

    def half(price: float) -> int:
        return min(halves - 1, int((price - low) / step))

    drawn = []
    for row in range(height - 1, -1, -1):
        line = Text()
        for bar in columns:
            line.append(_cell(bar, row, half), style=_colour(bar))
        if row % 4 == (height - 1) % 4 or row == 0:
            line.append(f" ┤{_price(low + (row + 0.5) / height * span)}", style=DIM)
        drawn.append(line)
    return drawn


def _cell(bar: Bar, row: int, to_half: Callable[[float], int]) -> str:
    bottom, top = sorted((to_half(bar.open), to_half(bar.close)))
    lowest, highest = to_half(bar.low), to_half(bar.high)

    def part(index: int) -> str:
        if bottom <= index <= top:
            return "b"
        return "w" if lowest <= index <= highest else " "

    return _CELLS[part(row * 2 + 1), part(row * 2)]


def volume_line(columns: Sequence[Bar]) -> Text:
    """Return the line of the volumes."""
    largest = max(bar.volume for bar in columns)
    line = Text()
    for bar in columns:
        level = math.ceil(bar.volume / largest * (len(_VOLUME) - 1)) if largest else 0
        line.append(_VOLUME[level], style=_colour(bar))
    return line.append(f" volume, max {_price(largest)}", style=DIM)


def _colour(bar: Bar) -> str:
    return UP if bar.rises else DOWN


def _time_axis(columns: Sequence[Bar]) -> Text:
    first, last = iso(columns[0].open_ns), iso(columns[-1].open_ns)
    gap = max(1, len(columns) - len(first) - len(last))
    return Text(first if len(columns) == 1 else first + " " * gap + last, style=DIM)


def _price(value: float) -> str:
    return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.6g}"
