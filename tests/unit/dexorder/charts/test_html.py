"""The chart as a page: what it shows of any number of candles, and that it needs nothing but itself."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dexorder.charts.html
from dexorder.charts.bars import Bar
from dexorder.charts.html import GAP_SHARE, MAX_BARS, describe, gaps, labels, write_html
from dexorder.rows.table import Rows
from dexorder_common.model.times import SECOND_NS
from tests.fakes.candle_table import START

HOUR_NS = 3_600 * SECOND_NS


def table(count: int, ticker: str = "BTC/USDT.SIM", skipped: tuple[range, ...] = ()) -> pa.Table:
    hours = [n for n in range(count) if not any(n in each for each in skipped)]
    times = pa.array([(START + n * HOUR_NS) // 1_000 for n in hours], pa.timestamp("us", "UTC"))
    values = {"open": 10.0, "high": 13.0, "low": 8.0, "close": 11.0, "volume": 2.0}
    return pa.table(
        {
            "ticker": [ticker] * len(hours),
            "period_seconds": pa.array([3_600] * len(hours), pa.int32()),
            "open_time": times,
            **{name: [value + (n % 7) for n in hours] for name, value in values.items()},
        }
    )


def written(folder: Path, rows: pa.Table, **more: Any) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """Write a chart; return the page without plotly's own code, its traces and its layout."""
    write_html(Rows(rows), file := folder / "new" / "chart.html", **more)
    page = file.read_text()
    own = re.sub(r"<script[^>]*>/\*\*.*?</script>", "", page, flags=re.DOTALL)
    assert len(own) < len(page) - 1_000_000, "plotly's code is part of the file"
    decoder, text = json.JSONDecoder(), own[own.index("Plotly.newPlot(") :]
    traces, end = decoder.raw_decode(text, text.index("["))
    layout, _ = decoder.raw_decode(text, text.index("{", end))
    return own, traces, layout


def bar(hour: float) -> Bar:
    return Bar(START + int(hour * HOUR_NS), 1.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("count", "shown", "about"),
    [
        (1, 1, '1h · 1 candle · UTC<span id="bar"></span>'),
        (MAX_BARS, MAX_BARS, '1h · 600 candles · UTC<span id="bar"></span>'),
        (MAX_BARS + 1, 301, '1h · 601 candles · UTC<span id="bar"> · a bar is 2h</span>'),
        (50_000, 298, '1h · 50,000 candles · UTC<span id="bar"> · a bar is 1w</span>'),
    ],
)
def test_volume_and_prices_of_any_number_of_candles(tmp_path: Path, count: int, shown: int, about: str) -> None:
    rows = table(count)
    page, (prices, volume), layout = written(tmp_path, rows)
    assert about in page
    assert len(prices["x"]) == len(volume["y"]) == shown <= MAX_BARS
    assert sum(volume["y"]) == pytest.approx(sum(rows["volume"].to_pylist()))
    ends: Any = [pc.min_max(rows[name]).as_py() for name in ("low", "high")]
    assert (min(prices["low"]), max(prices["high"])) == (ends[0]["min"], ends[1]["max"])
    assert (prices["open"][0], prices["close"][-1]) == (rows["open"][0].as_py(), rows["close"][-1].as_py())
    assert volume["x"] == prices["x"] and volume["marker"]["line"]["width"] == 0  # a border would hide narrow bars
    for axis in ("xaxis", "xaxis2"):
        assert (layout[axis]["type"], layout[axis]["range"]) == ("category", [-0.5, shown - 0.5])
    assert layout["yaxis2"]["rangemode"] == "tozero"


def test_hours_without_candles_take_no_space_and_long_ones_are_marked(tmp_path: Path) -> None:
    _, (prices, _), layout = written(tmp_path, table(100, skipped=(range(20, 60), range(70, 72))))
    assert len(prices["x"]) == 58 and layout["xaxis"]["range"] == [-0.5, 57.5]
    assert {shape["x0"] for shape in layout["shapes"]} == {19.5}


@pytest.mark.parametrize(
    ("hours", "found"),
    [
        ([], []),
        ([0], []),
        ([0, 1], []),
        ([0, 1, 2, 3, 4], []),  # each step is a quarter of the time, but none is a gap
        ([0, 1, 2, 10, 11], [3]),
        ([0, 5, 6, 7, 8, 9, 20], [1, 6]),
        ([*range(100), 104, *range(105, 200)], []),  # 4 hours of 200 are less than a twentieth
    ],
)
def test_gaps(hours: list[float], found: list[int]) -> None:
    assert gaps([bar(each) for each in hours]) == found


def test_at_most_so_many_gaps_are_marked() -> None:
    columns = [bar(day * 24 + hour) for day in range(500) for hour in range(8)]
    assert len(gaps(columns)) <= GAP_SHARE
    assert gaps(columns) == []


def test_labels_have_the_precision_of_the_period() -> None:
    assert labels([bar(0), bar(24)], 86_400) == ["2024-01-01", "2024-01-02"]
    assert labels([bar(0.5)], 60) == ["2024-01-01 00:30"]
    assert labels([bar(1 / 3_600)], 1) == ["2024-01-01 00:00:01"]
    assert describe(1_000, 60) == "1m · 1,000 candles · UTC"


def test_page_has_both_schemes_fits_a_phone_and_asks_no_other_host(tmp_path: Path) -> None:
    page, _, layout = written(tmp_path, table(10))
    assert '<meta name="viewport" content="width=device-width' in page
    assert page.count("prefers-color-scheme: dark") == 2  # of the page and of the chart
    for name in ("light", "dark"):
        assert json.loads(re.search(r"schemes = (\{.*\});", page)[1])[name]["text"] in page.split("<body>")[0]  # type: ignore[index]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert not re.findall(r"""(?:src|href)=|https?://|url\(|@import|fetch\(""", page)


def test_marks_are_below_the_bars_in_which_they_fall(tmp_path: Path) -> None:
    marks = [START + HOUR_NS, START + 1_250 * HOUR_NS]
    _, (prices, _, fires), _ = written(tmp_path, table(1_800), marks_ns=marks)
    assert fires["x"] == [prices["x"][0], prices["x"][312]]  # a bar is 4h
    assert fires["y"] == [prices["low"][0], prices["low"][312]]


def test_page_has_every_candle_unless_they_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, kept, names in ((1_000, 1_000, ["1h", "2h", "4h"]), (999, 500, ["2h", "4h", "6h"])):
        monkeypatch.setattr(dexorder.charts.html, "MAX_CANDLES", most)
        page, _, _ = written(tmp_path, rows := table(1_000))
        series, _ = json.JSONDecoder().raw_decode(page, page.index("const series = ") + len("const series = "))
        assert [level["name"] for level in series["levels"]][:3] == names and series["levels"][0]["starts"] is None
        assert {len(column) for column in series["columns"].values()} == {kept}
        assert sum(series["columns"]["volume"]) == pytest.approx(sum(rows["volume"].to_pylist()))


def test_text_of_an_exchange_is_text(tmp_path: Path) -> None:
    bad = "</title><script>alert(1)</script>$x/USDT.SIM"
    page, _, _ = written(tmp_path, table(3, bad))
    assert "alert(1)</script>" not in page and html.escape(bad) in page
