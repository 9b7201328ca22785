"""Chart of ``--plot`` in a real Chromium: at two widths, in both colour schemes, with few and many candles."""

from __future__ import annotations

from pathlib import Path

import pytest

from dexorder.charts.html import write_html
from dexorder.rows.table import Rows
from tests.browser import Browser
from tests.unit.dexorder.charts.test_html import table

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(240)]
DRAWN = "document.querySelectorAll('.barlayer .point path').length"
SIZES = "[...document.querySelectorAll('.barlayer .point path')].map(e => e.getBoundingClientRect())"
INK = "getComputedStyle(document.querySelector('.ytick text')).fill"


@pytest.mark.parametrize(("count", "shown"), [(10, 10), (20_000, 589)])
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
