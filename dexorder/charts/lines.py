"""Lines of numbers over time as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dexorder_common.model.times import to_datetime

MOST_PLACES = 20_000
"""Values of a line; of a longer one the page shows every n-th, and the last."""


def write_lines(lines: Mapping[str, Sequence[tuple[int, float]]], file: Path) -> None:
    """Write a page with the lines, each of which has values at times in nanoseconds."""
    from plotly.io import write_html

    write_html(_figure(lines), file, include_plotlyjs=True)


def shown(values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the values of a line that the page shows."""
    step = -(-len(values) // MOST_PLACES) or 1
    kept = list(values[::step])
    return kept if not values or kept[-1] == values[-1] else [*kept, values[-1]]


def _figure(lines: Mapping[str, Sequence[tuple[int, float]]]) -> Any:
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for name, values in lines.items():
        kept = shown(values)
        times = [to_datetime(time_ns) for time_ns, _ in kept]
        figure.add_trace(Scatter(x=times, y=[value for _, value in kept], name=name, mode="lines"))
    figure.update_layout(template="plotly_white", hovermode="x unified", margin={"l": 8, "r": 12, "t": 34, "b": 8})
    return figure
