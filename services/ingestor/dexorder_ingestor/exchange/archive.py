"""Files of whole days of candles that an exchange publishes beside its API; they do not count in its rate.

A file is read only if it is a ZIP of one CSV file with the expected name, and holds every candle of the day. What its
candles are worth is decided by coarser candles that a query brings (`history.fetch`).
"""

from __future__ import annotations

import io
import ssl
import struct
import zipfile
import zlib
from typing import Any

import aiohttp
import orjson
import structlog

from dexorder_common.clock import Clock
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import PERIODS, count_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.dialect import ArchiveFacts
from dexorder_ingestor.exchange.validation import read_candles
from dexorder_ingestor.metrics import IngestorMetrics

log = structlog.get_logger(__name__)
MAX_FILE_BYTES = 1 << 20
"""Largest file that is read; a day of minutes has some 50 KB."""
MAX_UNPACKED_BYTES = 4 << 20
"""Largest content that is unpacked; a day of minutes has some 250 KB."""
MAX_ROWS = 1_440
"""Largest number of candles of a day for which a file is asked: minutes. A day of seconds would exceed these sizes."""
MIN_AGE_SECONDS = 2 * 86_400
"""Age of a day's end from which its file is asked for; it is published on the next day."""
MAX_FAILURES = 3
"""Files in a row that are missing, of no use or slow, after which none is asked for in ``PAUSE_SECONDS``."""
PAUSE_SECONDS = 600
TIMEOUT_SECONDS = 3.0
"""Longest time of a fetch; without a file in it none is asked for in ``PAUSE_SECONDS``."""
SLOW_SECONDS = 1.0
"""Time in which calls bring a day of candles at any exchange's pace; a slower file saves nothing."""
_CONNECT_SECONDS = 2.0
_MICROSECONDS = 10**14
"""A time in milliseconds is below this until the year 5138, one in microseconds above it since 1973."""
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What `zipfile` and the parser raise for bytes that are not what they should be."""


def read_day(facts: ArchiveFacts, name: str, content: bytes, period_seconds: int, day: TimeRange) -> list[Candle]:
    """Return all candles of a day from its file.

    Args:
        name: Name of the CSV file in the ZIP, which names market, period and day.

    Raises:
        BadAnswer: The file is none, has another content, is too large, or a candle of the day is absent or impossible.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (member,) = archive.infolist()
            if member.filename != name or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadAnswer(f"the file holds {member.filename[:80]!r}, not {name!r}", kind="other_symbol")
            with archive.open(member) as file:
                text = file.read(MAX_UNPACKED_BYTES + 1)
        if len(text) > MAX_UNPACKED_BYTES:
            raise BadAnswer(f"the file unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        rows = orjson.loads(b"[[%s]]" % text.strip().replace(b"\r\n", b"\n").replace(b"\n", b"],["))
    except _UNREADABLE as error:
        raise BadAnswer(f"the file can't be read: {error}") from error
    candles = read_candles(_in_milliseconds(rows), day, period_seconds, columns=facts.columns)
    if len(candles) != count_periods(day, period_seconds):
        raise BadAnswer(f"the file has {len(candles)} candles of the day", kind="incomplete")
    return candles


def _in_milliseconds(rows: list[Any]) -> list[Any]:
    """Return rows whose first column is a time in milliseconds; if one is not whole, all stay as they are."""
    times: list[Any] = [row[0] if isinstance(row, list) and row else None for row in rows]
    if not all(type(time) is int and time > _MICROSECONDS and not time % 1_000 for time in times):
        return rows
    return [[time // 1_000, *row[1:]] for time, row in zip(times, rows, strict=True)]


class Archive:
    """The files of a venue.

    A server that does not answer costs one fetch in ``PAUSE_SECONDS``: until a file or 404 has come, one dispatch asks,
    and the others go without files.
    """

    def __init__(
        self, venue: str, url: str, facts: ArchiveFacts, metrics: IngestorMetrics, clock: Clock, *, ca_file: str
    ) -> None:
        """Open nothing; the first file opens a connection.

        Args:
            ca_file: Certificates that a server's may be signed with, as PEM.
        """
        self._venue = venue
        self._url = url
        self._facts = facts
        self._metrics = metrics
        self._clock = clock
        self._ca_file = ca_file
        self._client: aiohttp.ClientSession | None = None
        self._failures = self._slow = 0
        self._paused_until_ns = 0
        self._is_reached = self._is_tried = False

    async def day(self, market: str, period_seconds: int, day: TimeRange) -> list[Candle] | None:
        """Return all candles of a UTC day; None if they can't be had whole, which is no sign of anything.

        Args:
            market: The exchange's id.
        """
        is_young = day.end_ns + MIN_AGE_SECONDS * SECOND_NS > self._clock.wall_ns()
        is_long = count_periods(day, period_seconds) > MAX_ROWS
        is_waiting = self._clock.monotonic_ns() < self._paused_until_ns or (self._is_tried and not self._is_reached)
        # a market's id becomes a part of a path
        if is_young or is_long or is_waiting or not market.isalnum():
            return None
        path = self._facts.path.format(market=market, period=PERIODS[period_seconds], day=iso(day.start_ns)[:10])
        name = path.rpartition("/")[2].removesuffix(".zip") + ".csv"
        self._is_tried = True
        try:
            return read_day(self._facts, name, await self._fetch_timed(path), period_seconds, day)
        except BadAnswer as error:
            log.info("file not used", exchange=self._venue, file=path, reason=str(error)[:200])
            self._end("incomplete" if error.kind == "incomplete" else "bad")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("file not fetched", exchange=self._venue, file=path, reason=str(error)[:200] or "no answer")
            is_missing = isinstance(error, aiohttp.ClientResponseError) and error.status == 404
            self._is_reached = is_missing
            self._end("missing" if is_missing else "failed")
        finally:
            self._is_tried = False
        return None

    def judge(self, *, tallies: bool) -> None:
        """Note whether the candles of a file agree with the exchange's coarser candles."""
        self._end("used" if tallies else "differs")

    def _end(self, outcome: str) -> None:
        """Count a file; a failed fetch, or some files in a row of no use, stop the queries for a while."""
        self._metrics.archive_files.labels(self._venue, outcome).inc()
        self._failures = 0 if outcome == "used" else self._failures + 1
        if outcome == "failed" or self._failures >= MAX_FAILURES:
            self._pause()

    def _pause(self) -> None:
        self._failures = self._slow = 0
        self._paused_until_ns = self._clock.monotonic_ns() + PAUSE_SECONDS * SECOND_NS

    async def close(self) -> None:
        """Close the connections."""
        if self._client:
            await self._client.close()

    async def _fetch_timed(self, path: str) -> bytes:
        """Fetch a file; after some in a row that are slow none is asked for, for a while."""
        began_ns = self._clock.monotonic_ns()
        content = await self._fetch(path)
        self._is_reached = True
        is_slow = self._clock.monotonic_ns() - began_ns > SLOW_SECONDS * SECOND_NS
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow >= MAX_FAILURES:
            log.info("files are slow", exchange=self._venue, url=self._url)
            self._pause()
        return content

    async def _fetch(self, path: str) -> bytes:
        """Return a file; no redirect is followed.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: It can't be fetched.
            BadAnswer: It is too large.
        """
        if self._client is None:
            self._client = _new_client(self._ca_file)
        async with self._client.get(self._url + path, allow_redirects=False) as response:
            if response.status != 200:
                raise aiohttp.ClientResponseError(
                    response.request_info, (), status=response.status, message=response.reason or ""
                )
            content = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                content += part
                if len(content) > MAX_FILE_BYTES:
                    raise BadAnswer(f"the file has more than {MAX_FILE_BYTES:,} bytes")
        return bytes(content)


def _new_client(ca_file: str) -> aiohttp.ClientSession:
    """Return a client; the limit of a connection's time includes the resolution of the name."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca_file)),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, connect=_CONNECT_SECONDS),
        auto_decompress=False,
    )
