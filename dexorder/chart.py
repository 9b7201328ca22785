"""Candle charts for a terminal and as an HTML page."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.text import Text

from dexorder.services.common.model.periods import PERIODS
from dexorder.services.common.model.times import iso

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


@dataclass(frozen=True, slots=True)
class Bar:
    """One column of the chart: a candle, or several combined."""

    open_ns: int
    open: float
    high: float
    low: float
    close: float
    volume: float

    @property
    def colour(self) -> str:
        """Green unless the price fell."""
        return UP if self.close >= self.open else DOWN


def bars(rows: pa.Table, limit: int) -> list[Bar]:
    """Return at most ``limit`` columns for candles in time order, each combining the same number of neighbours."""
    count = math.ceil(rows.num_rows / max(limit, 1)) or 1
    times: list[Any] = rows["open_time"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_pylist()
    opens, highs, lows, closes, volumes = (_values(rows, name) for name in ("open", "high", "low", "close", "volume"))
    return [
        Bar(
            times[i],
            opens[i],
            max(highs[i : i + count]),
            min(lows[i : i + count]),
            closes[min(i + count, len(closes)) - 1],
            math.fsum(volumes[i : i + count]),
        )
        for i in range(0, rows.num_rows, count)
    ]


def _values(rows: pa.Table, name: str) -> list[Any]:
    return rows[name].to_pylist()


def candle_chart(rows: pa.Table, *, width: int = 100, height: int = 16, marks_ns: Sequence[int] | None = None) -> Text:
    """Return a chart of ``rows``, ascending by ``open_time``, in ``width`` x (``height`` + 3) characters.

    Args:
        marks_ns: Times that a further line marks: ends of candles at which something happened.
    """
    if not rows.num_rows:
        return Text("no candles", style=DIM)
    columns = bars(rows, max(width - 13, 1))
    marks = [] if marks_ns is None else [mark_line(columns, marks_ns)]
    return Text("\n").join([*lines(columns, height), *marks, volume_line(columns), _time_axis(columns)])


def mark_line(columns: Sequence[Bar], marks_ns: Sequence[int]) -> Text:
    """Return a line with a mark below each column in which a time falls; the end of a candle belongs to it."""
    opens = [bar.open_ns for bar in columns]
    marked = {max(0, bisect_left(opens, time_ns) - 1) for time_ns in marks_ns}
    line = Text()
    for index in range(len(columns)):
        line.append("▲" if index in marked else " ", style=MARK)
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
            line.append(_cell(bar, row, half), style=bar.colour)
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
        line.append(_VOLUME[level], style=bar.colour)
    return line.append(f" volume, max {_price(largest)}", style=DIM)


def _time_axis(columns: Sequence[Bar]) -> Text:
    first, last = iso(columns[0].open_ns), iso(columns[-1].open_ns)
    gap = max(1, len(columns) - len(first) - len(last))
    return Text(first if len(columns) == 1 else first + " " * gap + last, style=DIM)


def _price(value: float) -> str:
    return f"{value:,.2f}" if abs(value) >= 100 else f"{value:.6g}"


def write_html(rows: pa.Table, file: Path, marks_ns: Sequence[int] = ()) -> None:
    """Write an interactive candle chart with volume as one HTML file that needs no network.

    Args:
        marks_ns: Times that are marked: ends of candles at which something happened.
    """
    from plotly.graph_objects import Bar as VolumeBar
    from plotly.graph_objects import Candlestick, Scatter
    from plotly.subplots import make_subplots

    ticker, period = rows["ticker"][0].as_py(), rows["period_seconds"][0].as_py()
    times = [moment.replace(tzinfo=None) for moment in _values(rows, "open_time")]
    prices = {name: _values(rows, name) for name in ("open", "high", "low", "close")}
    colours = [
        "#26a69a" if close >= open_ else "#ef5350" for open_, close in zip(prices["open"], prices["close"], strict=True)
    ]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.78, 0.22], vertical_spacing=0.03)
    figure.add_trace(Candlestick(x=times, name=ticker, **prices), row=1, col=1)
    figure.add_trace(VolumeBar(x=times, y=_values(rows, "volume"), name="volume", marker_color=colours), row=2, col=1)
    if marks_ns:
        opens: list[Any] = rows["open_time"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_pylist()
        marked = sorted({max(0, bisect_left(opens, time_ns) - 1) for time_ns in marks_ns})
        below = {"x": [times[n] for n in marked], "y": [prices["low"][n] for n in marked]}
        look = {"symbol": "triangle-up", "size": 11, "color": "#ff9800"}
        figure.add_trace(Scatter(mode="markers", name="fires", marker=look, **below), row=1, col=1)
    figure.update_layout(
        title=f"{ticker} · {PERIODS[period]} · {rows.num_rows:,} candles · UTC",
        template="plotly_white",
        showlegend=False,
        xaxis_rangeslider_visible=False,
        hovermode="x unified",
        margin={"l": 60, "r": 30, "t": 60},
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(file, include_plotlyjs=True, full_html=True, default_height="96vh")
