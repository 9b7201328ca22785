"""HTTP as the channels use it: no redirects, no cookies, no URL in an error; and how far providers answer alike."""

from __future__ import annotations

import json
import time
from asyncio import IncompleteReadError
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, StreamReader, TCPConnector
from yarl import URL

from services.gateway.events.channels.adapter import NO_CONNECTION, TIMEOUT, TOO_MANY_REQUESTS, TROUBLE
from services.gateway.events.model import Later

_MOST_ANSWER_BYTES = 64 * 1024
_MOST_WAIT_SECONDS = 24 * 3600.0
_REQUEST_TIMEOUT, _TOO_MANY, _SERVER_ERROR = 408, 429, 500


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's; of a long body the beginning."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the provider has taken it."""
        return 200 <= self.status < 300

    def json(self) -> dict[str, Any]:
        """Its object; empty where it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def later(self, wait: object = None) -> Later | None:
        """What every provider means alike: not now. None if it means something else.

        Args:
            wait: Seconds to wait, where the provider says them in its body; else its Retry-After counts.
        """
        if self.status not in (_REQUEST_TIMEOUT, _TOO_MANY) and self.status < _SERVER_ERROR:
            return None
        reason = TOO_MANY_REQUESTS if self.status == _TOO_MANY else TROUBLE
        asked = _milliseconds(wait)
        return Later(reason, asked if asked is not None else _milliseconds(self.headers.get("Retry-After")))


class Http:
    """One session for all channels, open within its context.

    Args:
        timeout_seconds: For one call, from the first byte to the last.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = ClientTimeout(total=timeout_seconds)

    async def post(
        self, url: URL | str, *, json: Any = None, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer | Later:
        """Post once. What went wrong below HTTP is `Later`: the provider may never have seen it."""
        try:
            async with self._session.post(
                url, json=json, data=data, headers=headers, allow_redirects=False
            ) as response:
                return Answer(response.status, response.headers, await _beginning(response.content))
        except TimeoutError:
            return Later(TIMEOUT)
        except (ClientError, OSError, ValueError):
            return Later(NO_CONNECTION)

    async def __aenter__(self) -> Self:
        # no limit of its own: calls that hang at one provider would take the connections of the others
        connector = TCPConnector(limit=0)
        self._session = ClientSession(connector=connector, timeout=self._timeout, cookie_jar=DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()


async def _beginning(content: StreamReader) -> bytes:
    try:
        return await content.readexactly(_MOST_ANSWER_BYTES)
    except IncompleteReadError as whole:
        return whole.partial


def _milliseconds(wait: object) -> int | None:
    """Of seconds as a number or text, or of an HTTP date; None for nonsense. A day at most, so that a slip ends."""
    try:
        seconds = float(wait)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = _until(wait) if isinstance(wait, str) else 0.0
    return round(min(seconds, _MOST_WAIT_SECONDS) * 1000) if seconds > 0 else None


def _until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
