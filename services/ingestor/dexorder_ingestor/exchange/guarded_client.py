"""Hosts of an exchange: its own, and others that serve the same data. Pure but for the client that it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit


class Hosts:
    """Hosts that one ccxt client uses in turn. One that fails is left out until `reset`."""

    def __init__(self, client: Any, others: Mapping[str, Sequence[str]]) -> None:
        """Take a client with its own URLs, and by host of these the others."""
        self._client = client
        turns = range(max(map(len, others.values()), default=0))
        chosen = [{own: hosts[turn % len(hosts)] for own, hosts in others.items() if hosts} for turn in turns]
        self._urls = [client.urls["api"], *(_replaced(client.urls["api"], client, hosts) for hosts in chosen)]
        self._failed: set[int] = set()
        self._number = 0

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
