"""HTTP client of the channels: allowed hosts, no redirects, no cookies, no URL in an error.

Settings are read without it, so aiohttp is only imported where a URL is parsed or a session opened.
"""

from __future__ import annotations

import json
import time
from asyncio import IncompleteReadError
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

from dexorder_gateway.events.model import NO_CONNECTION, TIMEOUT, Later, Sent

if TYPE_CHECKING:
    from aiohttp import StreamReader
    from yarl import URL

_MAX_ANSWER_BYTES = 64 * 1024
_MAX_WAIT_SECONDS = 24 * 3600.0


class AllowedHosts:
    """Hosts that URLs of users may name; without such a list a user could direct calls into our own network.

    Args:
        listed: Comma-separated ``host``, ``host:port`` for another port than the scheme's, ``*.host`` for subdomains.
        plain_http: Allow http: as well, for tests.
    """

    def __init__(self, listed: str, *, plain_http: bool = False) -> None:
        self._entries = frozenset(entry.strip().lower() for entry in listed.split(",") if entry.strip())
        self._schemes = {"https", "http"} if plain_http else {"https"}

    def parse(self, text: str) -> URL | None:
        """Return the URL as the client will call it; None if it is not allowed."""
        from yarl import URL

        try:
            url = URL(text)
            host, port = url.raw_host, url.port
        except ValueError:
            return None
        with_credentials = url.raw_user is not None or url.raw_password is not None
        if not host or "*" in host or url.scheme not in self._schemes or with_credentials:
            return None
        suffix = "" if url.is_default_port() else f":{port}"
        labels = host.split(".")
        above = [f"*.{'.'.join(labels[start:])}{suffix}" for start in range(1, len(labels))]
        return url if self._entries.intersection([f"{host}{suffix}", *above]) else None


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """A provider's answer other than 2xx; ``body`` holds at most the first 64 KiB."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one if the body has another form."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def later(self, wait: object = None) -> Later | None:
        """Return `Later` for the statuses that mean a temporary failure at every provider; else None.

        Args:
            wait: Seconds to wait as given in the body, if any; else Retry-After counts.
        """
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            reason = "too many requests"
        elif self.status == HTTPStatus.REQUEST_TIMEOUT or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            reason = "the provider has an error"
        else:
            return None
        wait_ms = _milliseconds(wait)
        return Later(reason, wait_ms if wait_ms is not None else _milliseconds(self.headers.get("Retry-After")))


class Http:
    """One client session for all channels, open within its context. The timeout limits a whole call."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds

    async def post(
        self, url: URL | str, *, json: Any = None, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Sent | Later | ProviderAnswer:
        """Post once. A failure below HTTP is `Later`: the provider may never have seen the request."""
        from aiohttp import ClientError

        try:
            async with self._session.post(
                url, json=json, data=data, headers=headers, allow_redirects=False
            ) as response:
                answer = ProviderAnswer(response.status, response.headers, await _beginning(response.content))
                return Sent() if 200 <= answer.status < 300 else answer
        except TimeoutError:
            return Later(TIMEOUT)
        except (ClientError, OSError, ValueError):
            return Later(NO_CONNECTION)

    async def __aenter__(self) -> Self:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        # No connection limit: calls that hang at one provider would take the connections of the others.
        connector, timeout = TCPConnector(limit=0), ClientTimeout(total=self.timeout_seconds)
        self._session = ClientSession(connector=connector, timeout=timeout, cookie_jar=DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()


async def _beginning(content: StreamReader) -> bytes:
    try:
        return await content.readexactly(_MAX_ANSWER_BYTES)
    except IncompleteReadError as whole:
        return whole.partial


def _milliseconds(wait: object) -> int | None:
    """Convert a number of seconds, its text, or an HTTP date; None for any other value. At most a day."""
    try:
        seconds = float(wait)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = _seconds_until(wait) if isinstance(wait, str) else 0.0
    return round(min(seconds, _MAX_WAIT_SECONDS) * 1000) if seconds > 0 else None


def _seconds_until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
