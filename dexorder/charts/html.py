"""Candle chart as an HTML page. It needs no network, follows the reader's dark or light scheme, and fits any width.

The page has the candles themselves, so that a reader who zooms in sees shorter bars, and at last each candle.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from dexorder.charts.bars import Bar, Level, candles, combine, fitting, levels, marked
from dexorder.rows.table import Rows
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import SECOND_NS, to_datetime

MAX_BARS = 600
"""Bars on a screen: two pixels each if it has 1,280. Of a longer range each bar is a whole period of candles."""
MAX_CANDLES = 100_000
"""Candles in the page, about 60 bytes each. Of a longer table it has the shortest periods that are not more."""
GAP_SHARE = 20
"""A gap is marked from this part of the chart's time on, so that there are at most so many marks."""
_UP, _DOWN, _MARK, _GAP = "#26a69a", "#ef5350", "#ff9800", "#8a8f98"
_GAP_LINE = {"color": _GAP, "width": 1, "dash": "dot"}
_SCHEMES = {
    "light": {"text": "#2a2e39", "quiet": "#8a8f98", "grid": "#e6e8ec", "paper": "#ffffff"},
    "dark": {"text": "#d1d4dc", "quiet": "#6b7280", "grid": "#2a2e39", "paper": "#131722"},
}
_BUTTONS = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]]
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": _BUTTONS,
    "plotlyServerURL": "",
    "scrollZoom": True,
    "doubleClick": False,  # it would show all that is drawn, which is not the whole range
}
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { --text: $light_text; --paper: $light_paper; }
@media (prefers-color-scheme: dark) { :root { --text: $dark_text; --paper: $dark_paper; } }
html, body { height: 100%; margin: 0; }
body { display: flex; flex-direction: column; overflow: hidden; background: var(--paper); color: var(--text);
  font: 15px/1.4 system-ui, sans-serif; }
h1 { margin: 12px 16px 0; font-size: 17px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 0 16px; font-size: 13px; font-variant-numeric: tabular-nums; }
#values { height: 1.4em; overflow: hidden; }
@media (max-width: 700px) { #values { height: 2.8em; } }
button { float: right; margin: 8px 16px 0; font: inherit; font-size: 13px; }
main { flex: 1; min-height: 0; }
main > div { height: 100%; }
</style>
</head>
<body>
<div><button id="whole" type="button">whole range</button><h1>$ticker</h1></div>
<p>$about<span id="bar">$bar</span></p>
<p id="values">&nbsp;</p>
<main>$figure</main>
</body>
</html>
""")
_SCRIPT = Path(__file__).with_name("chart.js")


def write_html(rows: Rows, file: Path, marks_ns: Sequence[int] = ()) -> None:
    """Write an interactive candle chart with volume as one HTML file that needs no network.

    Args:
        rows: Candles of one series, ascending; at least one.
        marks_ns: Times that are marked: ends of candles at which something happened.
    """
    period_seconds: int = rows["period_seconds"][0].as_py()
    single, known = _embedded(candles(rows), period_seconds)
    first = next(n for n, level in enumerate(known) if len(level.starts) <= MAX_BARS)
    figure = _figure(combine(single, known[first]), known[first].seconds, marks_ns)
    series = _series(single, known, first, period_seconds, marks_ns)
    plot = figure.to_html(
        full_html=False,
        include_plotlyjs=True,
        default_height="100%",
        config=_CONFIG,
        post_script=f"const schemes = {json.dumps(_SCHEMES)};\nconst series = {series};\n{_SCRIPT.read_text()}",
    )
    ticker, about = html.escape(rows["ticker"][0].as_py()), describe(rows.num_rows, period_seconds)
    length = "" if known[first].seconds == period_seconds else f" · a bar is {known[first].name}"
    colours = {f"{scheme}_{name}": value for scheme, each in _SCHEMES.items() for name, value in each.items()}
    title = f"{ticker} {PERIODS[period_seconds]}"
    page = _PAGE.substitute(title=title, ticker=ticker, about=about, bar=length, figure=plot, **colours)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")


def describe(rows: int, period_seconds: int) -> str:
    """Return the line below the title: period and number of candles."""
    return f"{PERIODS[period_seconds]} · {rows:,} {'candle' if rows == 1 else 'candles'} · UTC"


def _embedded(single: list[Bar], period_seconds: int) -> tuple[list[Bar], list[Level]]:
    """Return the shortest bars that the page has, which are the candles unless they are too many, and their levels."""
    shortest = fitting([bar.open_ns for bar in single], period_seconds, MAX_CANDLES)
    if shortest.seconds != period_seconds:
        single = combine(single, shortest)
    return single, list(levels([bar.open_ns for bar in single], shortest.seconds))


def _series(
    single: Sequence[Bar], known: Sequence[Level], first: int, period_seconds: int, marks_ns: Sequence[int]
) -> str:
    """Return the JSON that ``chart.js`` reads."""
    names = ("open", "high", "low", "close", "volume")
    each_level = [
        {
            "name": level.name,
            "form": len(labels([single[0]], level.seconds)[0]),
            "starts": list(level.starts) if n else None,
            "opens": [open_ns // SECOND_NS for open_ns in level.opens_ns],
        }
        for n, level in enumerate(known)
    ]
    found = {
        "columns": {name: [getattr(bar, name) for bar in single] for name in names},
        "levels": each_level,
        "period": PERIODS[period_seconds],
        "most": MAX_BARS,
        "marks": marked([bar.open_ns for bar in single], marks_ns),
        "gaps": [known[first].starts[n] for n in gaps(combine(single, known[first]))],
        "gap": _GAP_LINE,
        "colours": [_UP, _DOWN],
    }
    return json.dumps(found, separators=(",", ":"))


def labels(columns: Sequence[Bar], period_seconds: int) -> list[str]:
    """Return the text of each bar's open time, with the time of day and the seconds only where the period has them."""
    time_of_day = "" if period_seconds % 86_400 == 0 else " %H:%M" if period_seconds % 60 == 0 else " %H:%M:%S"
    form = f"%Y-%m-%d{time_of_day}"
    return [to_datetime(bar.open_ns).strftime(form) for bar in columns]


def gaps(columns: Sequence[Bar]) -> list[int]:
    """Return the indices of bars before which no candles are for at least one ``GAP_SHARE``-th of the chart's time."""
    steps = [after.open_ns - before.open_ns for before, after in pairwise(columns)]
    usual = sorted(steps)[len(steps) // 2] if steps else 0
    least = sum(steps) / GAP_SHARE
    return [n for n, step in enumerate(steps, 1) if step >= max(least, 2 * usual)]


def _figure(columns: Sequence[Bar], bar_seconds: int, marks_ns: Sequence[int]) -> Any:
    from plotly.graph_objects import Bar as VolumeBar
    from plotly.graph_objects import Candlestick, Scatter
    from plotly.subplots import make_subplots

    # Categories instead of times: a time without candles takes no space.
    times = labels(columns, bar_seconds)
    prices = {name: [getattr(bar, name) for bar in columns] for name in ("open", "high", "low", "close")}
    sides = (("increasing", _UP), ("decreasing", _DOWN))
    colours = {name: {"line": {"color": colour, "width": 1}, "fillcolor": colour} for name, colour in sides}
    volumes = [bar.volume for bar in columns]
    of_volume = {"color": [_UP if bar.close >= bar.open else _DOWN for bar in columns], "line": {"width": 0}}
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.03)
    figure.add_trace(
        Candlestick(x=times, name="price", whiskerwidth=0, hoverinfo="none", **colours, **prices), row=1, col=1
    )
    figure.add_trace(VolumeBar(x=times, y=volumes, name="volume", marker=of_volume, hoverinfo="none"), row=2, col=1)
    if marks_ns:
        found = marked([bar.open_ns for bar in columns], marks_ns)
        below = {"x": [times[n] for n in found], "y": [prices["low"][n] for n in found]}
        look = {"symbol": "triangle-up", "size": 11, "color": _MARK}
        figure.add_trace(Scatter(mode="markers", name="fires", marker=look, hoverinfo="skip", **below), row=1, col=1)
    for n in gaps(columns):
        figure.add_vline(n - 0.5, line=_GAP_LINE)
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        hovermode="x",
        hoversubplots="axis",
        dragmode="pan",
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        bargap=0.15 if len(columns) <= 150 else 0,
        margin={"l": 8, "r": 12, "t": 34, "b": 8},
    )
    whole = [-0.5, len(columns) - 0.5]
    figure.update_xaxes(
        type="category", range=whole, rangeslider_visible=False, tickangle=0, ticklabelstandoff=4, automargin=True
    )
    # The crosshair. Prices follow the visible bars (chart.js), so only the time can be zoomed.
    line = {"showspikes": True, "spikemode": "across", "spikesnap": "cursor", "spikethickness": 1, "spikedash": "dot"}
    figure.update_xaxes(**line)
    figure.update_yaxes(automargin=True, zeroline=False, ticklabelstandoff=6, fixedrange=True, **line)
    figure.update_yaxes(rangemode="tozero", nticks=4, row=2, col=1)
    return figure
