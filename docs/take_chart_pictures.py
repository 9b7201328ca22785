"""Screenshots of the charts that ``--plot`` writes: ``PYTHONPATH=. python docs/take_chart_pictures.py [FOLDER]``.

The candles are those of the simulated exchange. It needs Chromium, which it installs as the tests do.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from dexorder.charts.html import write_html
from dexorder.rows.table import Rows
from dexorder_exchange_sim.candles import CandleRequest
from dexorder_exchange_sim.instruments import INSTRUMENTS
from dexorder_exchange_sim.market import SyntheticMarket
from dexorder_exchange_sim.periods import PERIODS
from tests.browser import Browser, browser

PICTURES = Path(__file__).with_name("images")
START_S = 1_704_067_200  # 2024-01-01
SEED = 9  # of the exchange in a local suite
WIDE, PHONE = (1280, 720), (390, 780)


def candles(period: str, count: int, *, skipped: range = range(0)) -> pa.Table:
    """Return candles of BTC/USDT.SIM from 2024-01-01 on, without those with these numbers."""
    market = SyntheticMarket(next(each for each in INSTRUMENTS if each.symbol == "BTC/USDT"), seed=SEED)
    found = market.candles(PERIODS[period], CandleRequest(START_S * 1_000, None, count), now_ns=2 * START_S * 10**9)
    rows = pa.table(
        {
            "ticker": ["BTC/USDT.SIM"] * len(found),
            "period_seconds": pa.array([PERIODS[period].step_s] * len(found), pa.int32()),
            "open_time": pa.array(found.open_s * 1_000_000, pa.timestamp("us", "UTC")),
            **{name: getattr(found, name) for name in ("open", "high", "low", "close", "volume")},
        }
    )
    return rows.filter(pa.array([number not in skipped for number in range(len(found))]))


async def take(chromium: Browser, rows: pa.Table, picture: Path, size: tuple[int, int], *, dark: bool) -> None:
    """Write the chart and take its picture."""
    with tempfile.TemporaryDirectory() as folder:
        write_html(Rows(rows), file := Path(folder) / "chart.html")
        page = await chromium.page()
        await page.screen(*size, dark=dark, phone=size == PHONE)
        await page.goto(file.as_uri())
        await page.until("document.querySelector('.barlayer .point') !== null")
        await asyncio.sleep(1.0)  # the colours of the scheme are drawn
        overflow = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert overflow == [*size] and not page.complaints, (overflow, page.complaints)
        assert all(url.startswith(("file:", "blob:", "data:")) for url in page.urls), page.urls
        await page.picture(picture)


async def main(folder: Path) -> None:
    """Take all pictures."""
    hours, minutes = candles("1h", 336), candles("1m", 50_000)
    holes = candles("1h", 500, skipped=range(250, 330))
    async with browser() as chromium:
        await take(chromium, hours, folder / "chart.png", WIDE, dark=False)
        await take(chromium, minutes, folder / "chart-long.png", WIDE, dark=True)
        await take(chromium, holes, folder / "chart-phone.png", PHONE, dark=False)
        await take(chromium, hours, folder / "chart-phone-dark.png", PHONE, dark=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES))
