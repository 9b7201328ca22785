"""Which URLs of users are called: those of listed hosts alone, or a user could aim us at our own network."""

from __future__ import annotations

from yarl import URL


class Hosts:
    """An allow-list.

    Args:
        listed: Commas between; ``host``, ``host:port`` where that is not the scheme's, ``*.host`` for any name below.
        plain_http: Take http: as well, for tests.
    """

    def __init__(self, listed: str, *, plain_http: bool = False) -> None:
        self._entries = frozenset(entry.strip().lower() for entry in listed.split(",") if entry.strip())
        self._schemes = {"https", "http"} if plain_http else {"https"}

    def allowed(self, text: str) -> URL | None:
        """The URL as it will be called, parsed by what calls it; None for one that is not to be called."""
        try:
            url = URL(text)
            host, port = url.raw_host, url.port
        except ValueError:
            return None
        if (
            not host
            or "*" in host
            or url.scheme not in self._schemes
            or url.raw_user is not None
            or url.raw_password is not None
        ):
            return None
        suffix = "" if url.is_default_port() else f":{port}"
        labels = host.split(".")
        above = [f"*.{'.'.join(labels[start:])}{suffix}" for start in range(1, len(labels))]
        return url if self._entries.intersection([f"{host}{suffix}", *above]) else None
