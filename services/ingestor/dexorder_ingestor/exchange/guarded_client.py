"""A ccxt client that notes bans at once, and its hosts: the exchange's own, and others with the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from dexorder_common.clock import Clock
from dexorder_ingestor.exchange.dialect import ErrorFacts
from dexorder_ingestor.exchange.failures import announced_pause
from dexorder_ingestor.exchange.rate_limiter import RateLimiter

OtherHosts = Mapping[str, Sequence[str]]


class GuardedClient:
    """A ccxt client of one session. A ban that an answer announces is known before anything else is awaited.

    Attributes:
        client: The client, unmodified ccxt.
        is_paused: An answer since `start_call` has announced a pause.
        worst_status: Largest HTTP status since then; 0 without an answer.
    """

    def __init__(
        self,
        client: Any,
        rate_limiter: RateLimiter,
        errors: ErrorFacts,
        clock: Clock,
        *,
        other_hosts: OtherHosts,
        ban_seconds: float,
    ) -> None:
        """Open a client; no call is made.

        Args:
            ban_seconds: Pause after "too many requests" without a time.
        """
        self.client = client
        self.is_paused = False
        self.worst_status = 0
        self._rate_limiter = rate_limiter
        self._errors = errors
        self._clock = clock
        self._ban_seconds = ban_seconds
        self._hosts = Hosts(client, other_hosts)
        client.throttler = rate_limiter
        self._handle_response = client.on_rest_response
        client.on_rest_response = self._on_response
        client.open()  # or the first call would do it after its wait for the rate limit, up to 0.4 s of work
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._on_headers)
        trace.freeze()
        client.session.trace_configs.append(trace)
        self._connect = client.tcp_connector.connect
        client.tcp_connector.connect = self._connect_unless_banned

    @property
    def hosts(self) -> int:
        """Hosts that `renew_connection` uses in turn."""
        return self._hosts.count

    def start_call(self) -> None:
        """Forget the last answer."""
        self.is_paused = False
        self.worst_status = 0
        self.client.last_json_response = None

    def fail(self) -> None:
        """Leave the host of the failed call out, unless it is the exchange's own."""
        self._hosts.fail()

    def pause(self) -> None:
        """Pause the exchange, unless its answer has done so."""
        if not self.is_paused:
            self._rate_limiter.ban(self._ban_seconds)

    def keep_connection(self) -> None:
        """Let calls share a connection to the exchange's own host."""
        self._hosts.reset()
        self.client.headers = {name: value for name, value in self.client.headers.items() if name != "Connection"}

    def renew_connection(self) -> None:
        """Let each later call have its own connection, to the next host, because replicas may differ."""
        self._hosts.use_next()
        self.client.headers = {**self.client.headers, "Connection": "close"}

    async def _connect_unless_banned(self, request: Any, **options: Any) -> Any:
        """Open the connection for a request; it takes a while, in which a ban may be announced."""
        connection = await self._connect(request, **options)
        if self._rate_limiter.is_banned():
            connection.release()
            raise aiohttp.ClientConnectionError("a ban was announced while the connection was opened")
        return connection

    async def _on_headers(self, session: object, context: object, ended: aiohttp.TraceRequestEndParams) -> None:
        """Check status and headers before the body is read, which may take long or never end."""
        self._note_pause(ended.response.status, ended.response.headers, "")

    def _on_response(
        self, status: int, reason: str, url: str, method: str, headers: Any, body: str, *request: Any
    ) -> Any:
        """Check an answer before ccxt does: a ban must be known before anything else is awaited."""
        self.worst_status = max(self.worst_status, status)
        self._note_pause(status, headers, body)
        return self._handle_response(status, reason, url, method, headers, body, *request)

    def _note_pause(self, status: int, headers: Mapping[str, str], body: str) -> None:
        wall_ns = self._clock.wall_ns()
        pause = announced_pause(status, headers, body, self._errors, default=self._ban_seconds, wall_ns=wall_ns)
        if pause is not None:
            self.is_paused = True
            self._rate_limiter.ban(pause)


class Hosts:
    """Hosts that one ccxt client uses in turn. One that fails is left out until `reset`."""

    def __init__(self, client: Any, others: OtherHosts) -> None:
        """Take a client with its own URLs, and by host of these the others."""
        self._client = client
        turns = range(max(map(len, others.values()), default=0))
        chosen = [{own: hosts[turn % len(hosts)] for own, hosts in others.items() if hosts} for turn in turns]
        self._urls = [client.urls["api"], *(_replaced(client.urls["api"], client, hosts) for hosts in chosen)]
        self._failed: set[int] = set()
        self._number = 0

    @property
    def count(self) -> int:
        """Hosts in use, without those left out."""
        return len(self._urls) - len(self._failed)

    def reset(self) -> None:
        """Use the exchange's own hosts, and no longer leave others out."""
        self._failed.clear()
        self._use(0)

    def use_next(self) -> None:
        """Use the next hosts, in turn with the exchange's own."""
        count = len(self._urls)
        turns = ((self._number + step) % count for step in range(1, count + 1))
        self._use(next(turn for turn in turns if turn not in self._failed))

    def fail(self) -> None:
        """Leave the hosts in use out, unless they are the exchange's own, and use these."""
        if self._number:
            self._failed.add(self._number)
            self._use(0)

    def _use(self, number: int) -> None:
        self._number = number
        self._client.urls["api"] = self._urls[number]


def _replaced(urls: Any, client: Any, hosts: Mapping[str, str]) -> Any:
    """Return URLs (nested dicts of text) with some hosts replaced."""
    if isinstance(urls, dict):
        return {key: _replaced(value, client, hosts) for key, value in urls.items()}
    if not isinstance(urls, str):
        return urls
    parts = urlsplit(client.implode_hostname(urls))
    is_rest = parts.scheme in ("http", "https")
    return parts._replace(netloc=hosts[parts.netloc]).geturl() if is_rest and parts.netloc in hosts else urls
