"""Chart of ``--plot`` in a real Chromium: at two widths, in both colour schemes, with few and many candles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dexorder.charts.html import write_html
from dexorder.rows.table import Rows, times_ns
from tests.browser import Browser
from tests.unit.dexorder.charts.test_html import table

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(240)]
DRAWN = "document.querySelectorAll('.barlayer .point path').length"
SIZES = "[...document.querySelectorAll('.barlayer .point path')].map(e => e.getBoundingClientRect())"
CHART = "document.querySelector('.plotly-graph-div')"
INK = "getComputedStyle(document.querySelector('.ytick text')).fill"


@pytest.mark.parametrize(("count", "shown"), [(10, 10), (20_000, 120)])
async def test_chart_fits_the_screen_shows_volume_and_follows_the_scheme(
    chromium: Browser, tmp_path: Path, count: int, shown: int
) -> None:
    write_html(Rows(table(count)), file := tmp_path / "chart.html")
    for width, height in ((390, 780), (1280, 720)):
        page = await chromium.page()
        await page.screen(width, height, phone=width == 390)
        await page.goto(file.as_uri())
        await page.until(f"{DRAWN} === {shown}", 60)
        assert await page.evaluate("[document.body.scrollWidth, document.body.scrollHeight]") == [width, height]
        # Bars touch each other, so that all of them are as wide as the chart whatever the width of one.
        covered = await page.evaluate(f"{SIZES}.reduce((sum, bar) => sum + bar.width, 0)")
        assert covered > 0.6 * width
        assert await page.evaluate(f"Math.max(...{SIZES}.map(bar => bar.height))") > 0.08 * height
        light = await page.until(f"{INK} === 'rgb(42, 46, 57)' && getComputedStyle(document.body).backgroundColor")
        await page.screen(width, height, dark=True, phone=width == 390)
        dark = await page.until(f"{INK} === 'rgb(209, 212, 220)' && getComputedStyle(document.body).backgroundColor")
        assert (light, dark) == ("rgb(255, 255, 255)", "rgb(19, 23, 34)")
        assert not page.complaints and {url.partition(":")[0] for url in page.urls} <= {"file", "data", "blob"}


async def test_zoom_shows_shorter_periods_down_to_the_candles_and_the_values_under_the_crosshair(
    chromium: Browser, tmp_path: Path
) -> None:
    rows = table(20_000)
    write_html(Rows(rows), file := tmp_path / "chart.html", marks_ns=[times_ns(Rows(rows), "open_time")[5_000]])
    page = await chromium.page()
    await page.goto(file.as_uri())
    await page.until("document.getElementById('bar').textContent === ' · a bar is 1w'", 60)
    volumes: Any = rows["volume"].to_pylist()
    wanted = [sum(volumes[n : n + 168]) for n in range(0, 20_000, 168)]
    assert await page.evaluate(f"{CHART}.data[1].y") == pytest.approx(wanted)
    for bars, period, seen in (("[9.5, 50.5]", " · a bar is 12h", 574), ("[-0.5, 49.5]", "", 600)):
        await page.evaluate(f"Plotly.relayout({CHART}, {{'xaxis.range': {bars}}}).then(() => true)")
        await page.until(f"document.getElementById('bar').textContent === {period!r}")
        left, right = await page.evaluate(f"{CHART}.layout.xaxis.range")
        assert right - left == seen
    # Now each bar is a candle. The pointer is over one of them; its row is found by its time.
    await page.evaluate(f"Plotly.Fx.hover({CHART}, [{{curveNumber: 0, pointNumber: 77}}])")
    shown = await page.until("document.getElementById('values').textContent")
    time, *values = shown.split(" · ")
    at = [f"{each:%Y-%m-%d %H:%M}" for each in rows["open_time"].to_pylist()].index(time)
    found = {name: float(number) for name, number in (each.split() for each in values)}
    assert found == {name: rows[name][at].as_py() for name in ("open", "high", "low", "close", "volume")}
    await page.click("#whole")
    await page.until("document.getElementById('bar').textContent === ' · a bar is 1w'")
    assert not page.complaints
