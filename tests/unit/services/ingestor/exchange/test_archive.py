"""Files of whole days: a literal one, ones that attack, and a server that lacks them, is slow to end or redirects."""

from __future__ import annotations

import asyncio
import io
import random
import ssl
import struct
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange import archive
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.archive import MAX_FAILURES, MAX_UNPACKED_BYTES, Archive, read_day
from dexorder_ingestor.exchange.dialect import ArchiveFacts
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.metrics import IngestorMetrics

FACTS = cast(ArchiveFacts, dialect_of("binance").archive)
CA_FILE = ssl.get_default_verify_paths().openssl_cafile
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


def far_away() -> bytes:
    """Return a file whose place in the ZIP is the largest number."""
    content, place = packed(lines()), struct.pack("<HHQ", 1, 8, 2**64 - 1)
    entry = content.index(b"PK\1\2")
    head, names_end, end = content[:entry], entry + 46 + len(NAME), content.index(b"PK\5\6")
    central = content[entry : entry + 30] + struct.pack("<H", len(place)) + content[entry + 32 : entry + 42]
    central += b"\xff" * 4 + content[entry + 46 : names_end] + place
    last = content[end : end + 12] + struct.pack("<I", len(central)) + content[end + 16 :]
    return head + central + last


GOOD = packed(lines())
ATTACKS = {
    "empty": b"",
    "no ZIP": b"<html>not found</html>",
    "cut": GOOD[: len(GOOD) // 2],
    "a damaged byte": GOOD.replace(GOOD[60:64], b"\0\0\0\0"),
    "another market's": packed(lines(), name="ETHUSDT-12h-2020-09-18.csv"),
    "a path": packed(lines(), name=f"../{NAME}"),
    "two files": packed(lines(), other=""),
    "a place beyond all": far_away(),
    "an unusual packing": packed(lines(), compression=zipfile.ZIP_LZMA),
    "a bomb": packed(lines() + " " * MAX_UNPACKED_BYTES),
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


def test_no_damage_of_a_file_is_another_error() -> None:
    dice = random.Random(101)
    for _ in range(3_000):
        damaged = bytearray(GOOD)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])
        with suppress(BadAnswer):
            assert read_day(FACTS, NAME, bytes(damaged), PERIOD, DAY) == CANDLES  # a byte that says nothing


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
    files = Archive("X", url, FACTS, IngestorMetrics(CollectorRegistry()), clock, ca_file=CA_FILE)
    try:
        await work(files, clock)
    finally:
        await files.close()
        await runner.cleanup()


async def test_a_file_is_fetched_by_its_path_and_none_for_a_young_day_or_an_odd_market_or_seconds() -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(body=GOOD)

    async def work(files: Archive, clock: FakeClock) -> None:
        assert await files.day("BNBUSDT", PERIOD, DAY) == CANDLES
        assert await files.day("../BNB", PERIOD, DAY) is None
        assert await files.day("BNBUSDT", 1, DAY) is None
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
    with suppress(ConnectionError):  # the reader has enough of it
        while True:
            await response.write(b"\0" * 65_536)
    return response


async def _silent(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _refused(request: web.Request) -> web.Response:
    return web.Response(status=403)


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
    await response.prepare(request)
    await response.write(GOOD[:100])
    assert request.transport is not None
    request.transport.close()
    return response


async def _other_bytes(request: web.Request) -> web.Response:
    return web.Response(body=GOOD[:100])


@pytest.mark.parametrize(
    ("handler", "files_before_a_pause"),
    [
        (_missing, MAX_FAILURES),
        (_endless, MAX_FAILURES),
        (_other_bytes, MAX_FAILURES),
        (_elsewhere, 1),
        (_refused, 1),
        (_cut, 1),
        (_silent, 1),
    ],
)
async def test_files_that_cannot_be_had_stop_the_queries_for_a_while(
    handler: Handler, files_before_a_pause: int
) -> None:
    asked, attempts = 0, 2 if handler is _silent else 1  # aiohttp repeats a GET whose connection ends

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await handler(request)

    async def work(files: Archive, clock: FakeClock) -> None:
        for _ in range(MAX_FAILURES + 2):
            assert await files.day("BNBUSDT", PERIOD, DAY) is None
        assert asked == files_before_a_pause * attempts
        clock.now_ns += archive.PAUSE_SECONDS * SECOND_NS
        await files.day("BNBUSDT", PERIOD, DAY)
        assert asked == (files_before_a_pause + 1) * attempts

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


async def test_a_server_that_does_not_answer_costs_all_dispatches_one_short_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, never = 0, asyncio.Event()
    monkeypatch.setattr(archive, "TIMEOUT_SECONDS", 0.2)

    async def hang(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await never.wait()
        return web.Response(body=GOOD)

    async def work(files: Archive, clock: FakeClock) -> None:
        for round_ in (1, 2):
            assert await asyncio.gather(*(files.day("BNBUSDT", PERIOD, DAY) for _ in range(4))) == [None] * 4
            assert await files.day("BNBUSDT", PERIOD, DAY) is None
            assert asked == round_
            clock.now_ns += archive.PAUSE_SECONDS * SECOND_NS
        never.set()
        assert await files.day("BNBUSDT", PERIOD, DAY) == CANDLES
        assert await asyncio.gather(*(files.day("BNBUSDT", PERIOD, DAY) for _ in range(4))) == [CANDLES] * 4

    await served(hang, work)
    assert asked == 7


async def test_slow_files_are_used_and_stop_the_queries_for_a_while() -> None:
    asked, clocks = 0, list[FakeClock]()

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        clocks[0].now_ns += round(1.1 * archive.SLOW_SECONDS * SECOND_NS)
        return web.Response(body=GOOD)

    async def work(files: Archive, clock: FakeClock) -> None:
        clocks.append(clock)
        for _ in range(MAX_FAILURES):
            assert await files.day("BNBUSDT", PERIOD, DAY) == CANDLES
            files.judge(tallies=True)
        assert await files.day("BNBUSDT", PERIOD, DAY) is None

    await served(answer, work)
    assert asked == MAX_FAILURES
