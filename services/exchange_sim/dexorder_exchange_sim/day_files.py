"""Files of whole days of candles, as Binance's archive has them. Pure."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime

from dexorder_exchange_sim.dialects import binance
from dexorder_exchange_sim.dialects.dialect import SimRefusal
from dexorder_exchange_sim.venue import SimVenue

PATH = "/data/spot/daily/klines/{market}/{period}/{name}"
_DAY_MS = 86_400_000
_KLINES = "/api/v3/klines"
_MICROSECONDS_FROM = "2025"


def day_file(venue: SimVenue, asked: Mapping[str, str], now_ns: int) -> bytes | None:
    """Return a ZIP with a CSV file; None for one that does not exist, or a day that is not over.

    Args:
        asked: ``market``, ``period`` and ``name`` of the path.
    """
    market, period = asked["market"], asked["period"]
    day = asked["name"].removeprefix(f"{market}-{period}-").removesuffix(".zip")
    if asked["name"] != f"{market}-{period}-{day}.zip":
        return None
    try:
        start_ms = int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()) * 1_000
        rows = _rows(venue, market, period, start_ms, now_ns)
    except (SimRefusal, ValueError):
        return None
    if not rows or start_ms + _DAY_MS > now_ns // 1_000_000:
        return None
    unit = 1_000 if day >= _MICROSECONDS_FROM else 1
    text = "".join(",".join(map(str, [row[0] * unit, *row[1:6], row[6] * unit, *row[7:]])) + "\n" for row in rows)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # stored: an exchange compresses its files once, not for each query
        archive.writestr(f"{market}-{period}-{day}.csv", text)
    return content.getvalue()


def _rows(venue: SimVenue, market: str, period: str, start_ms: int, now_ns: int) -> list[list[int]]:
    rows: list[list[int]] = []
    first_ms, end_ms = start_ms, start_ms + _DAY_MS
    while first_ms < end_ms:
        query = {"symbol": market, "interval": period, "startTime": str(first_ms), "endTime": str(end_ms - 1)}
        answer = binance.DIALECT.answer(_KLINES, {**query, "limit": "1000"}, venue, now_ns)
        if answer is None or not answer.body:
            break
        rows += answer.body
        first_ms = rows[-1][0] + 1
    return rows
