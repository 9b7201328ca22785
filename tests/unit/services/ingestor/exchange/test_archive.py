"""Files of whole days: a literal one, ones that attack, and a server that lacks them, is slow to end or redirects."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange import archive
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.archive import MAX_FAILURES, MAX_FILE_BYTES, MAX_UNPACKED_BYTES, Archive, read_day
from dexorder_ingestor.exchange.dialect import ArchiveFacts
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.metrics import IngestorMetrics

FACTS = cast(ArchiveFacts, dialect_of("binance").archive)
DAY_NS = 86_400 * SECOND_NS
START_NS = 18_523 * DAY_NS
"""2020-09-18."""
DAY = TimeRange(START_NS, START_NS + DAY_NS)
NAME = "BNBUSDT-12h-2020-09-18.csv"
PERIOD = 43_200
LINES = (
    "1600387200000,4.15070000,4.15870000,4.15060000,4.15540000,539.23000000,1600430399999,2240.39860900,13,401.8,1,0",
    "1600430400000,4.15540000,4.16000000,4.15000000,4.15000000,10.00000000,1600473599999,41.50000000,2,0.00000000,0,0",
)
CANDLES = [
    Candle(START_NS, 4.1507, 4.1587, 4.1506, 4.1554, 539.23, 2240.398609, 13),
    Candle(START_NS + DAY_NS // 2, 4.1554, 4.16, 4.15, 4.15, 10.0, 41.5, 2),
]


def packed(text: str, name: str = NAME, compression: int = zipfile.ZIP_DEFLATED, **more: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr(name, text)
        for other, its in more.items():
            file.writestr(other, its)
    return content.getvalue()


def lines(first: str = LINES[0], second: str = LINES[1]) -> str:
    return f"{first}\n{second}\n"


@pytest.mark.parametrize(
    "text",
    [
        lines(),
        lines().replace("\n", "\r\n"),
        lines().strip(),
        lines().replace("7200000,4", "7200000000,4").replace("0400000,4", "0400000000,4"),
    ],
    ids=["as published", "other ends of lines", "no last end", "microseconds"],
)
def test_a_literal_file_is_read(text: str) -> None:
    assert read_day(FACTS, NAME, packed(text), PERIOD, DAY) == CANDLES


GOOD = packed(lines())
ATTACKS = {
    "empty": b"",
    "no ZIP": b"<html>not found</html>",
    "cut": GOOD[: len(GOOD) // 2],
    "a damaged byte": GOOD.replace(GOOD[60:64], b"\0\0\0\0"),
    "another market's": packed(lines(), name="ETHUSDT-12h-2020-09-18.csv"),
    "a path": packed(lines(), name=f"../{NAME}"),
    "two files": packed(lines(), other=""),
    "an unusual packing": packed(lines(), compression=zipfile.ZIP_LZMA),
    "a bomb": packed(" " * (MAX_UNPACKED_BYTES + 1)),
    "no rows": packed(""),
    "a heading": packed("open_time,open,high,low,close,volume\n" + lines()),
    "a candle is absent": packed(LINES[0]),
    "another day": packed(lines().replace("16003", "16004").replace("16004304", "16005168")),
    "off the grid": packed(lines().replace("1600387200000", "1600387200001")),
    "a fraction of a millisecond": packed(
        lines().replace("7200000,4", "7200000001,4").replace("0400000,4", "0400000000,4")
    ),
    "low above high": packed(lines().replace("4.15060000", "4.25060000")),
    "not a number": packed(lines().replace("539.23000000", "NaN")),
    "a list in a list": packed(lines().replace("539.23000000", "[539]")),
    "no list": packed("1],2,[3"),
    "too large a number": packed(lines().replace("539.23000000", "9" * 400)),
    "few columns": packed("1600387200000,1,1\n1600430400000,1,1"),
}


@pytest.mark.parametrize("content", ATTACKS.values(), ids=ATTACKS)
def test_a_file_that_attacks_is_a_bad_answer(content: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_day(FACTS, NAME, content, PERIOD, DAY)


class FakeClock:
    def __init__(self, wall_ns: int) -> None:
        self.now_ns = wall_ns

    def wall_ns(self) -> int:
        return self.now_ns

    monotonic_ns = wall_ns


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def served(handler: Handler, work: Callable[[Archive, FakeClock], Awaitable[None]]) -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    clock = FakeClock(DAY.end_ns + 3 * DAY_NS)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    files = Archive("X", url, FACTS, IngestorMetrics(CollectorRegistry()), clock)  # type: ignore[arg-type]
    try:
        await work(files, clock)
    finally:
        await files.close()
        await runner.cleanup()


async def test_a_file_is_fetched_by_its_path_and_none_for_a_young_day_or_an_odd_market() -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(body=GOOD)

    async def work(files: Archive, clock: FakeClock) -> None:
        assert await files.day("BNBUSDT", PERIOD, DAY) == CANDLES
        assert await files.day("../BNB", PERIOD, DAY) is None
        clock.now_ns = DAY.end_ns + DAY_NS
        assert await files.day("BNBUSDT", PERIOD, DAY) is None

    await served(answer, work)
    assert paths == ["/data/spot/daily/klines/BNBUSDT/12h/BNBUSDT-12h-2020-09-18.zip"]


async def _missing(request: web.Request) -> web.Response:
    return web.Response(status=404)


async def _elsewhere(request: web.Request) -> web.Response:
    return (
        web.Response(status=302, headers={"Location": "/good"}) if request.path != "/good" else web.Response(body=GOOD)
    )


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(4 * MAX_FILE_BYTES // 65_536):
        await response.write(b"\0" * 65_536)
    return response


async def _silent(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize("handler", [_missing, _elsewhere, _endless, _silent])
async def test_files_that_cannot_be_had_stop_the_queries_for_a_while(handler: Handler) -> None:
    asked, attempts = 0, 2 if handler is _silent else 1  # aiohttp repeats a GET whose connection ends

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await handler(request)

    async def work(files: Archive, clock: FakeClock) -> None:
        for _ in range(MAX_FAILURES + 2):
            assert await files.day("BNBUSDT", PERIOD, DAY) is None
        assert asked == MAX_FAILURES * attempts
        clock.now_ns += archive.PAUSE_SECONDS * SECOND_NS
        await files.day("BNBUSDT", PERIOD, DAY)
        assert asked == (MAX_FAILURES + 1) * attempts

    await served(counted, work)


async def test_files_that_contradict_the_exchange_stop_the_queries_for_a_while() -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(body=GOOD)

    async def work(files: Archive, clock: FakeClock) -> None:
        for tallies in (False, False, True, *[False] * MAX_FAILURES):
            assert await files.day("BNBUSDT", PERIOD, DAY)
            files.judge(tallies=tallies)
        assert await files.day("BNBUSDT", PERIOD, DAY) is None

    await served(answer, work)
    assert asked == 3 + MAX_FAILURES
